"""Lists of who waits for whom, held against lists."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hisearch.simulate.arrays.fleet import _lines


@given(st.lists(st.integers(-1, 5), max_size=30))
def test_lines_have_who_waits_in_order_of_index(behind: list[int]) -> None:
    head, after = _lines(np.array(behind, np.int32), 6)
    for line in range(6):
        waiting, r = [], int(head[line])
        while r >= 0:
            waiting.append(r)
            r = int(after[r])
        assert waiting == [r for r, other in enumerate(behind) if other == line]
    assert after.shape == (len(behind),)
