"""Run with the Python of an environment that has vLLM 0.33.0: its own groups of DeepSeek-V4's layers.

Argument, as JSON: models by name as tokens of an entry of each layer; and pairs of tokens of a request and in flight.
Prints JSON: by model, bytes of a block, groups, and blocks of each request.
"""

import json
import sys
import types

import torch
from vllm.v1.attention.backend import KVCacheLayout
from vllm.v1.core import kv_cache_planning
from vllm.v1.core.kv_cache_utils import get_max_concurrency_for_kv_cache_config
from vllm.v1.kv_cache_interface import MLAAttentionSpec, SlidingWindowMLASpec

ALIKE = {"num_kv_heads": 1, "max_tp_shards": 1, "alignment": 576}


def of_layer(name: str, ratio: int) -> dict[str, object]:
    """As ``models/deepseek_v4`` asks for: windows, entries, states, and an indexer's."""
    packed = {"dtype": torch.uint8, "cache_dtype_str": "fp8_ds_mla", "model_version": "deepseek_v4"}
    window = SlidingWindowMLASpec(
        block_size=64, head_size=512, sliding_window=128, state_content_bytes=584, **packed, **ALIKE
    )
    specs: dict[str, object] = {f"{name}.swa": window}
    if ratio <= 1:
        return specs
    specs[f"{name}.attn"] = MLAAttentionSpec(
        block_size=256, head_size=512, tokens_per_state=ratio, state_content_bytes=584, **packed, **ALIKE
    )
    made, page = (2, 4) if ratio == 4 else (1, 8)
    state = {"block_size": page, "dtype": torch.float32, "sliding_window": made * ratio, **ALIKE}
    specs[f"{name}.state"] = SlidingWindowMLASpec(head_size=2 * made * 512, **state)
    if ratio == 4:
        specs[f"{name}.index"] = MLAAttentionSpec(
            block_size=256, head_size=132, dtype=torch.uint8, tokens_per_state=ratio, **ALIKE
        )
        specs[f"{name}.index_state"] = SlidingWindowMLASpec(head_size=2 * made * 128, **state)
    return specs


def config_of(longest: int, in_flight: int) -> types.SimpleNamespace:
    """What the groups read of vLLM's configuration."""
    return types.SimpleNamespace(
        cache_config=types.SimpleNamespace(get_resolved_kv_cache_layout=lambda: KVCacheLayout.BLHNC),
        model_config=types.SimpleNamespace(max_model_len=longest),
        parallel_config=types.SimpleNamespace(decode_context_parallel_size=1),
        max_in_flight_tokens=in_flight,
    )


def main() -> None:
    """Asks of all models."""
    question, said = json.loads(sys.argv[1]), {}
    for model, ratios in question["models"].items():
        specs = {name: spec for i, ratio in enumerate(ratios) for name, spec in of_layer(str(i), ratio).items()}
        groups = kv_cache_planning._get_packed_kv_cache_groups(config_of(1, 1), specs)
        pool = types.SimpleNamespace(kv_cache_groups=groups, num_blocks=1)
        said[model] = {
            "block_bytes": kv_cache_planning._get_kv_cache_bytes_per_block(groups, KVCacheLayout.BLHNC),
            "groups": len(groups),
            "request_blocks": [
                round(1 / get_max_concurrency_for_kv_cache_config(config_of(*tokens), pool))
                for tokens in question["tokens"]
            ],
        }
    print(json.dumps(said))


main()
