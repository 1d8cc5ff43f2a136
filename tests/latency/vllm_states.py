"""States and groups of layers as vLLM 0.33.0's own code has them; run in the engine's environment, prints JSON.

Of Kimi K3 on eight ranks and Nemotron 3 Super on four: bytes of a layer's state, layers of each group, and how many
groups have states.
"""

from __future__ import annotations

import json
from typing import Any

import torch
from vllm.model_executor.layers.mamba.mamba_utils import MambaStateDtypeCalculator, MambaStateShapeCalculator
from vllm.v1.core.kv_cache_planning import _get_kv_cache_groups_uniform_page_size
from vllm.v1.kv_cache_interface import FullAttentionSpec, MambaSpec, MLAAttentionSpec


def grouped(full: int, states: int, attention: Any, shape: Any, dtypes: Any) -> dict[str, Any]:
    """Bytes and groups of a model's layers; ``attention``: the spec of its layers with KV."""
    spec = MambaSpec(shapes=shape, dtypes=dtypes, block_size=attention.block_size, mamba_cache_mode="align")
    state = spec.page_size_bytes
    padded = MambaSpec(
        shapes=shape, dtypes=dtypes, block_size=attention.block_size, mamba_cache_mode="align",
        page_size_padded=attention.page_size_bytes,
    )  # fmt: skip
    layers = {f"a{i}": attention for i in range(full)} | {f"s{i}": padded for i in range(states)}
    groups = _get_kv_cache_groups_uniform_page_size(layers)
    return {
        "state_bytes": state,
        "layers": max(len(group.layer_names) for group in groups),
        "groups": len(groups),
        "states": sum(isinstance(group.kv_cache_spec, MambaSpec) for group in groups),
    }


shapes, dtypes = MambaStateShapeCalculator, MambaStateDtypeCalculator
latent = MLAAttentionSpec(block_size=768, num_kv_heads=1, head_size=576, dtype=torch.bfloat16)
heads = FullAttentionSpec(block_size=2080, num_kv_heads=1, head_size=128, dtype=torch.bfloat16)
kda = shapes.kda_state_shape(8, 96, 128), dtypes.kda_state_dtype(torch.bfloat16, "auto")
mamba2 = (
    shapes.mamba2_state_shape(4, 8192, 8, 128, 64, 128, 4),
    dtypes.mamba2_state_dtype(torch.bfloat16, "auto", "float32"),
)
print(json.dumps({"kimi-k3": grouped(24, 69, latent, *kda), "super": grouped(8, 40, heads, *mamba2)}))
