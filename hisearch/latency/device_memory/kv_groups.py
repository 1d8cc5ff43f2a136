"""Groups of layers that share blocks of vLLM's KV pool: full attention, sliding windows, or linear attention.

All groups hold as many layers, some of them padding, so that a block of any group takes as many bytes. A page of a
request takes a block of each group; groups with a window give theirs back once the page is out of the window. Those of
linear attention take blocks of states: pages have as many tokens as it takes for full attention's KV to fill one.

Notation
    F, W    layers with full attention, and with a window or linear attention
    l       layers of a group: the fewer of F and W, or the more where that is less than 1.5 times as many
    groups  ceil(F / l) of full attention and ceil(W / l) of the others
    a       tokens of which a page is a multiple: 16, or the stated ones; 64 where FlashInfer's kernels export states;
            at least 128 under MLA, 64 in former releases
    page    a ceil(bytes of a layer's state / (a bytes of its KV of a token)) tokens

Layers with a window may keep more bytes of a token than those with full attention, or fewer, by a whole factor r. A
block of the layers with fewer bytes then holds r times as many tokens. A page has as many, and r blocks in each group
of the other layers. This is how groups count such blocks; the engine gives back and takes single ones: up to
``r - 1`` blocks of each group and request fewer. Without a whole factor, blocks are padded.

Source: vLLM, ``v1/core/kv_cache_utils.py`` (``_get_kv_cache_groups_uniform_page_size``,
``get_kv_cache_config_from_groups``), ``model_executor/models/config.py: HybridAttentionMambaModelConfig`` of 0.19.1,
``platforms/interface.py: _align_hybrid_block_size`` of 0.33.0. Which kernels export states: ``kda_checkpoint.py``,
``mamba_mixer2.py`` and ``gdn/qwen_gdn_linear_attn.py`` in ``model_executor/layers/mamba``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from hisearch.base.policies import QUEUE_ORDERS
from hisearch.latency.parameters import (
    layer_kv_bytes_per_token,
    layer_state_bytes,
    window_layer_kv_bytes_per_token,
)
from hisearch.latency.sharding import InvalidParallelism, linear_layers, shard, window_layers
from hisearch.specs.deployments.engine import EngineSpec
from hisearch.specs.deployments.engine_rules import rules_in_force, rules_version
from hisearch.specs.deployments.pool import PoolSpec
from hisearch.specs.machines.hardware import AcceleratorSpec
from hisearch.specs.models.model import ModelSpec
from hisearch.specs.models.windows import blocks_of_page
from hisearch.specs.versions import precedes

#: More layers of one kind than of the other, by less than this factor, make one group with padding.
PADDED_BELOW = 1.5
#: Tokens of which blocks under states are multiples: those of FlashAttention's pages, and of FlashInfer's states
#: (``FLASHINFER_GDN_CHECKPOINT_ALIGNMENT``).
ATTENTION_ALIGNMENT, EXPORT_ALIGNMENT = 16, 64
#: Tokens of which they are multiples at least under MLA: in 0.33, and in 0.19.1. Releases between were not read.
LATENT_ALIGNMENT, FORMER_LATENT_ALIGNMENT = 128, 64
#: Widths of keys for which FlashInfer has kernels on Blackwell, and FlashKDA on all accelerators of ``FLASHKDA``.
BLACKWELL_KEY_DIM = 128
#: Generations with FlashKDA's kernels, by compute capability.
FLASHKDA = (9, 10, 12)
#: Release since which vLLM keeps states of Mamba-2 at the ends of blocks alone (mode ``align``), as those of others.
ALIGNS_MAMBA2 = "0.32.0"
#: Least window of the kernels: one of a token is no attention.
LEAST_WINDOW = 2


@dataclass(frozen=True)
class KvGroups:
    """Groups of KV blocks of a worker.

    layers: of a group. full: blocks of a page in groups of full attention, which is how many groups there are if a page
    has one in each. windowed: likewise of groups whose window is ``window_tokens`` tokens. states: groups of linear
    attention. page_tokens: of a page; None: as the engine states. state_blocks: blocks of each of these groups that the
    engine reckons a request with. checkpoints: kernels export states from within chunks. block_bytes: of a page's
    token in one layer of a block; None: as all layers keep.
    """

    layers: int
    full: int
    windowed: int
    window_tokens: int
    states: int = 0
    page_tokens: int | None = None
    state_blocks: int = 0
    checkpoints: bool = False
    block_bytes: float | None = None

    @property
    def count(self) -> int:
        """All groups."""
        return self.full + self.windowed + self.states

    def engine(self, engine: EngineSpec) -> EngineSpec:
        """The engine with these groups' pages."""
        return engine if self.page_tokens is None else engine.model_copy(update={"page_tokens": self.page_tokens})

    def held_tokens(self, context_tokens: float) -> float:
        """Tokens of one group's layers that a decoding request with ``context_tokens`` takes, summed over groups.

        Large pages count: half of one in each group of full attention is not filled. A state takes one.
        """
        page = self.page_tokens or 0
        full = self.full * (context_tokens + page / 2)
        return full + self.windowed * min(context_tokens, self.window_tokens) + self.states * page

    def longest_request_tokens(self, blocks: int, engine: EngineSpec, max_context_tokens: int) -> int:
        """Tokens of the longest request that a pool of ``blocks`` blocks admits; at most ``max_context_tokens``."""
        if self.states:
            pages = max(blocks - self.states * self.state_blocks, 0) // self.full
            return min(pages * engine.page_size, max_context_tokens)
        pages = blocks // self.count
        in_window = admitted_pages(self.window_tokens, engine, max_context_tokens)
        if in_window is not None and pages >= in_window:
            if self.full == 0:
                return max_context_tokens
            pages = (blocks - self.windowed * in_window) // self.full
        return min(pages * engine.page_size, max_context_tokens)


def admitted_pages(window_tokens: int, engine: EngineSpec, max_context_tokens: int) -> int | None:
    """Most pages of a request that admission counts for a window group; None: all of them.

    The window, the tokens of the steps in flight, and one more: blocks leave the window when the next tokens get
    theirs (``kv_cache_interface.SlidingWindowSpec.max_admission_blocks_per_request``).
    """
    rules = rules_in_force("vllm", engine.version)
    if not rules["caps_windows"]:
        return None
    steps = 2 if engine.overlap and rules["frees_processed"] else 1
    most = min(window_tokens - 1 + steps * engine.chunk_tokens, max_context_tokens)
    return -(-most // engine.page_size) + 1


def groups_of_layers(full: int, windowed: int, window_tokens: int) -> KvGroups:
    """The groups of ``full`` layers of full attention and ``windowed`` layers with a window; not both are 0."""
    counts = [count for count in (full, windowed) if count]
    fewest, most = min(counts), max(counts)
    layers = most if most < PADDED_BELOW * fewest else fewest
    return KvGroups(layers, -(-full // layers), -(-windowed // layers), window_tokens)


def kv_groups_of(pool: PoolSpec, model: ModelSpec, accelerator: AcceleratorSpec) -> KvGroups | None:
    """The groups in which vLLM keeps the KV of ``model``; None for a single kind of layers, and where not simulated.

    Simulated are pools without cache tiers, transfers of KV, attached devices and agents, whose workers form one batch
    at a time. Windows of attention in chunks (Llama 4) make no groups: the engine keeps all of their KV. Recurrent
    states beside drafted tokens are not simulated either, nor Mamba-2's with prefix caching before 0.32.

    Raises:
        InvalidParallelism: the engine does not start with such states; the model cannot be split so; or the order of
            the queue counts service, which is not simulated with groups.
    """
    groups = _simulated_groups(pool, model, accelerator)
    if groups is not None and QUEUE_ORDERS[pool.engine.schedule].counts_service:
        message = f"{pool.engine.schedule} is not simulated under vLLM for models with several groups of KV blocks"
        raise InvalidParallelism(message, "engine.schedule")
    return groups


def _simulated_groups(pool: PoolSpec, model: ModelSpec, accelerator: AcceleratorSpec) -> KvGroups | None:
    alone = pool.attention_data_parallel == pool.pipeline_parallel == 1 and pool.role == "unified"
    if pool.engine.name != "vllm" or not alone or pool.tiers or pool.devices is not None or pool.agents is not None:
        return None
    if model.linear_attention is not None:
        known = pool.engine.speculation is None and not keeps_all_states(pool.engine, model)
        return _with_states(pool, model, accelerator) if known else None
    windowed = window_layers(model)
    if windowed == 0 or model.sliding_window_tokens < LEAST_WINDOW or model.windows_are_chunks:
        return None
    groups = groups_of_layers(model.layers - windowed, windowed, model.sliding_window_tokens)
    return groups if model.window_heads is None else _with_other_heads(pool, model, groups)


def keeps_all_states(engine: EngineSpec, model: ModelSpec) -> bool:
    """Whether the engine keeps states at every chunk of Mamba-2's kernels (mode ``all``), which is not simulated."""
    linear = model.linear_attention
    if linear is None or linear.kind != "mamba2" or engine.name != "vllm" or not engine.prefix_caching:
        return False
    return precedes(rules_version("vllm", engine.version), ALIGNS_MAMBA2)


def retained_tokens(engine: EngineSpec) -> int | None:
    """Default of ``prefix_cache_retention_interval`` (see ``simulate.plans.groups_plan.GroupsPlan``)."""
    return 0 if rules_in_force("vllm", engine.version)["retains_ends"] else None


def _with_other_heads(pool: PoolSpec, model: ModelSpec, groups: KvGroups) -> KvGroups:
    """``groups`` of layers that keep different bytes of a token (see the module's text)."""
    part = shard(model, pool.parallelism)
    full = layer_kv_bytes_per_token(model, part, pool.kv_dtype)
    windowed = window_layer_kv_bytes_per_token(model, part, pool.kv_dtype)
    counts = blocks_of_page(model, part.parallelism.tensor)
    factor = max(counts)
    return replace(
        groups,
        full=groups.full * counts[0],
        windowed=groups.windowed * counts[1],
        page_tokens=pool.engine.page_size * factor if factor > 1 else None,
        block_bytes=max(full, windowed) / factor,
    )


def _with_states(pool: PoolSpec, model: ModelSpec, accelerator: AcceleratorSpec) -> KvGroups:
    """Groups of full attention and of linear attention's states."""
    engine, linear = pool.engine, linear_layers(model)
    groups = groups_of_layers(model.layers - linear, linear, 0)
    caches = engine.prefix_caching
    exports = caches and _exports_states(engine, model, accelerator)
    part = shard(model, pool.parallelism)
    token = layer_kv_bytes_per_token(model, part, pool.kv_dtype)
    least = ATTENTION_ALIGNMENT if model.mla is None else _latent_alignment(engine)
    aligned = math.lcm(max(engine.page_size, least), EXPORT_ALIGNMENT if exports and _gated_delta(model) else 1)
    page = aligned * math.ceil(layer_state_bytes(model, part) / (aligned * token))
    if caches:
        _check_chunks(pool, page)
    most = 2 + exports if caches else 1
    return replace(groups, windowed=0, states=groups.windowed, page_tokens=page, state_blocks=most, checkpoints=exports)


def _exports_states(engine: EngineSpec, model: ModelSpec, accelerator: AcceleratorSpec) -> bool:
    """Whether the kernels of recurrent states export them from within a chunk.

    Those of Mamba-2 do. Of the gated delta rule FlashInfer's do, of Kimi Delta Attention FlashKDA's, with a bounded
    decay. FlashInfer's on Blackwell need CUDA 13, which is taken to be there.
    """
    linear, capability = model.linear_attention, accelerator.compute_capability
    if linear is None or not rules_in_force("vllm", engine.version)["exports_states"]:
        return False
    if linear.kind == "mamba2" or capability is None:
        return linear.kind == "mamba2"
    family = int(capability)
    if linear.kind == "kda":
        return family in FLASHKDA and linear.bounded_decay and linear.key_head_dim == BLACKWELL_KEY_DIM
    return family == 9 or (family in (10, 12) and linear.key_head_dim == BLACKWELL_KEY_DIM)


def _gated_delta(model: ModelSpec) -> bool:
    return model.linear_attention is not None and model.linear_attention.kind == "gated_delta"


def _latent_alignment(engine: EngineSpec) -> int:
    """Tokens of which pages are multiples at least where attention's KV is MLA's."""
    return LATENT_ALIGNMENT if rules_in_force("vllm", engine.version)["exports_states"] else FORMER_LATENT_ALIGNMENT


def _check_chunks(pool: PoolSpec, page: int) -> None:
    """Refuse chunks with which vLLM does not keep states, at the ends of blocks of ``page`` tokens."""
    engine, what = pool.engine, f"pool {pool.name}: linear attention's states are kept at the ends of chunks"
    if not engine.chunked_prefill:
        raise InvalidParallelism(
            f"{what}: vLLM does not start with engine.chunked_prefill: false; set it, or engine.prefix_caching: false",
            "engine.chunked_prefill",
        )
    if rules_in_force("vllm", engine.version)["stops_at_states"]:
        return
    for key, tokens in (("chunk_tokens", engine.chunk_tokens), ("long_prefill_tokens", engine.long_prefill_tokens)):
        if tokens and tokens < page:
            raise InvalidParallelism(
                f"{what}: vLLM {engine.version} does not start where engine.{key} is less than a block of {page} "
                f"tokens; it is {tokens}",
                f"engine.{key}",
            )
