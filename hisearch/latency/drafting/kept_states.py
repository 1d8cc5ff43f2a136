"""Which state of linear attention a sequence keeps after its drafted tokens are checked, and what the copy costs.

A step that checks d drafts leaves 1 + d states of a sequence. The one behind the last accepted token is kept.

    vLLM                       nothing is copied: the next step starts from that state's slot
    SGLang, TensorRT-LLM       a kernel copies it                2 * bytes / (bandwidth * COPIED)
    SGLang before 0.5.10       PyTorch gathers and scatters it   2 * elements / (multiprocessors * INDEXED_PER_S)

Sources: vLLM ``fused_recurrent.py``; SGLang 0.5.9 and 0.5.10, ``layers/attention/hybrid_linear_attn_backend.py``,
``update_mamba_state_after_mtp_verify``; TensorRT-LLM pull request 14869.
"""

from __future__ import annotations

import numpy as np

from hisearch.latency.costs import StepCosts
from hisearch.latency.knots import token_knots
from hisearch.latency.parameters import state_bytes_per_sequence_per_rank
from hisearch.latency.sharding import Parallelism
from hisearch.specs.base import DTYPE_BYTES
from hisearch.specs.deployments.engine import EngineSpec
from hisearch.specs.machines.hardware import AcceleratorSpec
from hisearch.specs.models.model import ModelSpec
from hisearch.specs.versions import precedes

#: Elements a second that a multiprocessor gathers or scatters in PyTorch's indexing kernels. On eight H20 of 78 each, a
#: kernel in their place made 1,901 tokens a second of 1,831: of 48 sequences of Qwen3-Next that make 3.5 to 4 tokens a
#: step (SGLang, pull request 18088), it saved 3.5 ms of a step, and took 0.3 itself. 0.5e9 to 2e9 is plausible: an
#: MI308X reaches 1.5e9 (pull request 33839).
INDEXED_PER_S = 0.76e9
#: Share of the memory bandwidth that a kernel for such copies attains on a B300 (TensorRT-LLM, pull request 14869).
COPIED = 0.85
#: First release of SGLang with a kernel (``fused_mamba_state_scatter_with_mask``).
COPIES_SINCE = "0.5.10"


def kept_state_s(
    model: ModelSpec, split: Parallelism, accelerator: AcceleratorSpec, engine: EngineSpec, multiprocessors: int | None
) -> float:
    """Seconds in which a sequence's state is kept after a check of drafts; 0 where none is copied.

    Raises:
        ValueError: an engine that indexes, on an accelerator whose ``multiprocessors`` are not known.
    """
    if model.linear_attention is None or engine.name == "vllm":
        return 0.0
    state_bytes = state_bytes_per_sequence_per_rank(model, split)
    if engine.name == "sglang" and engine.version and precedes(engine.version, COPIES_SINCE):
        if multiprocessors is None:
            raise ValueError("copies of drafted states: the accelerator's multiprocessors are not known")
        elements = state_bytes / DTYPE_BYTES[model.linear_attention.state_dtype]
        return 2.0 * elements / (multiprocessors * INDEXED_PER_S)
    return 2.0 * state_bytes / (accelerator.memory_bandwidth_bytes_per_s * COPIED)


def with_kept_states(costs: StepCosts, each_s: float) -> StepCosts:
    """``costs`` of an engine that drafts, with ``each_s`` for every decoding sequence of a step, once."""
    if not each_s:
        return costs
    draft = costs.draft
    # The drafter's layers count as a share of the decodes' attention, at each of its passes.
    once = 1.0 if draft is None else 1.0 + draft.tokens * draft.share
    sequences = np.array(token_knots(costs.decode_s.shape[0]), dtype=np.float64)
    return costs._replace(decode_s=costs.decode_s + (each_s / once) * sequences[:, None])
