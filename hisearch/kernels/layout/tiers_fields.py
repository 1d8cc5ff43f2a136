"""What the records of ``layout.sim`` have for workers with cache tiers."""

from __future__ import annotations

#: State of a worker.
WORKER: list[tuple[str, str]] = [
    ("now_s", "f8"),  # with tiers: its scheduler's time, which a wait for a copy advances within a pass
    ("load_back_s", "f8"),  # when the copies that the step being formed waits for have ended
    ("host_hit_tokens", "i8"),
    ("far_hit_tokens", "i8"),  # hits on tokens fetched for its requests from the farther of two stores
]
