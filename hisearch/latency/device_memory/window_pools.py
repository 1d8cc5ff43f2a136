"""SGLang's two KV pools of a model with sliding windows: of full attention, and of the layers with a window.

    full    tokens that each layer with full attention holds: bytes for KV / (F + ratio * W)
    window  tokens that each layer with a window holds: ratio * full
    F, W    bytes of a token in all layers of the kind; ratio: ``swa_full_tokens_ratio``

Without prefix caching the window's pool is what the running requests can fill, whatever the ratio.

Source: SGLang 0.5.23, ``model_executor.pool_configurator``; which models have pools: ``configs.model_config``.
"""

from __future__ import annotations

from dataclasses import dataclass

from hisearch.base.engine_rules import WINDOW_EVICTION_INTERVAL
from hisearch.specs.deployments.engine import EngineSpec
from hisearch.specs.deployments.engine_rules import rules_version
from hisearch.specs.deployments.pool import PoolSpec
from hisearch.specs.models.model import ModelSpec
from hisearch.specs.models.windows import keeps_window_pool
from hisearch.specs.versions import precedes

#: Release by whose rules window pools are simulated.
SINCE = "0.5.23"


@dataclass(frozen=True)
class WindowPools:
    """Tokens of both pools, in full pages.

    window_tokens: that a layer with a window sees besides the newest.
    """

    full: int
    windowed: int
    window_tokens: int

    def requests_tokens(self, context_tokens: float, page_tokens: int) -> float:
        """Tokens of decoding requests with ``context_tokens`` each that both pools hold."""
        windowed = min(context_tokens, self.window_tokens + WINDOW_EVICTION_INTERVAL + page_tokens)
        return min(float(self.full), self.windowed * context_tokens / windowed)


def divide(
    spare_bytes: float, full_bytes: float, window_bytes: float, engine: EngineSpec, window_tokens: int
) -> WindowPools:
    """The pools that ``spare_bytes`` of a rank give.

    Args:
        spare_bytes: for KV.
        full_bytes: of a token in all layers with full attention.
        window_bytes: of a token in all layers with a window.
        engine: its settings.
        window_tokens: that a layer with a window sees besides the newest.
    """
    page = engine.page_size
    if not engine.prefix_caching and engine.chunked_prefill:
        windowed = _most_windowed(engine, window_tokens)
        full = max(int((spare_bytes - windowed * window_bytes) // full_bytes), 0) // page * page
        return WindowPools(full, min(windowed, full), window_tokens)
    ratio = engine.swa_full_tokens_ratio
    full = max(int(spare_bytes // (full_bytes + ratio * window_bytes)), 0) // page * page
    return WindowPools(full, int(full * ratio) // page * page, window_tokens)


def _most_windowed(engine: EngineSpec, window_tokens: int) -> int:
    """Window tokens that running requests and the chunks under way hold at most, in full pages.

    Source: ``pool_configurator.compute_swa_request_cap``.
    """
    page = engine.page_size
    held = window_tokens + WINDOW_EVICTION_INTERVAL + 2 * page
    chunks = (2 if engine.overlap else 1) * engine.chunk_tokens
    return -(-(held * engine.max_running_requests + chunks + page) // page) * page


def simulates_windows(version: str) -> bool:
    """Whether the rules of SGLang ``version`` for window pools are known."""
    return not precedes(rules_version("sglang", version), SINCE)


def simulated(pool: PoolSpec, model: ModelSpec) -> bool:
    """Whether the window's pool of ``pool`` is simulated; elsewhere it counts as large enough."""
    if not keeps_window_pool(pool.engine.name, model) or not simulates_windows(pool.engine.version):
        return False
    return forms_batches_alone(pool) and pool.engine.speculation is None


def forms_batches_alone(pool: PoolSpec) -> bool:
    """Whether workers are unified, form one batch at a time, and have no cache tiers, attached devices and agents.

    Elsewhere a second pool is not simulated: every prefix counts as having its windows, or its state.
    """
    alone = pool.attention_data_parallel == pool.pipeline_parallel == 1 and pool.role == "unified"
    return alone and not pool.tiers and pool.devices is None and pool.agents is None
