"""What each architecture is made of, by ``model_type``.

Field names and defaults follow the configuration classes of the transformers library
(https://huggingface.co/docs/transformers/model_doc), read 2026-11.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple


class Family(NamedTuple):
    """What an architecture is made of.

    experts: keys of its routed experts: none, with a width of their own, with that of ``intermediate_size``,
        DeepSeek's (leading dense layers, shared experts), Kimi Linear's (the same by other names, and a latent),
        MiniMax-M3's (a list of layers with experts, shared experts), Llama 4's (every n-th layer, a shared expert as
        wide), Gemma 4's (a dense FFN in parallel), or Step-3.5's.
    states: layers with a recurrent state beside attention, of another kind than ``linear``'s gated delta rule: Kimi
        Delta Attention, or Mamba-2 in a pattern of layers that are a mixer or an FFN each (Nemotron-H).
    compressed, block_sparse: see ``ModelSpec``.
    single_router: engines multiply by the router in 32 bits (vLLM's and SGLang's models; SGLang's of GLM-4 since its
        pull request 21660 of March 2026).
    choice_operators: see ``MoeSpec``.
    norms: see ``ModelSpec.norms_per_layer``.
    defaults: of keys that published configurations leave to the library.
    """

    experts: Literal["none", "own", "intermediate", "deepseek", "kimi", "minimax_m3", "llama4", "gemma4", "step"] = (
        "none"
    )
    mla: bool = False
    sparse: bool = False
    linear: bool = False
    states: Literal["none", "kda", "mamba2"] = "none"
    compressed: bool = False
    block_sparse: bool = False
    single_router: bool = False
    choice_operators: int = 1
    norms: int = 2
    defaults: Mapping[str, Any] = {}

    @property
    def router_dtype(self) -> Literal["bf16", "fp32"]:
        """See ``MoeSpec``."""
        return "fp32" if self.single_router else "bf16"


#: Defaults of ``Gemma3TextConfig``, on which the published configurations of Gemma 3 rely.
_GEMMA3 = {
    "vocab_size": 262_208, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
    "max_position_embeddings": 131_072, "tie_word_embeddings": True, "sliding_window": 4096,
    "sliding_window_pattern": 6,
}  # fmt: skip

#: By ``model_type``; that of the language model in ``text_config``, where there is one, less its ``_text``.
FAMILIES = {
    "llama": Family(), "mistral": Family(), "phi3": Family(), "mimo": Family(),
    "gemma3": Family(defaults=_GEMMA3, norms=4), "gemma4": Family("gemma4", defaults={"tie_word_embeddings": True}),
    "llama4": Family("llama4"), "qwen2_vl": Family(), "qwen2_5_vl": Family(),
    "qwen2": Family(), "qwen3": Family(), "qwen3_vl": Family(), "qwen3_5": Family(linear=True),
    "mixtral": Family("intermediate"), "gpt_oss": Family("intermediate"),
    "phimoe": Family("intermediate", choice_operators=21),
    "minimax_m2": Family("intermediate", single_router=True),
    "qwen3_moe": Family("own"), "qwen3_vl_moe": Family("own"),
    "qwen3_next": Family("own", linear=True), "qwen3_5_moe": Family("own", linear=True),
    "glm4_moe": Family("deepseek", single_router=True), "mimo_v2_flash": Family("deepseek", single_router=True),
    "deepseek_v2": Family("deepseek", mla=True), "deepseek_v3": Family("deepseek", mla=True),
    "kimi_k2": Family("deepseek", mla=True), "deepseek_v32": Family("deepseek", mla=True, sparse=True),
    "glm_moe_dsa": Family("deepseek", mla=True, sparse=True),
    "step3p5": Family("step", single_router=True), "step3p7": Family("step", single_router=True),
    "kimi_linear": Family("kimi", mla=True, states="kda"), "nemotron_h": Family(states="mamba2"),
    "deepseek_v4": Family("deepseek", compressed=True), "deepseek_ref": Family("deepseek", compressed=True),
    "minimax_m3": Family("minimax_m3", block_sparse=True, single_router=True),
    "minimax_m3_vl": Family("minimax_m3", block_sparse=True, single_router=True),
}  # fmt: skip

#: Every head has KV of its own where ``num_key_value_heads`` is left out; other classes have numbers of their own.
KV_OF_EACH_HEAD = ("llama", "phi3")
