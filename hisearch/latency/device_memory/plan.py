"""Device memory of one rank: weights, activations, runtime, and the KV cache in the rest.

    usable    the driver's total, less the part that CUDA does not offer (``reserved_bytes`` of the Accelerator)
    vLLM      kv = usable * gpu_memory_utilization - weights - peak of the profiling run - memory outside PyTorch
              ``profiling_run`` restates that run, by version. Context and, before 0.20.0, CUDA graphs live in the
              share that gpu_memory_utilization leaves.
    SGLang    kv = (usable - runtime) * mem_fraction_static - weights
              Activations and CUDA graphs live in the other ``(usable - runtime) * (1 - mem_fraction_static)``; they
              must fit there.
    TRT-LLM   kv = (usable - runtime - weights - activation peak - CUDA graphs) * free_gpu_memory_fraction
              TensorRT-LLM measures the peak with a dummy batch of ``chunk_tokens`` tokens and takes the fraction of
              the rest (``KvCacheCreator`` in ``_torch/pyexecutor/_util.py`` and its logs, 1.1).

    weights   of the decoder, a vision tower and a head that drafts tokens (``draft_head``), and the cosines and sines
              of all positions
    peak      SGLang, TRT-LLM: max(one pass of ``chunk_tokens`` tokens through the widest layer, sampling for
              ``max_running_requests`` sequences)

``constants`` holds every constant with its unit, range and source.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from hisearch.latency.device_memory.compressed_pools import CompressedMemory, compressed_memory, divide_compressed
from hisearch.latency.device_memory.constants import COLLECTIVE_BYTES, CUDA_GRAPH_BYTES, GIB, RUNTIME_BYTES, constant
from hisearch.latency.device_memory.draft_head import head_weight_bytes_per_rank
from hisearch.latency.device_memory.kv_groups import KvGroups
from hisearch.latency.device_memory.profiling_run import (
    forward_bytes,
    outside_torch_bytes,
    peak_bytes,
    release_of,
    rotary_bytes,
    tower_bytes,
)
from hisearch.latency.device_memory.state_pools import StatePools, divide_states, divides_states
from hisearch.latency.device_memory.window_pools import WindowPools, divide
from hisearch.latency.parameters import (
    kv_bytes_per_token_per_rank,
    layer_kv_bytes_per_token,
    redundant_expert_bytes_per_rank,
    state_bytes_per_sequence_per_rank,
    weight_bytes_per_rank,
    window_kv_bytes_per_token_per_rank,
)
from hisearch.latency.sharding import Parallelism, parallelism_of, shard
from hisearch.specs.base import DType, EngineName
from hisearch.specs.deployments.deployment import EngineSpec
from hisearch.specs.deployments.graphs import graph_mode
from hisearch.specs.machines.hardware import AcceleratorSpec
from hisearch.specs.models.model import ModelSpec
from hisearch.specs.models.windows import keeps_window_pool, seen_tokens


class DoesNotFit(ValueError):  # noqa: N818
    """A model leaves no memory for KV on an accelerator.

    Attributes:
        bytes_short: bytes missing on each rank.
    """

    def __init__(self, message: str, bytes_short: float) -> None:
        super().__init__(message)
        self.bytes_short = bytes_short


@dataclass(frozen=True)
class Elsewhere:
    """Bytes on a worker's other devices, per rank: of weights, and available for all KV (None: KV is not there)."""

    weights_bytes: float = 0.0
    kv_space_bytes: float | None = None


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes per rank, and the KV capacity of the worker in tokens (every rank holds its shard of the same tokens).

    kv_groups: vLLM's groups of layers; capacity and bytes per token are then of the layers of one group.
    window_pools, state_pools: SGLang's, beside which ``kv_capacity_tokens`` is full attention's.
    window_kv_bytes: of windows and states, where they are not in groups.
    """

    weights_bytes: float
    activation_bytes: float
    runtime_bytes: float
    window_kv_bytes: float
    kv_bytes_per_token_per_rank: float
    kv_capacity_tokens: int
    kv_groups: KvGroups | None = None
    window_pools: WindowPools | None = None
    state_pools: StatePools | None = None
    page_tokens: int = 1

    def requests_tokens(self, context_tokens: float) -> float:
        """Tokens of decoding requests with ``context_tokens`` each that the KV pool holds."""
        if self.window_pools is not None:
            return self.window_pools.requests_tokens(context_tokens, self.page_tokens)
        if self.state_pools is not None:
            return min(float(self.kv_capacity_tokens), self.state_pools.running_requests * context_tokens)
        if self.kv_groups is None:
            return float(self.kv_capacity_tokens)
        return self.kv_capacity_tokens * context_tokens / self.kv_groups.held_tokens(context_tokens)

    @property
    def least_kv_tokens(self) -> int:
        """Tokens that fit whatever their requests: with groups, each page has a block in every one of them."""
        return self.kv_capacity_tokens // (1 if self.kv_groups is None else self.kv_groups.count)

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
    engine_version: str | None = None,
    eager: bool | None = None,
    kv_groups: KvGroups | None = None,
) -> MemoryPlan:
    """How one rank's memory is divided; ``weight_dtype`` None is the model's own.

    ``parallelism``: the split, where it is more than tensor parallelism; the capacity is then of one attention group.
    ``elsewhere``: bytes on other devices than the accelerator. ``engine_version``: vLLM's, which profiles differently
    by version; None: the engine's own. ``eager``: without compilation and CUDA graphs; None: as the engine's settings.
    ``kv_groups``: in which vLLM keeps layers with windows or linear attention; their blocks come from one pool. Under
    SGLang layers with windows have a pool of their own (``window_pools``), or keep all KV. Otherwise they keep the
    window of every running request and one chunk, under vLLM all KV where windows are chunks. Linear-attention layers
    have a pool of states under SGLang (``state_pools``). Elsewhere they keep a state of every running request, and one
    for each drafted token of it. Such memory is set aside first; the capacity counts the KV of the other layers, and of
    a head that drafts tokens.

    Windows and entries of compressed attention: ``compressed_pools``.

    Raises:
        InvalidParallelism: the model cannot be split over ``tensor_parallel`` ranks.
        DoesNotFit: less than one page of KV is left, or SGLang's activations do not fit next to the static share.
    """
    dtype = weight_dtype if weight_dtype is not None else model.weight_dtype
    split = parallelism_of(tensor_parallel, parallelism)
    weights = _weights_bytes(model, split, dtype, engine, elsewhere)
    what = f"{model.huggingface_id} ({dtype}, {split}) on {accelerator_name}"
    eager = engine.enforce_eager if eager is None else eager
    version = engine.version if engine_version is None else engine_version
    activation, runtime, budget = _budget(what, model, split, accelerator, engine, weights, version, eager=eager)
    kv = _kv_layout(model, split, kv_dtype, engine, kv_groups, budget - weights)
    spare = budget - weights - kv.set_aside
    if elsewhere.kv_space_bytes is not None:
        # The accelerator holds no KV, but must fit the rest.
        spare = elsewhere.kv_space_bytes - kv.set_aside if spare + kv.set_aside >= 0 else spare
    page = engine.page_size if kv_groups is None else kv_groups.engine(engine).page_size
    page *= split.decode_context
    window, state_pools = kv.set_aside, None
    if divides_states(engine, model):
        state_pools = _state_pools(what, spare, state_bytes_per_sequence_per_rank(model, split), engine)
        window, spare = state_pools.taken_bytes, spare - state_pools.taken_bytes
    if spare < kv.per_token * page:
        short = kv.per_token * page - spare
        raise _short_of_kv(what, short, weights, budget, usable_bytes(accelerator), engine)
    pools = None
    capacity = int(spare // (kv.per_token * page)) * page
    if keeps_window_pool(engine.name, model):
        pools = _window_pools(what, spare, kv, model, engine)
        capacity, window = pools.full, window + pools.windowed * kv.window_per_token
    return MemoryPlan(weights, activation, runtime, window, kv.per_token, capacity, kv_groups, pools, state_pools, page)


def _weights_bytes(
    model: ModelSpec, split: Parallelism, dtype: DType, engine: EngineSpec, elsewhere: Elsewhere
) -> float:
    """Of the decoder with redundant experts, a tower and a head that drafts, and the cosines of all positions."""
    redundant = redundant_expert_bytes_per_rank(model, split, dtype, engine.experts.redundant)
    weights = weight_bytes_per_rank(model, split, dtype) + redundant - elsewhere.weights_bytes
    weights += rotary_bytes(model) + tower_bytes(model, split)
    weights += head_weight_bytes_per_rank(model, split, dtype, engine.speculation)
    return weights


def _budget(
    what: str,
    model: ModelSpec,
    split: Parallelism,
    accelerator: AcceleratorSpec,
    engine: EngineSpec,
    weights: float,
    version: str,
    *,
    eager: bool,
) -> tuple[float, float, float]:
    """Bytes of activations and of the runtime, and what is left for weights and KV.

    Raises:
        DoesNotFit: SGLang's activations do not fit next to the static share.
    """
    usable = usable_bytes(accelerator)
    if engine.name != "vllm":
        return _static_share(what, model, split, engine, usable, weights, eager=eager)
    release = release_of(version)
    graphs = not eager and graph_mode(engine) != "none"
    # Every rank that shares prompts profiles as many tokens as a whole step has.
    activation = peak_bytes(model, split.as_groups, engine, release, eager=eager)
    runtime = outside_torch_bytes(model, split, accelerator, engine, release, graphs=graphs)
    return activation, runtime, usable * engine.memory_fraction - runtime - activation


class _KvLayout(NamedTuple):
    """Bytes a token of a pool, and of its layers with windows where they have one; and what is set aside of memory."""

    per_token: float
    window_per_token: float
    set_aside: float
    compressed: CompressedMemory | None


def _kv_layout(
    model: ModelSpec,
    split: Parallelism,
    kv_dtype: DType,
    engine: EngineSpec,
    kv_groups: KvGroups | None,
    space_bytes: float,
) -> _KvLayout:
    """How KV lies in ``space_bytes``, see ``plan_memory``; states without a pool of their own are set aside."""
    per_token = kv_bytes_per_token_per_rank(model, split, kv_dtype)
    states = 1
    if engine.speculation is not None:
        per_token += engine.speculation.head_layers * layer_kv_bytes_per_token(model, shard(model, split), kv_dtype)
        states += engine.speculation.draft_tokens
    set_aside = _window_bytes(model, split, kv_dtype, engine)
    window_per_token = window_kv_bytes_per_token_per_rank(model, split, kv_dtype)
    compressed = compressed_memory(model, split.pipeline, kv_dtype, engine, space_bytes)
    if compressed is not None:
        per_token, window_per_token, set_aside = compressed
    elif kv_groups is not None:
        of_layer = kv_groups.block_bytes or layer_kv_bytes_per_token(model, shard(model, split), kv_dtype)
        per_token, set_aside = kv_groups.layers * of_layer, 0.0
    elif keeps_window_pool(engine.name, model):
        set_aside = 0.0
    elif engine.name == "sglang" or (engine.name == "vllm" and model.windows_are_chunks):
        per_token, set_aside = per_token + window_per_token, 0.0
    if not divides_states(engine, model) and (kv_groups is None or not kv_groups.states):
        set_aside += engine.max_running_requests * states * state_bytes_per_sequence_per_rank(model, split)
    return _KvLayout(per_token, window_per_token, set_aside, compressed)


def _window_pools(what: str, spare: float, kv: _KvLayout, model: ModelSpec, engine: EngineSpec) -> WindowPools:
    """SGLang's pools of ``spare`` bytes; else DoesNotFit."""
    if kv.compressed is not None and model.compressed_attention is not None:
        pools = divide_compressed(spare, kv.compressed, engine, model.compressed_attention)
    else:
        pools = divide(spare, kv.per_token, kv.window_per_token, engine, seen_tokens(model))
    _check_window_pools(what, spare, pools, kv.per_token, kv.window_per_token, engine)
    return pools


def _static_share(
    what: str,
    model: ModelSpec,
    split: Parallelism,
    engine: EngineSpec,
    usable: float,
    weights: float,
    *,
    eager: bool,
) -> tuple[float, float, float]:
    """Bytes of SGLang's and TensorRT-LLM's activations and runtime, and what is left for weights and KV.

    Raises:
        DoesNotFit: SGLang's activations do not fit next to the static share.
    """
    sampling = engine.max_running_requests * model.vocab_size * constant("other_sampler")
    activation = max(forward_bytes(model, split, engine.chunk_tokens), sampling)
    runtime = taken_bytes(engine.name, split)
    graph_bytes = 0.0 if eager or graph_mode(engine) == "none" else CUDA_GRAPH_BYTES
    available = usable - runtime
    if engine.name == "trtllm":
        return activation, runtime, weights + (available - weights - activation - graph_bytes) * engine.memory_fraction
    budget = available * engine.memory_fraction
    _check_headroom(what, available - budget, activation + graph_bytes, engine)
    return activation, runtime, budget


def usable_bytes(accelerator: AcceleratorSpec) -> float:
    """Bytes that CUDA offers of the memory that the driver reports."""
    reserved = accelerator.reserved_bytes
    if reserved is None:
        reserved = constant("driver") + constant("driver_share") * accelerator.memory_bytes
    return accelerator.memory_bytes - reserved


def taken_bytes(engine: EngineName, split: Parallelism) -> float:
    """Bytes that SGLang and TensorRT-LLM see in use before they load anything."""
    return RUNTIME_BYTES[engine] + (COLLECTIVE_BYTES[engine] if split.ranks > 1 else 0.0)


def _window_bytes(model: ModelSpec, split: Parallelism, kv_dtype: DType, engine: EngineSpec) -> float:
    if not model.sliding_window_tokens:
        return 0.0
    tokens = engine.max_running_requests * model.sliding_window_tokens + engine.chunk_tokens
    return tokens * window_kv_bytes_per_token_per_rank(model, split, kv_dtype)


def _check_window_pools(
    what: str, spare: float, pools: WindowPools, per_token: float, window_per_token: float, engine: EngineSpec
) -> None:
    """Refuse SGLang's pools of ``spare`` bytes, of so many bytes a token, that leave windows too little."""
    page = engine.page_size
    least = pools.window_tokens + page
    if pools.full > 0 and pools.windowed > least:
        return
    # The engine does not start.
    missing = (least + page) * (per_token / engine.swa_full_tokens_ratio + window_per_token)
    raise DoesNotFit(
        f"{what} does not fit: {pools.windowed} tokens of KV for layers with a window, which need more than "
        f"{least} (a window and a page); raise swa_full_tokens_ratio or memory_fraction",
        max(missing - spare, per_token * page),
    )


def _state_pools(what: str, spare: float, state_bytes: float, engine: EngineSpec) -> StatePools:
    """SGLang's pools of ``spare`` bytes, with states of ``state_bytes`` bytes; else DoesNotFit."""
    pools = divide_states(spare, state_bytes, engine)
    if pools.running_requests > 0 or spare <= pools.taken_bytes:
        return pools
    ratio = engine.mamba_full_memory_ratio
    needed = (pools.request_states + 1) * state_bytes * (1 + ratio) / ratio
    raise DoesNotFit(
        f"{what} does not fit: {pools.states} states of linear attention; a running request needs "
        f"{pools.request_states}; raise mamba_full_memory_ratio or memory_fraction",
        needed - spare,
    )


def _short_of_kv(
    what: str, short: float, weights: float, budget: float, usable: float, engine: EngineSpec
) -> DoesNotFit:
    return DoesNotFit(
        f"{what} does not fit: {short / GIB:.2f} GiB short on each rank: weights {weights / GIB:.2f} GiB, of "
        f"{budget / GIB:.2f} GiB that engine {engine.name} leaves for weights and KV at memory_fraction "
        f"{engine.memory_fraction:g} of {usable / GIB:.2f} GiB",
        short,
    )


def _check_headroom(what: str, headroom: float, needed: float, engine: EngineSpec) -> None:
    if needed > headroom:
        short = needed - headroom
        raise DoesNotFit(
            f"{what} does not fit: {short / GIB:.2f} GiB short on each rank: activations and CUDA graphs need "
            f"{needed / GIB:.2f} GiB, memory_fraction {engine.memory_fraction:g} leaves {headroom / GIB:.2f} GiB; "
            "lower memory_fraction, chunk_tokens or max_running_requests",
            short,
        )
