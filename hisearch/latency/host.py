"""Host work of an engine in step costs.

Notation
    L   layers of the model
    k   kernels of a layer on the device; o operators that Python dispatches for it where no CUDA graph holds it; q of
        them stay outside graphs that hold the rest in pieces

    device: host_s = step_s + L * k * kernel_s, host_per_sequence_s = per_sequence_s
    host:   floor  = schedule_s + schedule_sequence_s * sequences + launches
            launches = 0, L * q * launch_s or L * o * launch_s      one graph, graphs in pieces, none

An engine that forms a batch while the one before it runs takes the longer of both (``StepCosts.floor``). One that does
not schedules first, and then takes the longer of launches and device.

Both are counted in the model code of vLLM 0.15 and SGLang 0.5.9. Views cost no operator; splits, copies and metadata of
prompts do. A kernel of Triton that Python launches counts as two: 40 to 62 us (Triton, pull request 3503), where an
operator of PyTorch takes 23 (issue 459). Linear attention has eleven. Experts' tables measure all they do as one:

                                                                          kernels    operators    products
    dense attention     norm, qkv, rotary, KV write, attention, output          6           8           2
    MLA                 norm, down, 2 norms, 2 up, rotary, copies of queries
                        and keys, 2 KV writes, attention, output               13          20           4
    linear attention    norm, 2 inputs, convolution, gates, delta rule,
                        norm, output                                           10          45           2
    dense FFN           norm, gate and up, activation, down                     4           4           2
    routed experts      norm, router, top k, experts, sum                       5          18
    shared experts      gate and up, activation, down, sum                      4           4           2
    narrow formats      a pass that quantises, before each product
    tensor parallelism  an all-reduce behind attention and behind the FFN       2           2
    attention groups    a gather and a scatter around the FFN                   2           2
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hisearch.latency.costs import FrontEnd, HostFloor, StepCosts
from hisearch.latency.priced import PricedWorker
from hisearch.latency.sampling import sort_s
from hisearch.latency.sharding import Parallelism, linear_layers, moe_layers
from hisearch.specs.base import DType
from hisearch.specs.machines.host import EngineOverhead, HostTimes
from hisearch.specs.models.model import ModelSpec

#: Kernels of a layer's parts, operators that Python dispatches for them, and products among them.
GQA, MLA, LINEAR = (6, 8, 2), (13, 20, 4), (10, 45, 2)
FFN, ROUTED, SHARED = (4, 4, 2), (5, 18, 0), (4, 4, 2)
ALL_REDUCE_KERNELS, GROUP_KERNELS = 2, 2
#: Of a layer, launched beside its pieces of CUDA graph: a piece, KV write, attention, and what Python does for these.
PIECE_KERNELS = 4
#: Engines whose graphs hold steps with prompts in pieces: vLLM (``FULL_AND_PIECEWISE``, its default since 0.11).
IN_PIECES = frozenset({"vllm"})
#: Formats whose activations are quantised before each product.
QUANTISED = frozenset({"fp8", "nvfp4"})
#: More tokens than any step has.
ANY_TOKENS = 2**40


class Launches(NamedTuple):
    """Operators that the host dispatches one by one in a step; see ``HostFloor`` for when.

    kernels: of a step, in or out of a graph. stages: of a pipeline, each of which schedules a pass, and dispatches its
        own layers of it.
    """

    kernels: int
    pieces: int
    eager: int
    graph_tokens: int
    stages: int = 1


def launches_of(
    model: ModelSpec, split: Parallelism, weight_dtype: DType | None, engine: str, graph_batches: list[int]
) -> Launches:
    """Kernels of a step of ``model``, split so, under ``engine`` with CUDA graphs for ``graph_batches`` tokens.

    Args:
        model: architecture.
        split: over ranks; each has a host process that launches its own kernels.
        weight_dtype: format of the weights; None: the model's own.
        engine: its name; whose graphs.
        graph_batches: rising; without any, graphs hold steps of decodes alone, however many.
    """
    experts, linear = moe_layers(model), linear_layers(model)
    dense, softmax = model.layers - experts, model.layers - linear
    shared = model.moe is not None and model.moe.shared_experts > 0
    parts = [(softmax, MLA if model.mla is not None else GQA), (linear, LINEAR), (dense, FFN)]
    parts += [(experts, ROUTED), (experts * shared, SHARED)]
    quantises = (weight_dtype or model.weight_dtype) in QUANTISED
    exchanges = ALL_REDUCE_KERNELS * (split.tensor > 1) + GROUP_KERNELS * (split.attention_data > 1)
    kernels, operators = (
        model.layers * exchanges + sum(layers * (counts[which] + quantises * counts[2]) for layers, counts in parts)
        for which in (0, 1)
    )
    pieces = model.layers * PIECE_KERNELS if engine in IN_PIECES else operators
    graph_tokens = graph_batches[-1] if graph_batches else ANY_TOKENS
    return Launches(kernels, pieces, operators, graph_tokens, split.pipeline)


def with_host_times(device: StepCosts, times: HostTimes, launches: Launches, *, overlap: bool) -> StepCosts:
    """Costs of a device that waits for nobody, with an engine's host work.

    ``overlap``: the host works at one step while the device runs another.
    """
    pieces_s, eager_s = times.launch_s * launches.pieces, times.launch_s * launches.eager
    # Of a pass through all stages, which work at as many passes at a time.
    step_s, sequence_s = launches.stages * times.schedule_s, launches.stages * times.schedule_sequence_s
    floor = HostFloor(step_s, sequence_s, pieces_s, eager_s, launches.graph_tokens)
    own_s, each_s = times.step_s + launches.kernels * times.kernel_s, times.per_sequence_s
    if not overlap:
        own_s, each_s = own_s + step_s, each_s + sequence_s
    return device._replace(host_s=own_s, host_per_sequence_s=each_s, floor=floor if any(floor[:4]) else None)


def with_overhead(device: StepCosts, overhead: EngineOverhead, priced: PricedWorker) -> StepCosts:
    """``with_host_times`` of a worker as its engine's settings have it, its sampling among them."""
    launches = launches_of(
        priced.model, priced.split, priced.weight_dtype, priced.engine.name, overhead.graph_batches
    )  # fmt: skip
    each_s = sort_s(priced.model, priced.accelerator, priced.engine)
    if each_s:
        device = device._replace(sequence_s=device.sequence_s + each_s * np.arange(len(device.sequence_s)))
    return with_host_times(device, overhead, launches, overlap=priced.engine.overlap)


def front_end_of(times: HostTimes) -> FrontEnd:
    """What requests and tokens spend outside the engine."""
    return FrontEnd(times.request_s, min(times.read_s, times.request_s), times.prompt_token_s, times.stream_s)
