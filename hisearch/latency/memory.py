"""Device memory of one rank: weights, activations, runtime, and the KV cache that the rest holds.

    usable = memory that the driver reports - DRIVER_BYTES
vLLM      kv = usable * gpu_memory_utilization - weights - activation peak - runtime
          The engine measures the activation peak with a dummy batch of ``chunk_tokens`` tokens and
          ``max_running_requests`` sampling sequences. The CUDA context and CUDA graphs live in what
          gpu_memory_utilization leaves.
SGLang    kv = (usable - runtime) * mem_fraction_static - weights
          Activations and CUDA graphs live in the other ``(usable - runtime) * (1 - mem_fraction_static)``; they must
          fit there.
TRT-LLM   kv = (usable - runtime - weights - activation peak - CUDA graphs) * free_gpu_memory_fraction
          TensorRT-LLM measures the peak with a dummy batch of ``chunk_tokens`` tokens and takes the fraction of what
          is left (``KvCacheCreator`` in ``_torch/pyexecutor/_util.py`` and its logs, 1.1).

Activation peak = max(token part, sampling part), bytes of one rank:
    token part     2 bytes * chunk_tokens * (3 h + max(qkv + attention output, FFN in + FFN out)); for experts the FFN
                   widths count once per routed expert, and the output buffer is shared with the wider of the two
    sampling part  max_running_requests * vocab * SAMPLER_BYTES

Where the constants come from (all per rank; GiB = 2**30 bytes):
    DRIVER_BYTES          nvidia-smi's total less what CUDA offers: H100 79.65 - 79.14 GiB, H200 140.40 - 139.81, A10G
                          22.49 - 22.07 ("total_gpu_memory" of vLLM's start-up logs, torch's total_memory).
    SAMPLER_BYTES vllm    Llama-3.1-8B, 256 sequences, H100: "activation peak memory takes 1.19GiB", and 1.26 GiB
                          at TP 1 and TP 2 alike (vLLM pull request 10511): 39 bytes per sequence and vocabulary entry.
    SAMPLER_BYTES sglang  Assumed: 16-bit and float32 logits and probabilities. trtllm: the same, assumed.
    RUNTIME vllm          TP 1: "non_torch_memory takes 0.12GiB" (same log); TP > 1 adds NCCL's and all-reduce buffers,
                          3.58 - 1.79 GiB in the same pull request.
    RUNTIME sglang        The same buffers, and 0.5 GiB of CUDA context, which SGLang's "available memory" excludes.
    RUNTIME trtllm        As SGLang's, assumed: its peak counts what is used outside PyTorch too.
    CUDA_GRAPH_BYTES      Assumed: what SGLang's and TensorRT-LLM's decode graphs take.
"""

from __future__ import annotations

from dataclasses import dataclass

from hisearch.latency.parameters import (
    kv_bytes_per_token_per_rank,
    redundant_expert_bytes_per_rank,
    state_bytes_per_sequence_per_rank,
    weight_bytes_per_rank,
    window_kv_bytes_per_token_per_rank,
)
from hisearch.latency.sharding import Parallelism, parallelism_of, shard
from hisearch.specs.base import DType
from hisearch.specs.deployment import EngineSpec
from hisearch.specs.hardware import AcceleratorSpec
from hisearch.specs.model import ModelSpec

GIB = float(2**30)

SAMPLER_BYTES: dict[str, float] = {"vllm": 39.0, "sglang": 14.0, "trtllm": 14.0}
RUNTIME_BYTES: dict[str, float] = {"vllm": 0.12 * GIB, "sglang": 0.62 * GIB, "trtllm": 0.62 * GIB}
DRIVER_BYTES = 0.5 * GIB
COMMUNICATION_BYTES = 1.79 * GIB
CUDA_GRAPH_BYTES = 1.0 * GIB


class DoesNotFit(ValueError):  # noqa: N818
    """A model leaves no room for KV on an accelerator.

    Attributes:
        bytes_short: bytes missing on each rank.
    """

    def __init__(self, message: str, bytes_short: float) -> None:
        super().__init__(message)
        self.bytes_short = bytes_short


@dataclass(frozen=True)
class Elsewhere:
    """What other devices of a worker hold for each rank: bytes of weights, and their room for all KV (None: none)."""

    weights_bytes: float = 0.0
    kv_room_bytes: float | None = None


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes per rank, and the KV capacity of the worker in tokens (every rank holds its shard of the same tokens)."""

    weights_bytes: float
    activation_bytes: float
    runtime_bytes: float
    window_kv_bytes: float
    kv_bytes_per_token_per_rank: float
    kv_capacity_tokens: int

    @property
    def kv_bytes(self) -> float:
        """Bytes of the KV pool on each rank."""
        return self.kv_capacity_tokens * self.kv_bytes_per_token_per_rank


def plan_memory(
    model: ModelSpec,
    accelerator: AcceleratorSpec,
    *,
    tensor_parallel: int,
    parallelism: Parallelism | None = None,
    weight_dtype: DType | None,
    kv_dtype: DType,
    engine: EngineSpec,
    accelerator_name: str = "accelerator",
    elsewhere: Elsewhere = Elsewhere(),
) -> MemoryPlan:
    """How one rank's memory is divided; ``weight_dtype`` None is the model's own.

    ``parallelism`` says how the model is split where that is more than tensor parallelism; the capacity is then that of
    one attention group. ``elsewhere`` is what lies on other devices than the accelerator.
    Layers with a sliding window keep the window of every running request and one chunk, layers of linear attention a
    state of every running request; their room is set aside first, and the capacity counts what the other layers keep.

    Raises:
        InvalidParallelism: the model cannot be split over ``tensor_parallel`` ranks.
        DoesNotFit: less than one page of KV is left, or SGLang's activations do not fit beside the static share.
    """
    dtype = weight_dtype if weight_dtype is not None else model.weight_dtype
    split = parallelism_of(tensor_parallel, parallelism)
    redundant = redundant_expert_bytes_per_rank(model, split, dtype, engine.experts.redundant)
    weights = weight_bytes_per_rank(model, split, dtype) + redundant - elsewhere.weights_bytes
    activation = activation_peak_bytes(model, split, engine)
    runtime = RUNTIME_BYTES[engine.name] + (COMMUNICATION_BYTES if split.ranks > 1 else 0.0)
    what = f"{model.huggingface_id} ({dtype}, {split}) on {accelerator_name}"
    usable = accelerator.memory_bytes - DRIVER_BYTES
    if engine.name == "vllm":
        room = usable * engine.memory_fraction - runtime - activation
    elif engine.name == "trtllm":
        free = usable - runtime - weights - activation - CUDA_GRAPH_BYTES
        room = weights + free * engine.memory_fraction
    else:
        available = usable - runtime
        room = available * engine.memory_fraction
        _check_headroom(what, available - room, activation + CUDA_GRAPH_BYTES, engine)
    per_token = kv_bytes_per_token_per_rank(model, split, kv_dtype)
    window = _window_bytes(model, split, kv_dtype, engine)
    window += engine.max_running_requests * state_bytes_per_sequence_per_rank(model, split)
    spare = room - weights - window
    if elsewhere.kv_room_bytes is not None:
        # The accelerator holds no KV, but must have room for the rest.
        spare = elsewhere.kv_room_bytes - window if spare + window >= 0 else spare
    page = engine.page_size
    if spare < per_token * page:
        short = per_token * page - spare
        raise DoesNotFit(
            f"{what} does not fit: {short / GIB:.2f} GiB short on each rank: weights {weights / GIB:.2f} GiB, of "
            f"{room / GIB:.2f} GiB that engine {engine.name} leaves for weights and KV at memory_fraction "
            f"{engine.memory_fraction:g} of {usable / GIB:.2f} GiB",
            short,
        )
    capacity = int(spare // (per_token * page)) * page
    return MemoryPlan(weights, activation, runtime, window, per_token, capacity)


def activation_peak_bytes(model: ModelSpec, split: int | Parallelism, engine: EngineSpec) -> float:
    """Most bytes of temporaries on one rank while a full batch runs (see the module's law)."""
    part = shard(model, split)
    if model.mla is None:
        attention = (2 * part.heads + 2 * part.kv_heads) * model.head_dim
    else:
        key = model.mla.qk_nope_head_dim + model.mla.qk_rope_head_dim
        attention = part.heads * (2 * key + 2 * model.mla.v_head_dim)
    groups, together = part.parallelism.attention_data, part.parallelism.ffn_groups
    widest: float = max(attention, (3 if model.gated_ffn else 2) * part.intermediate * together)
    if model.moe is not None:
        up = (2 if model.gated_ffn else 1) * part.expert_intermediate
        uses = model.moe.experts_per_token * groups / part.parallelism.expert
        routed = uses * (max(up, model.hidden_size) + part.expert_intermediate)
        widest = max(widest, routed + 3 * part.shared_intermediate * together)
    tokens = 2.0 * engine.chunk_tokens * (3 * model.hidden_size + widest)
    sampling = engine.max_running_requests * model.vocab_size * SAMPLER_BYTES[engine.name]
    return max(tokens, sampling)


def _window_bytes(model: ModelSpec, split: Parallelism, kv_dtype: DType, engine: EngineSpec) -> float:
    if not model.sliding_window_tokens:
        return 0.0
    tokens = engine.max_running_requests * model.sliding_window_tokens + engine.chunk_tokens
    return tokens * window_kv_bytes_per_token_per_rank(model, split, kv_dtype)


def _check_headroom(what: str, headroom: float, needed: float, engine: EngineSpec) -> None:
    if needed > headroom:
        short = needed - headroom
        raise DoesNotFit(
            f"{what} does not fit: {short / GIB:.2f} GiB short on each rank: activations and CUDA graphs need "
            f"{needed / GIB:.2f} GiB, memory_fraction {engine.memory_fraction:g} leaves {headroom / GIB:.2f} GiB; "
            "lower memory_fraction, chunk_tokens or max_running_requests",
            short,
        )
