"""Prints the KV groups that an installed vLLM makes of layers with full attention and with a window, as JSON.

Run by a Python that has vLLM, on a JSON list of cases: layers, KV heads and widths of a key and of a value, of either
kind, tokens of a block and of the window.
"""

from __future__ import annotations

import json
import sys


def groups(full: list[int], windowed: list[int], block: int, window: int) -> list[dict[str, int]]:
    """Each group's layers, tokens of a block and bytes of it in one layer."""
    import torch
    from vllm.v1.core import kv_cache_planning as planning
    from vllm.v1.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec

    def shape(kind: list[int]) -> dict[str, object]:
        return {
            "block_size": block, "num_kv_heads": kind[1], "head_size": kind[2], "head_size_v": kind[3],
            "dtype": torch.bfloat16,
        }  # fmt: skip

    specs = {f"full.{layer}": FullAttentionSpec(**shape(full)) for layer in range(full[0])}
    specs |= {
        f"window.{layer}": SlidingWindowSpec(sliding_window=window, **shape(windowed)) for layer in range(windowed[0])
    }
    made = planning._get_kv_cache_groups_uniform_page_size(planning.unify_kv_cache_spec_page_size(specs))
    return [
        {
            "windowed": isinstance(group.kv_cache_spec, SlidingWindowSpec),
            "layers": len(group.layer_names),
            "block_tokens": group.kv_cache_spec.block_size,
            "block_bytes": group.kv_cache_spec.page_size_bytes,
        }
        for group in made
    ]


if __name__ == "__main__":
    print(json.dumps([groups(*case) for case in json.loads(sys.argv[1])]))
