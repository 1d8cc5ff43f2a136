"""What a client waits for besides the engine: front ends, and visible tokens of requests that think.

Laws: ``simulate.front_end``; kernels: ``traffic.front_end``, ``traffic.thinking``.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from hisearch.kernels.core.handle import Array, Handle

#: Seconds of its processes, each an f8: for a token that it sends; likewise for each other request in a step, whose
#: token it need not send yet; for a decode of a scheduler, with those of its worker's other schedulers. Then the share
#: of that work which merging does not save, and the rounds that a request takes where no time is left.
CONFIG = [(name, "f8") for name in ("stream_s", "stream_share_s", "message_s", "unmerged", "rounds")]

#: Of a scheduler: until when its queue is known, its decode tokens by then, and the work that waits in line: that which
#: stays whatever is merged, and all of it.
WORKER = [("front_end_at_s", "f8"), ("sent_tokens", "i8"), ("queued_s", "f8"), ("pending_s", "f8")]

#: Of a request: others that decoded on its worker when it made its first token, and its last; how much later the client
#: has them because the front end has no time left.
REQUEST = [
    ("decoding_at_first_token", "i4"),
    ("decoding_at_last_token", "i4"),
    ("first_waits_s", "f4"),
    ("last_waits_s", "f4"),
]

#: The first visible token of a request that thinks.
FIRST_VISIBLE = np.dtype(
    [
        ("at_s", "f8"),  # NaN: not made yet
        ("clock", "i8"),  # worker clock at which it appears
        ("heap_slot", "i4"),  # position in the worker's heap, -1 outside
        ("batch_mates", "i4"),  # other requests that decoded on its worker when it was made
    ],
    align=True,
)


class Thinking(Handle):
    """Of length 0, all of them, where no request of a pool thinks.

    tokens (N,): output tokens of each request that its client does not see, before those that it sees.
    first_visible (N,): not used of requests that do not think.
    heap (W, max_running), heap_size (W,): decoding requests that have visible tokens to come, by ``clock``.
    """

    FIELDS: ClassVar[dict[str, Any]] = {
        "tokens": Array("i8", 1),
        "first_visible": Array(FIRST_VISIBLE, 1),
        "heap": Array("i4", 2),
        "heap_size": Array("i8", 1),
    }
