"""What the records of ``layout.sim`` have for workers with cache tiers."""

from __future__ import annotations

#: State of a request.
REQUEST: list[tuple[str, str]] = [
    ("host_hit_tokens", "i8"),  # loaded back from the host tier at the first admission
    ("storage_hit_tokens", "i8"),  # likewise, after a fetch into the host tier for this request
    ("fetched_tokens", "i8"),  # fetched to the host by its newest fetch
    ("far_fetched_tokens", "i8"),  # of these, the last ones, from the farther of two stores
]

#: State of a worker.
WORKER: list[tuple[str, str]] = [
    ("now_s", "f8"),  # with tiers: its scheduler's time, which a wait for a copy advances within a pass
    ("load_back_s", "f8"),  # when the copies that the step being formed waits for have ended
    ("host_hit_tokens", "i8"),
    ("far_hit_tokens", "i8"),  # hits on tokens fetched for its requests from the farther of two stores
]

#: Settings of a pool.
CONFIG: list[tuple[str, str]] = [
    ("host_pages", "i8"),  # 0: no host tier
    ("hicache", "i8"),  # SGLang: 1 with a host tier
]
