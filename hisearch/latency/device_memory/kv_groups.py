"""Groups of layers that share blocks of vLLM's KV pool: full attention, and attention within a sliding window.

All groups hold as many layers, some of them padding, so that a block of any group takes as many bytes. A page of a
request takes a block of each group; groups with a window give theirs back once the page is out of the window.

Notation
    F, W    layers with full attention, and with a window
    l       layers of a group: the fewer of F and W, or the more where that is less than 1.5 times as many
    groups  ceil(F / l) of full attention and ceil(W / l) with the window

Source: vLLM, ``v1/core/kv_cache_utils.py`` (``_get_kv_cache_groups_uniform_page_size``,
``get_kv_cache_config_from_groups``), 0.19.1 and 0.33.0.
"""

from __future__ import annotations

from dataclasses import dataclass

from hisearch.latency.sharding import window_layers
from hisearch.specs.deployments.engine import EngineSpec
from hisearch.specs.deployments.engine_rules import rules_in_force
from hisearch.specs.deployments.pool import PoolSpec
from hisearch.specs.models.model import ModelSpec

#: More layers of one kind than of the other, by less than this factor, make one group with padding.
PADDED_BELOW = 1.5
#: Least window of the kernels: one of a token is no attention.
LEAST_WINDOW = 2


@dataclass(frozen=True)
class KvGroups:
    """Groups of KV blocks of a worker.

    layers: of a group. full: groups of full attention. windowed: groups whose window is ``window_tokens`` tokens.
    """

    layers: int
    full: int
    windowed: int
    window_tokens: int

    @property
    def count(self) -> int:
        """All groups."""
        return self.full + self.windowed

    def held_tokens(self, context_tokens: float) -> float:
        """Tokens of one group's layers that a decoding request with ``context_tokens`` takes, summed over groups."""
        return self.full * context_tokens + self.windowed * min(context_tokens, self.window_tokens)

    def longest_request_tokens(self, blocks: int, engine: EngineSpec, max_context_tokens: int) -> int:
        """Tokens of the longest request that a pool of ``blocks`` blocks admits; at most ``max_context_tokens``."""
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


def kv_groups_of(pool: PoolSpec, model: ModelSpec) -> KvGroups | None:
    """The groups in which vLLM keeps the KV of ``model``; None for a single kind of layers, and where not simulated.

    Simulated are pools without cache tiers, transfers of KV, attached devices and agents, whose workers form one batch
    at a time. Windows of attention in chunks (Llama 4) make no groups: the engine keeps all of their KV.
    """
    windowed = window_layers(model)
    if pool.engine.name != "vllm" or windowed == 0 or model.sliding_window_tokens < LEAST_WINDOW:
        return None
    alone = pool.attention_data_parallel == pool.pipeline_parallel == 1 and pool.role == "unified"
    if model.windows_are_chunks or not alone or pool.tiers or pool.devices is not None or pool.agents is not None:
        return None
    return groups_of_layers(model.layers - windowed, windowed, model.sliding_window_tokens)
