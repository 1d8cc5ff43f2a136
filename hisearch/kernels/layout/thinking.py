"""When requests that think make the first token that their client sees (see ``traffic.thinking``)."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from hisearch.kernels.core.handle import Array, Handle

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
