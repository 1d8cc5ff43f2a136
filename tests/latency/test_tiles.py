"""Attention of mixed steps as tiles: recognised in a table that has them, and read between its rows."""

from __future__ import annotations

from itertools import product

import numpy as np
import pandas as pd
import pytest

from hisearch.latency.measured.operator_tables import attention_tables
from hisearch.latency.measured.tiles import TileLaw, fit_tiles, residuals
from tests.latency.operator_folder import attention_us

TRUTH = TileLaw(slots=94, rows=64, start_s=6e-6, keys_s=1.4e-6)
CHUNKS = (16, 64, 128, 256, 512, 1024)
BEFORE = (0, 64, 512, 2048)
DECODES = (1, 2, 4, 8, 16, 32)
CONTEXTS = (16, 64, 512, 2048)
NAMES = ["prefill_chunk", "kv_prefill", "n_decode", "kv_decode"]


def table() -> pd.DataFrame:
    """The truth, slower by a power of the decodes' context, which the law does not know."""
    rows = [(chunk, before, 0, 0) for chunk, before in product(CHUNKS, BEFORE)]
    rows += list(product(CHUNKS, BEFORE, DECODES, CONTEXTS))
    frame = pd.DataFrame(rows, columns=NAMES)
    return frame.assign(time_s=measured(*(frame[name].to_numpy() for name in NAMES)))


def measured(chunk: object, before: object, decodes: object, context: object) -> np.ndarray:
    return np.asarray(TRUTH(chunk, before, decodes, context) * np.maximum(np.asarray(context), 8.0) ** 0.01)


def test_the_law_is_found_in_a_table() -> None:
    law = fit_tiles(table())
    assert law is not None
    assert (law.slots, law.rows) == (TRUTH.slots, TRUTH.rows)
    assert law.start_s == pytest.approx(TRUTH.start_s, rel=0.1)
    assert law.keys_s == pytest.approx(TRUTH.keys_s, rel=0.1)


def test_a_table_without_tiles_has_no_law() -> None:
    frame = table()
    times = [attention_us(*row) for row in frame[NAMES].itertuples(index=False)]
    assert fit_tiles(frame.assign(time_s=times)) is None
    assert fit_tiles(frame[frame["n_decode"] == 0]) is None


def test_rounds_between_measured_rows_are_inferred() -> None:
    """What no line between rows has: six decodes of 16 heads no longer fit on 94 multiprocessors."""
    frame = table()
    times = residuals(TRUTH, frame[frame["n_decode"] > 0])
    for decodes in (4, 5, 6, 7):
        assert times(16, 0, decodes, 512) == pytest.approx(measured(16, 0, decodes, 512), rel=1e-9)
    assert times(16, 0, 6, 512) > 1.8 * times(16, 0, 4, 512)
    # And measured rows come out as they were measured.
    rows = frame[frame["n_decode"] > 0].sample(20, random_state=0)
    assert times(*(rows[name].to_numpy() for name in NAMES)) == pytest.approx(rows["time_s"].to_numpy(), rel=1e-9)


def test_tables_are_read_by_the_law(tmp_path) -> None:  # type: ignore[no-untyped-def]
    frame = table()
    decodes = pd.DataFrame(product((0,), (0,), DECODES, CONTEXTS), columns=NAMES).assign(time_s=1e-4)
    tables = attention_tables(tmp_path, pd.concat((frame, decodes)), None)
    knots = [(chunk, 0, n, mean) for chunk, n, mean in product((80, 320, 448), (4, 16), (96, 768))]
    seconds = [float(tables.batch_s(*knot, 0.0, 0.0)) for knot in knots]
    # Knots lie at 80, 320 and 448 tokens: there the table equals the law, with even residuals.
    assert seconds == pytest.approx([float(measured(*knot)) for knot in knots], rel=0.02)
