"""vLLM's profiling run: memory in use when the engine measures how much is left for KV.

The engine loads the model, runs one dummy batch of ``chunk_tokens`` tokens, samples for ``max_running_requests``
sequences, and takes PyTorch's peak allocation (``determine_available_memory`` in ``gpu_worker.py``,
``profile_run`` and ``_dummy_sampler_run`` in ``gpu_model_runner.py``, ``memory_profiling`` in ``mem_utils.py``).

    peak = max(encoding, max(forward, sampling, compiling) + encodings), bytes of one rank

    encoding    of images, where the model has a tower for them (``encoding_bytes``); encodings stay
    forward     2 bytes * chunk_tokens * (3 h + the widest part of a layer)
    sampling    max_running_requests * vocab * sampler + kept
    compiling   max(rotary cache, embedding) + flush + kept; not where the model runs eagerly
    kept        2 bytes * chunk_tokens * 2 h: the run's output, and the residual stream

``compiling`` is Inductor's: it times kernels that it may combine (``benchmark_combo_kernel``, set by vLLM from 0.11.1
on) on synthetic tensors as large as the real ones. The lookups of embeddings and of rotary angles are such kernels, so
a second copy of the larger table is allocated. This is inferred from the logs, whose KV falls by that much. Multimodal
models look embeddings up outside the compiled graph. A start with compiled graphs on disk does not time kernels, and
has up to that much more KV.

Differences by version:
    before 0.11.1   all that NCCL takes counts, no compiling
    before 0.17.0   sampling sorts
    from 0.17.0     all-reduce and norm are one kernel with a workspace: several Hopper or Blackwell ranks with NVLink
    from 0.20.0     an estimate of the CUDA graphs is subtracted

An unstated version is a recent one without the last two. The sources are vLLM's wheels 0.9.2 to 0.33.0.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from hisearch.latency.device_memory.constants import MIB, constant
from hisearch.latency.matrices.entries import computed_heads
from hisearch.latency.matrices.heads import full_heads, window_heads
from hisearch.latency.operators import residual_blocks
from hisearch.latency.parameters import wide_dtype
from hisearch.latency.sharding import Parallelism, expert_hidden, shard
from hisearch.specs.base import DTYPE_BYTES
from hisearch.specs.deployments.deployment import EngineSpec
from hisearch.specs.machines.hardware import AcceleratorSpec
from hisearch.specs.models.model import ModelSpec
from hisearch.specs.models.towers import TowersSpec

#: Bytes of an element of activations.
_WIDE_BYTES = 2.0
#: Buffers of the workspace of one-shot all-reduce: one of the ranks' inputs, three of its low-latency protocol.
_WORKSPACE_BUFFERS = 4.0
#: MiB of a message up to which vLLM fuses all-reduce and norm, by ranks (``FI_ALLREDUCE_FUSION_MAX_SIZE_MB``): on
#: Hopper (False) and Blackwell (True).
_FUSED_MIB: dict[bool, dict[int, float]] = {False: {2: 64.0, 4: 2.0, 8: 0.5}, True: {2: 64.0, 4: 32.0, 8: 1.0}}


#: Llama 4's vision tower (config.json): 34 layers of width 1408 and 5632, an adapter 5632 - 4096 - 4096 and a projector
#: 4096 - 5120; an image is at most 17 tiles of 144 tokens and their marks.
_LLAMA_4 = TowersSpec(parameters=870_000_000, item_tokens=2465)
#: Documents of Llama 4, by a fragment of the Hugging Face id, state a window below the positions of its rotary cache
#: (``max_position_embeddings``), and may state no towers.
_LLAMA_4_POSITIONS = {"llama-4-scout": 10_485_760, "llama-4-maverick": 1_048_576}


@dataclass(frozen=True)
class Release:
    """How a version of vLLM profiles; the defaults stand for an unstated recent version."""

    snapshot_first: bool = False
    compiles: bool = True
    sorts: bool = False
    fuses: bool = False
    counts_graphs: bool = False


def release_of(version: str) -> Release:
    """The release of a version such as ``0.15.1`` or ``0.13.0rc2``; the default where it has no such number."""
    match = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?", version)
    if match is None:
        return Release()
    number = tuple(int(part or 0) for part in match.groups())
    former = number < (0, 11, 1)
    return Release(
        snapshot_first=former,
        compiles=not former,
        sorts=number < (0, 17, 0),
        fuses=number >= (0, 17, 0),
        counts_graphs=number >= (0, 20, 0),
    )


def _llama_4_positions(model: ModelSpec) -> int:
    name = model.huggingface_id.lower()
    return next((positions for fragment, positions in _LLAMA_4_POSITIONS.items() if fragment in name), 0)


def towers_of(model: ModelSpec) -> TowersSpec | None:
    """Encoders beside the language model; None where there are none, and where they are not known."""
    return model.towers or (_LLAMA_4 if _llama_4_positions(model) else None)


def rotary_bytes(model: ModelSpec) -> float:
    """Bytes of the cosines and sines of all positions, which each rank keeps once, in the format of activations.

    Layers with a window whose heads are others have a table of their own.
    """
    if not model.rotary_embedding:
        return 0.0
    width = model.head_dim if model.mla is None else model.mla.qk_rope_head_dim
    width += 0 if model.window_heads is None else model.window_heads.head_dim
    if (kept := model.compressed_attention) is not None:
        # Windows and entries have tables of their own.
        width = 2 * kept.rotary_dim
    return max(model.max_context_tokens, _llama_4_positions(model)) * width * _WIDE_BYTES


def tower_bytes(model: ModelSpec, split: Parallelism) -> float:
    """Bytes per rank of encoders beside the language model."""
    towers = towers_of(model)
    return 0.0 if towers is None else towers.parameters * _WIDE_BYTES / split.tensor


def encoding_bytes(model: ModelSpec, split: Parallelism, chunk_tokens: int) -> tuple[float, float]:
    """Most temporaries while vLLM encodes images of the largest size, and the encodings, which stay; bytes of a rank.

    It encodes as many as fill a step, at least one (``MultiModalBudget``), before the language model's dummy batch.
    """
    towers = towers_of(model)
    if towers is None or not towers.item_tokens:
        return 0.0, 0.0
    items = max(1, chunk_tokens // towers.item_tokens)
    kept = items * towers.item_tokens * _WIDE_BYTES * model.hidden_size
    widest = 3 * towers.width + 2 * towers.intermediate_size / split.tensor
    return kept + items * towers.patches * _WIDE_BYTES * widest, kept


def forward_bytes(model: ModelSpec, split: int | Parallelism, tokens: int) -> float:
    """Most bytes of a layer's temporaries while ``tokens`` tokens pass.

    Two activations of the hidden size beside the residual stream, or the streams of a model with several, one for each
    block of attention residuals, and the wider of attention's and the FFN's inputs and outputs. For experts the widths
    count once per routed expert, and the output buffer is shared with the wider of the two.
    """
    part = shard(model, split)
    if model.compressed_attention is not None:
        attention = 2 * computed_heads(part.heads) * model.head_dim
    elif model.mla is None:
        kinds = (full_heads(model, part), window_heads(model, part))
        attention = max(heads.query_elements + heads.kv_elements for heads in kinds)
    else:
        key = model.mla.qk_nope_head_dim + model.mla.qk_rope_head_dim
        attention = part.heads * (2 * key + 2 * model.mla.v_head_dim)
    groups, together = part.parallelism.attention_data, part.parallelism.ffn_groups
    widest: float = max(attention, (3 if model.gated_ffn else 2) * part.intermediate * together)
    if model.moe is not None:
        up = (2 if model.gated_ffn else 1) * part.expert_intermediate
        uses = model.moe.experts_per_token * groups / part.parallelism.expert
        routed = uses * (max(up, expert_hidden(model)) + part.expert_intermediate)
        widest = max(widest, routed + 3 * part.shared_intermediate * together)
    streams = 2 + model.residual_streams + residual_blocks(model)
    return _WIDE_BYTES * tokens * (streams * model.hidden_size + widest)


def peak_bytes(
    model: ModelSpec, split: Parallelism, engine: EngineSpec, release: Release = Release(), *, eager: bool = False
) -> float:
    """Peak bytes that PyTorch allocates besides the weights in the profiling run (see the module's law)."""
    kept = 2 * _WIDE_BYTES * model.hidden_size * engine.chunk_tokens
    sequences = min(engine.max_running_requests, engine.chunk_tokens)
    sampling = sequences * model.vocab_size * constant("sort_sampler" if release.sorts else "sampler") + kept
    peak = max(forward_bytes(model, split, engine.chunk_tokens), sampling)
    if release.compiles and not eager:
        table = rotary_bytes(model)
        if towers_of(model) is None:
            rows = -(-model.vocab_size // split.tensor)
            table = max(table, rows * model.hidden_size * DTYPE_BYTES[wide_dtype(model.weight_dtype)])
        peak = max(peak, table + constant("flush") + kept)
    encoding, encodings = encoding_bytes(model, split, engine.chunk_tokens)
    return max(encoding, peak + encodings)


def outside_torch_bytes(
    model: ModelSpec,
    split: Parallelism,
    accelerator: AcceleratorSpec,
    engine: EngineSpec,
    release: Release = Release(),
    *,
    graphs: bool = True,
) -> float:
    """Bytes that the engine subtracts besides weights and peak: memory taken outside PyTorch since its snapshot.

    graphs: whether CUDA graphs are captured.
    """
    total = constant("former_kernels" if release.snapshot_first else "kernels")
    if split.ranks > 1:
        total += constant("former_collectives" if release.snapshot_first else "collectives")
    if release.fuses:
        total += workspace_bytes(model, split, accelerator, engine)
    if release.counts_graphs and graphs:
        total += constant("graph_estimate")
    return total


def workspace_bytes(model: ModelSpec, split: Parallelism, accelerator: AcceleratorSpec, engine: EngineSpec) -> float:
    """Bytes of the workspace of the fused all-reduce and norm; 0 where the engine does not use it."""
    supported = accelerator.peer_link.kind == "nvlink" and "fp8" in accelerator.peak_flops
    tensor_only = split.attention_data == 1 and split.pipeline == 1
    if engine.fused_all_reduce is False or not supported or not tensor_only:
        return 0.0
    blackwell = "nvfp4" in accelerator.peak_flops or "fp4" in accelerator.peak_flops
    most = _FUSED_MIB[blackwell].get(split.tensor, 0.0) * MIB
    message = min(_WIDE_BYTES * model.hidden_size * engine.chunk_tokens, most)
    return _WORKSPACE_BUFFERS * split.tensor * message
