"""Host work of an engine in step costs.

Notation
    L   layers of the model
    k   kernels of a layer on the device
    o   operators that Python dispatches for a layer outside CUDA graphs
    q   operators of a layer outside piecewise CUDA graphs

    device: host_s = step_s + L * k * kernel_s, host_per_sequence_s = per_sequence_s
    host:   floor  = schedule_s + schedule_sequence_s * sequences + launches
            launches = 0, L * q * launch_s or L * o * launch_s      full graph, piecewise graphs, no graph;
                       products of FlashInfer without a graph take more (``FLASHINFER_PRODUCT_S``)

A step of an engine that forms the next batch meanwhile takes the longer of both (``StepCosts.floor``). An engine
without overlap schedules first, and then takes the longer of launches and device.

Without graphs (``enforce_eager``, mode none) every step is dispatched operator by operator; in mode piecewise steps of
decodes are held in pieces too, in mode full those with prompts are not, in mode full_decode_only they are dispatched.

Kernels and operators are counted in the model code of vLLM 0.15 and SGLang 0.5.9. Views cost no operator; splits,
copies and metadata of prompts do. A Triton kernel that Python launches counts as two: 40 to 62 us (Triton, pull request
3503) against 23 us for an operator of PyTorch (issue 459). Linear attention has eleven. Tables of experts measure all
their kernels as one:

                                                                          kernels    operators    products
    dense attention     norm, qkv, rotary, KV write, attention, output          6           8           2
    MLA                 norm, down, 2 norms, 2 up, rotary, copies of queries
                        and keys, 2 KV writes, attention, output               13          20           4
    window and entries  norm, down, norms, queries, rotary with KV write,
                        attention, inverse rotary, 2 outputs                9          13           4
      entries           product, states, entry                              3           5           1
      their indexer     queries, rotary, weights, product, states, entry,
                        scores and choice                                   7          12           2
      streams           mixing in and out                                   2           3
    block-sparse        scores and choice of blocks, besides dense          2           4
    linear attention    norm, 2 inputs, convolution, gates, delta rule,
                        norm, output                                           10          45           2
    dense FFN           norm, gate and up, activation, down                     4           4           2
    routed experts      norm, router, top k, experts, sum                       5          18
    shared experts      gate and up, activation, down, sum                      4           4           2
    choice of experts   the operators that a model states, less one of them
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
from hisearch.specs.deployments.engine import EngineSpec
from hisearch.specs.deployments.engine_rules import rules_of
from hisearch.specs.deployments.graphs import graph_mode
from hisearch.specs.machines.host import EngineOverhead, HostTimes
from hisearch.specs.models.model import ModelSpec
from hisearch.specs.models.sparse_kinds import CompressedAttentionSpec
from hisearch.specs.versions import compiles_engine

#: Kernels of a layer's parts, operators that Python dispatches for them, and products among them.
GQA, MLA, LINEAR = (6, 8, 2), (13, 20, 4), (10, 45, 2)
#: Likewise of attention with a window and entries, of making entries, of their indexer, of mixing residual streams
#: behind attention and behind the FFN, and of choosing blocks. Counted in vLLM 0.33.0's ``models/deepseek_v4`` and
#: ``models/minimax_m3``.
COMPRESSED, COMPRESSION, COMPRESSED_INDEX = (9, 13, 4), (3, 5, 1), (7, 12, 2)
STREAMS, BLOCK_INDEX = (2, 3, 0), (2, 4, 0)
FFN, ROUTED, SHARED = (4, 4, 2), (5, 18, 0), (4, 4, 2)
GROUP_KERNELS = 2
#: Launches of a layer under piecewise CUDA graphs: a piece, KV write, attention, and their Python work.
PIECE_KERNELS = 4
#: Modes with piecewise CUDA graphs for steps with prompts.
IN_PIECES = frozenset({"piecewise", "full_and_piecewise"})
#: Formats whose activations are quantised before each product.
QUANTISED = frozenset({"fp8", "nvfp4"})
#: Host seconds of an operator that is dispatched by itself, where a profile has no ``launch_s`` and the engine runs
#: without graphs: Llama-3.1-8B on H100 takes 8.4 ms a step then, twelve operators in each of 32 layers. 3 to 60 us is
#: plausible (``specs.machines.host.RANGES``).
EAGER_LAUNCH_S = 22e-6
#: Host seconds of a kernel that a compiled TensorRT engine enqueues from C++, assumed: 3.8 us for short kernels back to
#: back (NVIDIA, "Getting Started with CUDA Graphs"), and binding its tensors. 3 to 10 us is plausible.
ENQUEUE_S = 5e-6
#: Host seconds of a sequence in a step of such an engine, whose scheduler and buffers are C++, assumed: a tenth of the
#: 11 us of loops in Python (``schedule_sequence_s``). 0.3 to 3 us is plausible: programs take 10 to 100 times as long
#: in CPython as in C++ (Computer Language Benchmarks Game).
COMPILED_SEQUENCE_S = 1.1e-6
#: Host seconds in which Triton compiles the norm of linear attention's queries and keys: on two H200 a TTFT of 131.5 ms
#: became 78.8 ms without (SGLang, pull request 31558). 50 to 120 ms is plausible: 90 ms beside an L20 (23436), bursts
#: of up to 110 ms (30403).
KERNEL_COMPILE_S = 0.053
#: Host seconds of a product that FlashInfer dispatches under vLLM, by format: Python chooses a kernel at each call. By
#: its CUTLASS kernels, which vLLM takes in NVFP4, 49 us, by cuDNN's 97 us; "auto", which it asks for in fp8, took 200
#: us later, with more checks (FlashInfer, pull requests 4674 and 3873, on Blackwell). 40 to 250 us is plausible: the
#: choice alone takes 22 to 28 us in 0.3.1 (measured).
FLASHINFER_PRODUCT_S = {"nvfp4": 49e-6, "fp8": 97e-6}
#: Kinds of linear attention whose kernels have that norm (SGLang, ``layers.attention.fla``).
NORMED = frozenset({"gated_delta", "kda"})
#: More tokens than any step has.
ANY_TOKENS = 2**40


class Launches(NamedTuple):
    """Operators that the host dispatches one by one in a step; ``HostFloor`` says when.

    kernels: of a step, inside or outside a graph.
    stages: of a pipeline; each schedules a pass and dispatches its own layers.
    products: among ``eager``, those that FlashInfer dispatches, ``product_s`` seconds each.
    """

    kernels: int
    pieces: int
    eager: int
    graph_tokens: int
    stages: int = 1
    products: int = 0
    product_s: float = 0.0

    def eager_s(self, launch_s: float) -> float:
        """Host seconds of a step outside graphs, where an operator takes ``launch_s``."""
        return launch_s * self.eager + max(self.product_s - launch_s, 0.0) * self.products


def launches_of(
    model: ModelSpec,
    split: Parallelism,
    weight_dtype: DType | None,
    engine: EngineSpec,
    graph_batches: list[int],
    capability: float | None = None,
) -> Launches:
    """Kernels of a step of ``model``, split so, under ``engine`` with CUDA graphs for ``graph_batches`` tokens.

    Beyond its largest graph TensorRT-LLM runs decodes in pieces too, where it has these.

    Args:
        model: architecture.
        split: over ranks; each has a host process that launches its own kernels.
        weight_dtype: format of the weights; None: the model's own.
        engine: whose graphs, by its settings.
        graph_batches: rising; empty: graphs hold decode steps of any size.
        capability: the accelerator's ``compute_capability``.
    """
    experts, linear = moe_layers(model), linear_layers(model)
    dense, softmax = model.ffn_count - experts, model.layers - linear
    shared = model.moe is not None and model.moe.shared_experts > 0
    parts = [(linear, LINEAR), (dense, FFN)]
    if model.compressed_attention is not None:
        parts += _compressed_parts(model, model.compressed_attention)
    elif model.block_sparse is not None:
        parts += [(softmax, GQA), (model.block_sparse.layers, BLOCK_INDEX)]
    else:
        parts += [(softmax, MLA if model.mla is not None else GQA)]
    choice = model.moe.choice_operators - 1 if model.moe is not None else 0
    parts += [(experts, ROUTED), (experts * shared, SHARED), (experts, (choice, choice, 0))]
    quantises = (weight_dtype or model.weight_dtype) in QUANTISED
    exchanges = (model.layers + model.ffn_count) * (split.tensor > 1)
    exchanges += GROUP_KERNELS * model.ffn_count * (split.attention_data > 1)
    kernels, operators = (
        exchanges + sum(layers * (counts[which] + quantises * counts[2]) for layers, counts in parts)
        for which in (0, 1)
    )
    mode, graph_tokens = graph_mode(engine), graph_batches[-1] if graph_batches else ANY_TOKENS
    pieces = 0 if mode == "full" else model.layers * PIECE_KERNELS if mode in IN_PIECES else operators
    if mode == "none":
        graph_tokens = 0
    elif mode in IN_PIECES and engine.name == "trtllm":
        operators = pieces
    product_s = _flashinfer_product_s(model, weight_dtype or model.weight_dtype, engine, capability)
    products = sum(layers * counts[2] for layers, counts in parts) if product_s else 0
    return Launches(kernels, pieces, operators, graph_tokens, split.pipeline, products, product_s)


def _flashinfer_product_s(model: ModelSpec, weight_dtype: DType, engine: EngineSpec, capability: float | None) -> float:
    """Host seconds of a product of FlashInfer's; 0: others compute them.

    vLLM takes it on Blackwell's data-centre GPUs, in NVFP4 and in fp8 with one scale a matrix, not with a scale for
    each block, as models published in fp8 have (``modelopt.py``, ``flashinfer.py`` of 0.11.0).
    """
    if engine.name != "vllm" or capability is None or int(capability) != 10:
        return 0.0
    in_blocks = weight_dtype == "fp8" and model.weight_dtype == "fp8"
    return 0.0 if in_blocks else FLASHINFER_PRODUCT_S.get(weight_dtype, 0.0)


def _compressed_parts(model: ModelSpec, compressed: CompressedAttentionSpec) -> list[tuple[int, tuple[int, int, int]]]:
    """Layers and their kernels of compressed attention and of residual streams."""
    streams = [(2 * model.layers, STREAMS)] if model.residual_streams > 1 else []
    indexed = sum(kind.layers for kind in compressed.entries if kind.topk)
    return [
        (model.layers, COMPRESSED),
        *((kind.layers, COMPRESSION) for kind in compressed.entries),
        (indexed, COMPRESSED_INDEX),
        *streams,
    ]


def with_host_times(device: StepCosts, times: HostTimes, launches: Launches, *, overlap: bool) -> StepCosts:
    """``device``, costs without host work, with an engine's host work added.

    ``overlap``: the host prepares one step while the device runs another.
    """
    pieces_s, eager_s = times.launch_s * launches.pieces, launches.eager_s(times.launch_s)
    # A pass goes through all stages, which work on that many passes at a time.
    step_s, sequence_s = launches.stages * times.schedule_s, launches.stages * times.schedule_sequence_s
    floor = HostFloor(step_s, sequence_s, pieces_s, eager_s, launches.graph_tokens)
    own_s, each_s = times.step_s + launches.kernels * times.kernel_s, times.per_sequence_s
    if not overlap:
        own_s, each_s = own_s + step_s, each_s + sequence_s
    return device._replace(host_s=own_s, host_per_sequence_s=each_s, floor=floor if any(floor[:4]) else None)


def with_overhead(device: StepCosts, overhead: EngineOverhead, priced: PricedWorker) -> StepCosts:
    """``with_host_times`` by the worker's engine settings, with the cost of sampling."""
    launches = launches_of(
        priced.model, priced.split, priced.weight_dtype, priced.engine, overhead.graph_batches,
        priced.accelerator.compute_capability,
    )  # fmt: skip
    each_s = sort_s(priced.model, priced.accelerator, priced.engine)
    if each_s:
        device = device._replace(sequence_s=device.sequence_s + each_s * np.arange(len(device.sequence_s)))
    mode = graph_mode(priced.engine)
    times: HostTimes = overhead
    if compiles_engine(priced.engine.name, priced.engine.version):
        compiled = {"launch_s": ENQUEUE_S, "schedule_sequence_s": COMPILED_SEQUENCE_S}
        times = overhead.with_times(overhead.model_copy(update=compiled))
    if mode == "none":
        launched = device.token_s + priced.model.layers * overhead.eager_layer_s
        device = device._replace(token_s=np.where(np.arange(len(launched)) > 0, launched, device.token_s))
        times = overhead.with_times(overhead.model_copy(update={"launch_s": overhead.launch_s or EAGER_LAUNCH_S}))
    times = times.on_processor(overhead.host_scale)
    costs = with_host_times(device, times, launches, overlap=priced.engine.overlap)
    if mode == "piecewise" and costs.floor is not None:
        floor = costs.floor
        costs = costs._replace(
            floor=floor._replace(
                step_s=floor.step_s + floor.pieces_s, pieces_s=0.0, eager_s=floor.eager_s - floor.pieces_s
            )
        )
    return costs


def kernel_compile_s(model: ModelSpec, engine: EngineSpec) -> float:
    """Seconds that a step waits for a kernel the first time that it has so many prompt tokens; 0: for none."""
    linear = model.linear_attention
    if linear is None or linear.kind not in NORMED or engine.name != "sglang":
        return 0.0
    return 0.0 if "keeps_kernels" in rules_of("sglang", engine.version) else KERNEL_COMPILE_S


def front_end_of(times: HostTimes) -> FrontEnd:
    """Time of requests and tokens outside the engine."""
    return FrontEnd(times.request_s, min(times.read_s, times.request_s), times.prompt_token_s, times.stream_s)
