"""What an estimator says of models whose recurrent states it prices or caches by rules of another kind (law L8)."""

from __future__ import annotations

from hisearch.latency.device_memory.kv_groups import keeps_all_states
from hisearch.specs.deployments.engine import EngineSpec
from hisearch.specs.models.model import ModelSpec

#: Kinds of recurrent states, as people call them.
STATE_TITLES = {"gated_delta": "gated delta rule", "kda": "Kimi Delta Attention", "mamba2": "Mamba-2"}


def state_warnings(engine: EngineSpec, model: ModelSpec, *, fitted: bool) -> tuple[str, ...]:
    """Warnings of layers with recurrent states; ``fitted``: a law of their kernels prices prompts."""
    linear, warnings = model.linear_attention, []
    if linear is None:
        return ()
    if not fitted and linear.kind != "gated_delta":
        warnings.append(f"no law of {STATE_TITLES[linear.kind]}: the roofline prices its kernels")
    if keeps_all_states(engine, model):
        warnings.append(
            f"vLLM {engine.version} keeps states of Mamba-2 at every chunk of its kernels, which is not simulated: "
            "states of running requests are set aside, and a cached prefix counts as having its states"
        )
    return tuple(warnings)
