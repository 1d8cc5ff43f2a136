"""SGLang's pools of a model with linear attention: states, and full attention's KV in what they leave.

    B  bytes for both
    r  ``mamba_full_memory_ratio``
    s  bytes of a state in all layers with linear attention
    n  states that a running request is reckoned with: its own, one in the tree, one in hand, and its slots

    states  B r / (1 + r) / s - 1, rounded down

At most states / n requests run. Beside the states there is one for padding. Without prefix caching there is a state for
each of ``max_running_requests``, and n is 1. Drafted tokens are refused beside such models.

Source: SGLang 0.5.23, ``mem_cache.kv_cache_configurator`` (``_handle_max_mamba_cache``, ``_calculate_mamba_ratio``,
``resolve_max_num_reqs``), ``arg_groups.overrides._mamba_radix_cache_resolution``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from hisearch.latency.device_memory.window_pools import simulates_windows
from hisearch.latency.sharding import InvalidParallelism, linear_layers
from hisearch.specs.deployments.engine import EngineSpec
from hisearch.specs.deployments.pool import PoolSpec
from hisearch.specs.models.model import ModelSpec

#: States that a request is reckoned with besides its slots (``MAMBA_CACHE_SIZE_MAX_RUNNING_REQUESTS_RATIO``).
REQUEST_STATES = 3
#: Tokens between states that decodes keep: SGLang's ``mamba_track_interval`` by default.
TRACK_INTERVAL = 256
#: Tokens of a chunk of the kernels of delta rules (``chunk_delta_h.CHUNK_SIZE``); Mamba-2 states its own.
KERNEL_CHUNK = 64


@dataclass(frozen=True)
class StatePools:
    """A rank's pool of states.

    states: that it has. request_states: that a running request is reckoned with. slots: of these, the request's own
    besides its first. taken_bytes: of states and padding.
    """

    states: int
    request_states: int
    slots: int
    taken_bytes: float

    @property
    def running_requests(self) -> int:
        """Requests that run at most, besides ``max_running_requests``."""
        return self.states // self.request_states

    def engine(self, engine: EngineSpec) -> EngineSpec:
        """The engine with no more running requests than have states."""
        most = min(engine.max_running_requests, self.running_requests)
        return engine.model_copy(update={"max_running_requests": most})


def divide_states(spare_bytes: float, state_bytes: float, engine: EngineSpec) -> StatePools:
    """The pools that ``spare_bytes`` of a rank give.

    Args:
        spare_bytes: for KV and states.
        state_bytes: of a state in all layers with linear attention.
        engine: its settings.
    """
    slots = slots_of(engine)
    if engine.prefix_caching:
        each, ratio = REQUEST_STATES + slots, engine.mamba_full_memory_ratio
        states = max(math.floor(spare_bytes * ratio / (1 + ratio) / state_bytes - 1), 0)
    else:
        each, states = 1, engine.max_running_requests
    return StatePools(states, each, slots, state_bytes * (states + 1))


def slots_of(engine: EngineSpec) -> int:
    """States of a request between which it keeps those for the tree: ``extra_buffer``; 0: ``no_buffer``."""
    if not engine.prefix_caching or not (engine.overlap or engine.page_size > 1):
        return 0
    return 2 if engine.overlap else 1


def divides_states(engine: EngineSpec, model: ModelSpec) -> bool:
    """Whether an engine divides memory among states and KV by rules that are known."""
    return engine.name == "sglang" and linear_layers(model) > 0 and simulates_windows(engine.version)


def check_pages(pool: PoolSpec, model: ModelSpec) -> None:
    """Refuse pages with which SGLang keeps no states in its tree, and does not start.

    Raises:
        InvalidParallelism: with the key.
    """
    engine, page = pool.engine, pool.engine.page_size
    if not divides_states(engine, model) or slots_of(engine) == 0 or TRACK_INTERVAL % page == 0:
        return
    raise InvalidParallelism(
        f"pool {pool.name}: SGLang keeps a state of linear attention every {TRACK_INTERVAL} tokens, whole pages; "
        f"engine.page_tokens is {page}",
        "engine.page_tokens",
    )


def kernel_chunk(model: ModelSpec) -> int:
    """Tokens of a chunk of the kernels of ``model``'s states: its ``mamba_chunk_size``, where it has one.

    Source: SGLang 0.5.23, ``arg_groups.overrides.mamba_cache_chunk_size``.
    """
    linear = model.linear_attention
    return linear.chunk_tokens if linear is not None and linear.kind == "mamba2" else KERNEL_CHUNK


def grid_tokens(page_tokens: int, chunk_tokens: int = KERNEL_CHUNK) -> int:
    """Tokens behind multiples of which prompts leave states for the tree; ``chunk_tokens``: of the kernels."""
    return max(chunk_tokens, page_tokens)


def interval_tokens(page_tokens: int, chunk_tokens: int = KERNEL_CHUNK, track_tokens: int = TRACK_INTERVAL) -> int:
    """Tokens at multiples of which decodes do; ``track_tokens``: ``mamba_track_interval``."""
    return math.lcm(grid_tokens(page_tokens, chunk_tokens), track_tokens)
