"""What vLLM is told of its KV cache: blocks, the longest request, the hybrid manager."""

from __future__ import annotations

from hisearch.export.engines.cache_tiers import (
    offloading_backend,
    vllm_connectors,
)
from hisearch.export.engines.launch import ExportError, Launch
from hisearch.export.engines.releases import release_title, says
from hisearch.latency.device_memory.kv_groups import KvGroups, kv_groups_of
from hisearch.specs.deployments.engine import EngineSpec
from hisearch.specs.models.pages import PAGE_TOKENS

#: Connectors that support the hybrid KV cache manager (``SupportsHMA``): in each release, and since
#: ``knows_offloading_connector``. Read in 0.19.1 and 0.33.0.
_HYBRID_CONNECTORS, _HYBRID_CONNECTORS_LATER = {"NixlConnector"}, {"NixlConnector", "OffloadingConnector"}


def hybrid_manager(launch: Launch) -> bool | None:
    """What to say of the hybrid KV cache manager: on or off; None where vLLM decides as was simulated.

    The manager keeps windows and linear attention's states apart from full attention. Without it, layers with windows
    keep their complete context, and models with linear attention do not start.

    Raises:
        ExportError: the model needs the manager, which a connector lacks.
    """
    connectors, decides = vllm_connectors(launch.pool), says(launch, "knows_offloading_connector")
    if not connectors:
        return None
    able = set(connectors) <= (_HYBRID_CONNECTORS_LATER if decides else _HYBRID_CONNECTORS)
    # MultiConnector was not able before, whatever it joins.
    able = able and (decides or len(connectors) == 1)
    windows = launch.model.sliding_window_tokens > 0 or launch.model.compressed_attention is not None
    if launch.model.linear_attention is not None or windows:
        if not able:
            raise ExportError(_without_hybrid_manager(launch, connectors))
        return None if decides else True
    return False if offloading_backend(launch.pool) is not None and not decides else None


def _without_hybrid_manager(launch: Launch, connectors: tuple[str, ...]) -> str:
    """Why a model of several kinds of attention is refused."""
    pool, linear = launch.pool, launch.model.linear_attention is not None
    lost = (
        "models with linear attention do not start"
        if linear
        else "layers with a window keep their complete context, in memory that was simulated as free"
    )
    remedies = ["leave the tiers out"]
    if set(connectors) <= _HYBRID_CONNECTORS_LATER:
        remedies.append("set engine.version to 0.22.0 or newer")
    elif pool.kv_connector == "lmcache":
        remedies.append("set movement.kv_connector: offload with engine.version 0.22.0 or newer")
    return (
        f"{release_title(launch)} turns its hybrid KV cache manager off for these tiers ({', '.join(connectors)}), "
        f"without which {lost}; {', or '.join(remedies)}"
    )


def watermark(launch: Launch) -> float | None:
    """Share of all blocks that admission leaves free.

    Raises:
        ExportError: the release has none.
    """
    share = launch.pool.engine.watermark
    if share > 0 and not says(launch, "has_watermark"):
        raise ExportError(f"{release_title(launch)} has no watermark; set engine.watermark to 0")
    return share or None


#: Blocks of dense MLA: FlashMLA and FlashInfer's kernels take 64 tokens, 16 leaves slow ones alone (``v1/attention/
#: backends/mla``: get_supported_kernel_block_sizes).
VLLM_MLA_BLOCK = 64


#: Attention on GPUs takes blocks of multiples of 16 tokens (``get_supported_kernel_block_sizes``: 16, 32, 64, 128 or
#: MultipleOf(16) in each backend but AITER's for MLA).
VLLM_BLOCK_MULTIPLE = 16


def _groups(launch: Launch) -> KvGroups | None:
    return kv_groups_of(launch.pool, launch.model, launch.accelerator)


def simulated_engine(launch: Launch) -> EngineSpec:
    """The engine with the pages that were simulated."""
    groups = _groups(launch)
    return launch.pool.engine if groups is None else groups.engine(launch.pool.engine)


def simulated_block_size(launch: Launch) -> int:
    """Tokens of a block as simulated; of the smaller blocks, where layers have blocks of several sizes."""
    groups, engine = _groups(launch), launch.pool.engine
    return engine.page_size if groups is None or not groups.states else groups.engine(engine).page_size


def vllm_block_size(launch: Launch) -> int:
    """Tokens of a block: as simulated, but 64 in the place of vLLM's default under MLA.

    vLLM enlarges blocks beside linear attention's states by itself; stated, they are those of the simulated number. It
    also enlarges blocks of layers that keep fewer bytes than those with a window, or more: these are not stated.

    Raises:
        ExportError: no attention backend takes it.
    """
    page = simulated_block_size(launch)
    if page % VLLM_BLOCK_MULTIPLE:
        raise ExportError(
            f"{release_title(launch)} has no attention backend on GPUs for blocks of {page} tokens; set "
            f"engine.page_tokens to a multiple of {VLLM_BLOCK_MULTIPLE}, or leave it out"
        )
    return VLLM_MLA_BLOCK if launch.model.mla is not None and page == PAGE_TOKENS["vllm"] else page


def vllm_blocks(launch: Launch) -> int | None:
    """Number of simulated blocks, including the one that vLLM reserves.

    None for a model with linear attention or windows whose memory was set aside: vLLM's blocks cover other layers then.
    """
    model = launch.model
    if model.compressed_attention is not None:
        return None
    windows = model.sliding_window_tokens > 0 and not model.windows_are_chunks
    if (windows or model.linear_attention is not None) and _groups(launch) is None:
        return None
    return launch.kv_capacity_tokens // _tokens_of_block_number(launch)


def _tokens_of_block_number(launch: Launch) -> int:
    """Tokens of capacity that count as a block: a page, of which the layers of one group have a block."""
    groups = _groups(launch)
    if groups is not None:
        return simulated_engine(launch).page_size
    return vllm_block_size(launch) * launch.pool.decode_context_parallel


def longest_request_tokens(launch: Launch) -> int:
    """Most tokens of a request. Without chunked prefill vLLM starts only where a step's budget holds all of them."""
    engine, groups = simulated_engine(launch), _groups(launch)
    longest, size = launch.model.max_context_tokens, _tokens_of_block_number(launch)
    if groups is None:
        longest = min(longest, launch.kv_capacity_tokens - size)
    else:
        longest = groups.longest_request_tokens(launch.kv_capacity_tokens // size - 1, engine, longest)
    return longest if engine.chunked_prefill else min(longest, engine.chunk_tokens)
