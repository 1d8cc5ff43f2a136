"""What the records of ``layout.sim`` have for decode workers."""

from __future__ import annotations

#: State of a request.
REQUEST: list[tuple[str, str]] = [
    ("away", "i4"),  # see ``decoding``; prefill workers: 1 while its KV is held to be sent
]

#: State of a worker.
WORKER: list[tuple[str, str]] = [
    ("kv_pending_head", "i4"),  # requests whose KV is being transferred, and their number
    ("kv_pending_tail", "i4"),
    ("kv_pending", "i4"),
]

#: Settings of a pool.
CONFIG: list[tuple[str, str]] = [
    ("store_pool", "i8"),  # pool to whose storage they write outputs back, or -1
    ("store_tier", "i8"),  # tier of that storage
]
