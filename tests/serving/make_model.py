"""Write a tiny Llama for ``--load-format dummy``: run with a Python that has ``tokenizers``.

``python make_model.py FOLDER TEXT...``: the tokenizer is trained on the texts, byte by byte, so that any text has
tokens. Nothing is downloaded, and there are no weights.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

VOCABULARY = 2048
_CPU = Path("/proc/cpuinfo")
#: Whether the processor multiplies BF16. Others emulate it, at a tenth of the speed that they have in FP32.
BF16 = _CPU.exists() and "avx512_bf16" in _CPU.read_text()
#: Large enough that a step takes ten milliseconds, many times what the front end takes for a token; small enough that
#: thousands of steps take a minute.
_WIDTH = 512 if BF16 else 256
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16", "vocab_size": VOCABULARY,
    "hidden_size": _WIDTH, "intermediate_size": 4 * _WIDTH, "num_hidden_layers": 8, "num_attention_heads": _WIDTH // 64,
    "num_key_value_heads": 2, "head_dim": 64, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0, "bos_token_id": 0, "eos_token_id": 1, "tie_word_embeddings": False,
}  # fmt: skip
_SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}


def main() -> None:
    """Train the tokenizer, and write the four files."""
    from tokenizers import ByteLevelBPETokenizer  # type: ignore[import-not-found]

    folder, texts = Path(sys.argv[1]), sys.argv[2:]
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train(texts, vocab_size=VOCABULARY, min_frequency=1, special_tokens=list(_SPECIAL.values()))
    tokenizer.save(str(folder / "tokenizer.json"))
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 4096} | _SPECIAL
    for name, content in {"config.json": CONFIG, "tokenizer_config.json": about}.items():
        (folder / name).write_text(json.dumps(content, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
