"""Run with the Python of an environment that has vLLM 0.33.0: its own groups of DeepSeek-V4's layers.

Arguments: tokens of an entry of each layer as JSON, tokens of a request, tokens in flight. Prints JSON.
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


def main() -> None:
    """Bytes of a block, and blocks of a request."""
    ratios, longest, in_flight = json.loads(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    specs = {name: spec for i, ratio in enumerate(ratios) for name, spec in of_layer(str(i), ratio).items()}
    layout = KVCacheLayout.BLHNC
    config = types.SimpleNamespace(
        cache_config=types.SimpleNamespace(get_resolved_kv_cache_layout=lambda: layout),
        model_config=types.SimpleNamespace(max_model_len=longest),
        parallel_config=types.SimpleNamespace(decode_context_parallel_size=1),
        max_in_flight_tokens=in_flight,
    )
    groups = kv_cache_planning._get_packed_kv_cache_groups(config, specs)
    pool = types.SimpleNamespace(kv_cache_groups=groups, num_blocks=1)
    print(
        json.dumps(
            {
                "block_bytes": kv_cache_planning._get_kv_cache_bytes_per_block(groups, layout),
                "groups": len(groups),
                "request_blocks": round(1 / get_max_concurrency_for_kv_cache_config(config, pool)),
            }
        )
    )


main()
