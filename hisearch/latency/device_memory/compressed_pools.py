"""How engines divide memory among windows, entries and what is still to be compressed (DeepSeek-V4).

vLLM has blocks of one size for five kinds of pages, of different numbers of tokens, which share one pool:

    entries     256 tokens of all layers with entries
    windows     64 tokens of a group of layers
    states      of layers with entries of r tokens: 4 tokens where an indexer's overlap, else 8; of the last 2 r or r

    block       the largest group's pages. Layers are divided into groups as large as what can not be divided, the
                states of indexed layers; windows are, into as many groups as waste least

A request with c tokens takes c / 256 blocks, and a fixed number for windows and states. These are set aside here: for
the tokens of a step's chunk, two where steps overlap, and for every running request; of these no more than half of the
pool. The rest is the capacity, in tokens. What cached prefixes keep of windows and states is not counted.

SGLang has a pool of entries, and one of windows with the states of indexed layers, ``ratio`` times as many tokens; the
other states have a ring of 128 tokens for each running request, which is set aside. Drafted tokens double the rings.

Sources: vLLM 0.33.0, ``v1/core/kv_cache_planning.py`` (``_get_packed_kv_cache_groups``), ``models/deepseek_v4``
(``compressor.py: CompressorStateCache``), ``v1/attention/backends/mla/sparse_swa.py: DeepseekV4SWACache``; SGLang
0.5.23, ``model_executor/pool_configurator.py: DSV4PoolConfigurator``, ``arg_groups/model_overrides/deepseek_v4.py``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from hisearch.latency.device_memory.window_pools import WindowPools
from hisearch.latency.matrices.compressed import (
    PAGE_TOKENS,
    STATE_BYTES,
    STATE_KINDS,
    entries_bytes_per_token,
    index_entry_bytes,
    padded,
    page_bytes,
    projections,
    state_bytes_per_token,
    window_bytes_per_token,
)
from hisearch.specs.base import DType
from hisearch.specs.deployments.engine import EngineSpec
from hisearch.specs.deployments.engine_settings import SWA_FULL_TOKENS_RATIO
from hisearch.specs.models.model import ModelSpec
from hisearch.specs.models.sparse_kinds import CompressedAttentionSpec, EntriesSpec

#: vLLM's pages of windows and of states, in tokens: where an indexer's entries overlap, and elsewhere.
WINDOW_PAGE, INDEXED_PAGE, STATE_PAGE = 64, 4, 8
#: Most of vLLM's pool that is set aside for the windows and states of running requests. Assumed; 0.2 to 0.8 is
#: plausible: requests of a few thousand tokens take as many blocks for one as for the other.
MOST_ASIDE = 0.5
#: SGLang's ring of states in tokens: where an indexer's entries overlap, by page of windows; elsewhere, by request; and
#: both beside drafted tokens.
INDEXED_RING, STATE_RING = 8, 128
DRAFTED_INDEXED_RING, DRAFTED_STATE_RING = 16, 256
#: ``swa_full_tokens_ratio`` that SGLang sets for DeepSeek-V4 where none is stated.
COMPRESSED_RATIO = 0.1


class BlockGroup(NamedTuple):
    """Groups of vLLM's layers with pages of ``page_tokens`` tokens, of which a request keeps ``window_tokens``."""

    groups: int
    page_tokens: int
    window_tokens: int

    def blocks(self, tokens_in_flight: int, context_tokens: float = math.inf) -> int:
        """Most blocks of a request with so many tokens under way (``max_admission_blocks_per_request``)."""
        kept = min(self.window_tokens - 1 + tokens_in_flight, context_tokens)
        return self.groups * (math.ceil(kept / self.page_tokens) + 1)


class Blocks(NamedTuple):
    """vLLM's blocks: bytes of one, and the groups with windows."""

    block_bytes: float
    windowed: tuple[BlockGroup, ...]

    @property
    def token_bytes(self) -> float:
        """Bytes of a token's share of a block of entries."""
        return self.block_bytes / PAGE_TOKENS

    def request_blocks(self, context_tokens: int, tokens_in_flight: int) -> int:
        """Most blocks of a request with ``context_tokens`` tokens, of which some are under way."""
        held = sum(group.blocks(tokens_in_flight, context_tokens) for group in self.windowed)
        return -(-context_tokens // PAGE_TOKENS) + held


def vllm_blocks(model: ModelSpec, compressed: CompressedAttentionSpec, kv_dtype: DType) -> Blocks:
    """Blocks of a stage of vLLM that has all layers."""
    entries_bytes, repeats = 0.0, []
    for kind in compressed.entries:
        entries_bytes += kind.layers * page_bytes(model, compressed, PAGE_TOKENS, kind.ratio, kv_dtype)
        if kind.topk:
            index = padded(PAGE_TOKENS // kind.ratio * index_entry_bytes(compressed), kv_dtype)
            entries_bytes += kind.layers * index
            repeats.append(kind.layers)
    together = _least_padding([model.layers, *(kind.layers for kind in compressed.entries)], max(repeats, default=0))
    sizes, windowed = [entries_bytes], []
    pages = [(model.layers, page_bytes(model, compressed, WINDOW_PAGE, 1, kv_dtype), WINDOW_PAGE, 0)]
    for kind in compressed.entries:
        tokens = INDEXED_PAGE if kind.topk else STATE_PAGE
        pages.append(
            (kind.layers, _state_page(model, compressed, kind, kv_dtype), tokens, projections(kind) * kind.ratio)
        )
    for layers, size, tokens, seen in pages:
        groups = -(-layers // together) if together else 1
        sizes.append(-(-layers // groups) * size)
        windowed.append(BlockGroup(groups, tokens, seen or compressed.window_tokens))
    return Blocks(max(sizes), tuple(windowed))


def _state_page(model: ModelSpec, compressed: CompressedAttentionSpec, kind: EntriesSpec, kv_dtype: DType) -> float:
    """Bytes of a layer's page of states, with its indexer's."""
    tokens = INDEXED_PAGE if kind.topk else STATE_PAGE
    of_width = tokens * STATE_KINDS * projections(kind) * STATE_BYTES
    size = padded(of_width * model.head_dim, kv_dtype)
    return size + (padded(of_width * compressed.index_head_dim, kv_dtype) if kind.topk else 0.0)


def _least_padding(counts: Sequence[int], least: int) -> int:
    """Layers of a group, at least ``least``, with which groups of ``counts`` layers are padded least; 0: undivided."""
    if not least:
        return 0

    def padding(size: int) -> int:
        return sum(-count % size for count in counts)

    return min(range(least, max(counts) + 1), key=lambda size: (padding(size), -size))


def running_bytes(model: ModelSpec, compressed: CompressedAttentionSpec, kv_dtype: DType, engine: EngineSpec) -> float:
    """Bytes of windows and states of all running requests and one chunk, of engines whose pools are not known."""
    window = window_bytes_per_token(model, compressed, kv_dtype)
    total = window * (engine.max_running_requests * compressed.window_tokens + engine.chunk_tokens)
    for kind in compressed.entries:
        tokens = projections(kind) * kind.ratio
        total += state_bytes_per_token(model, compressed, kind) * engine.max_running_requests * tokens
    return total


def set_aside_bytes(blocks: Blocks, space_bytes: float, engine: EngineSpec) -> float:
    """Bytes of vLLM's pool of ``space_bytes`` that windows and states take (the module's law)."""
    steps = 2 if engine.overlap else 1
    chunk = sum(group.groups * -(-steps * engine.chunk_tokens // group.page_tokens) for group in blocks.windowed)
    of_request = sum(group.blocks(steps) for group in blocks.windowed)
    most = MOST_ASIDE * space_bytes / blocks.block_bytes
    return blocks.block_bytes * min(chunk + engine.max_running_requests * of_request, math.floor(max(most, 0.0)))


class SglangBytes(NamedTuple):
    """Bytes of a token in SGLang's pool of entries and in that of windows; fixed: of states, by running request."""

    full: float
    windowed: float
    fixed: float


def sglang_bytes(
    model: ModelSpec, compressed: CompressedAttentionSpec, kv_dtype: DType, engine: EngineSpec
) -> SglangBytes:
    """SGLang's pools of a stage that has all layers; with drafted tokens, those of a layer more."""
    windowed, fixed = window_bytes_per_token(model, compressed, kv_dtype), 0.0
    indexed, ring, head = INDEXED_RING, STATE_RING, 1.0
    if engine.speculation is not None:
        indexed, ring, head = DRAFTED_INDEXED_RING, DRAFTED_STATE_RING, (model.layers + 1) / model.layers
    for kind in compressed.entries:
        state = state_bytes_per_token(model, compressed, kind)
        if kind.topk:
            windowed += state * indexed / engine.page_size
        else:
            rows = (engine.max_running_requests + 1) * ring + ring + 1
            fixed += state * (-(-rows // kind.ratio) * kind.ratio)
    return SglangBytes(head * entries_bytes_per_token(model, compressed, kv_dtype), head * windowed, fixed)


class CompressedMemory(NamedTuple):
    """A rank's memory for KV: bytes of a token in the capacity, of a token of SGLang's windows, and set aside."""

    per_token_bytes: float
    window_token_bytes: float
    aside_bytes: float


def compressed_memory(
    model: ModelSpec, stages: int, kv_dtype: DType, engine: EngineSpec, space_bytes: float
) -> CompressedMemory | None:
    """How ``engine`` divides ``space_bytes`` of a rank of ``stages`` stages; None without compressed attention."""
    kept = model.compressed_attention
    if kept is None:
        return None
    if engine.name == "vllm":
        blocks = vllm_blocks(model, kept, kv_dtype)
        blocks = blocks._replace(block_bytes=blocks.block_bytes / stages)
        return CompressedMemory(blocks.token_bytes, 0.0, set_aside_bytes(blocks, space_bytes, engine))
    if engine.name == "sglang":
        each = sglang_bytes(model, kept, kv_dtype, engine)
        return CompressedMemory(each.full / stages, each.windowed / stages, each.fixed / stages)
    running = running_bytes(model, kept, kv_dtype, engine)
    return CompressedMemory(entries_bytes_per_token(model, kept, kv_dtype) / stages, 0.0, running / stages)


def compressed_ratio(stated: float) -> float:
    """SGLang's ``swa_full_tokens_ratio`` for DeepSeek-V4: its own where the engine's usual default is stated."""
    return COMPRESSED_RATIO if stated == SWA_FULL_TOKENS_RATIO else stated


def divide_compressed(
    spare_bytes: float, memory: CompressedMemory, engine: EngineSpec, compressed: CompressedAttentionSpec
) -> WindowPools:
    """SGLang's pools of ``spare_bytes`` of a rank, states of running requests not among them."""
    page, ratio = engine.page_size, compressed_ratio(engine.swa_full_tokens_ratio)
    full = max(int(spare_bytes // (memory.per_token_bytes + ratio * memory.window_token_bytes)), 0) // page * page
    return WindowPools(full, int(full * ratio) // page * page, compressed.window_tokens)
