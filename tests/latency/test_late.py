"""Unequal decodes in mixed steps: batches of two lengths predict all others."""

from __future__ import annotations

import functools
import heapq
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hisearch.latency.costs import LateCosts, StepCosts
from hisearch.latency.knots import late_octaves
from hisearch.latency.measured.curves import Grid
from hisearch.latency.measured.late import fit_late
from hisearch.latency.measured.operator_tables import AttentionTables, attention_tables
from hisearch.latency.measured.tiles import HEADS, KEYS, TileLaw
from hisearch.latency.step_cost import step_seconds
from tests.kernels.systems import examples

LAW = TileLaw(slots=94, rows=64, start_s=6e-6, keys_s=1.4e-6)
NAMES = ["prefill_chunk", "kv_prefill", "n_decode", "kv_decode"]


def played(chunk: int, lengths: list[int]) -> float:
    """Seconds of a mixed step: a chunk without history and decodes of ``lengths`` tokens, one tile after another."""
    free = [0.0] * LAW.slots
    tiles = [min(done + LAW.rows, chunk) for done in range(0, chunk, LAW.rows)] + [length + 1 for length in lengths]
    for _ in range(HEADS):
        for tokens in tiles:
            heapq.heapreplace(free, free[0] + LAW.start_s + LAW.keys_s * -(-tokens // KEYS))
    return max(free)


def two_lengths(n: int, long: int, short: int, chunk: int, ratio: int = 4) -> tuple[float, ...]:
    """A row of skew.csv in seconds."""
    lengths = [ratio * short] * long + [short] * (n - long)
    mean = sum(lengths) / n
    return n, long, chunk, 0, ratio * short, mean, 0.0, played(chunk, lengths), (ratio * short) - mean, long / n


SKEWED = ["n", "nb", "pc", "kp", "kv_big", "kv_mean", "mean_s", "skew_s", "longer", "long"]


@functools.cache
def tables() -> AttentionTables:
    """Of an accelerator that does nothing but the law's tiles."""
    rows = [(chunk, 0, 0, 0) for chunk in (16, 64, 256)]
    # Longer prompts identify the law itself.
    rows += [(16, before, 0, 0) for before in (64, 512, 2048)] + [(0, 0, 1, 16), (0, 0, 2, 16)]
    rows += list(product((16, 64, 256), (0,), (1, 2, 4, 8, 16, 32, 64), (16, 64, 256, 1024, 4096, 16384)))
    frame = pd.DataFrame(rows, columns=NAMES)
    frame["time_s"] = LAW(*(frame[name].to_numpy() for name in NAMES))
    batches = [
        two_lengths(n, max(int(n * share), 1), short, chunk)
        for n, share, short, chunk in product(
            (8, 16, 32, 64), (0.015, 0.0625, 0.125, 0.25, 0.5, 0.75), (256, 1024), (16, 256)
        )
    ]
    return attention_tables(Path(), frame, pd.DataFrame(batches, columns=SKEWED))


def priced(chunk: int, lengths: list[int]) -> float:
    """Attention of one layer, as a step has it: its tables and nothing else."""
    attention = tables()
    assert attention.mixed is not None
    none = np.zeros((2, 2))
    costs = StepCosts(0.0, 0.0, np.zeros(2), np.zeros(2), none, none, attention.mixed.values, late=attention.late)
    return float(attention.prefill(chunk, 0)) + step_seconds(costs, [(chunk, 0)], [length + 1 for length in lengths])


def test_batches_of_many_lengths_are_priced_by_those_of_two() -> None:
    rng = np.random.default_rng(0)
    errors, even = [], []
    for n, spread, chunk in product((16, 24, 48, 64), (0.4, 0.8, 1.2), (64, 256)):
        lengths = [int(length) for length in np.exp(rng.normal(6.3, spread, n))]
        measured = played(chunk, lengths)
        errors.append(priced(chunk, lengths) / measured - 1)
        even.append(priced(chunk, [round(sum(lengths) / n)] * n) / measured - 1)
    assert np.mean(np.abs(even)) > 0.15
    assert np.mean(np.abs(errors)) < 0.04
    assert abs(np.mean(errors)) < 0.03


@examples(60)
@given(
    n=st.sampled_from((2, 8, 16, 48)), share=st.floats(0.0, 1.0), half=st.integers(8, 2000), ratio=st.integers(2, 9),
    chunk=st.sampled_from((16, 100, 256)),
)  # fmt: skip
def test_a_step_prices_batches_of_two_lengths_as_validation_does(
    n: int, share: float, half: int, ratio: int, chunk: int
) -> None:
    """The share of long ones that a step finds by its sums is that which was measured."""
    long, short = min(max(round(n * share), 1), n - 1), 2 * half
    lengths = [ratio * short] * long + [short] * (n - long)
    mean = sum(lengths) / n
    expected = tables().batch_s(chunk, 0, n, mean, ratio * short - mean, long / n)
    assert priced(chunk, lengths) == pytest.approx(float(expected), rel=1e-9)


@examples(60)
@given(lengths=st.lists(st.integers(1, 9000), min_size=2, max_size=40), chunk=st.sampled_from((16, 100, 256)))
def test_unequal_contexts_never_take_less_than_equal_ones(lengths: list[int], chunk: int) -> None:
    even = tables().batch_s(chunk, 0, len(lengths), sum(lengths) / len(lengths), 0.0, 0.0)
    assert priced(chunk, lengths) >= float(even) * (1 - 1e-12)
    if min(lengths) == max(lengths):
        assert priced(chunk, lengths) == pytest.approx(float(even), rel=1e-12)


def test_what_is_longer_than_measured_adds_in_full() -> None:
    """Beyond the measured ratio a token more of the longest costs what it costs alone, wherever shares are below 1."""
    attention = tables()
    assert attention.mixed is not None
    assert attention.late is not None
    # One long one of 64: the share of long ones hardly changes with its length.
    first, second = ([length, *[256] * 63] for length in (4096, 8192))
    more = priced(64, second) - priced(64, first)
    alone = float(attention.mixed(64, 0, 1.0, 8192) - attention.mixed(64, 0, 1.0, 4096))
    mean = float(attention.mixed(64, 0, 64.0, 256 + 7936 / 64) - attention.mixed(64, 0, 64.0, 256 + 3840 / 64))
    assert more == pytest.approx(alone + mean, rel=0.1)


def test_shares_are_those_that_fit_the_rows_best() -> None:
    """Of three rows at one knot the middle one's share, and those of a neighbour where there is no row."""
    line = Grid((np.array([0.0, 1e6]),), np.array([0.0, 1.0]))

    def mixed(chunk: object, before: object, n: object, mean: np.ndarray) -> np.ndarray:
        return np.asarray(line(mean) * np.asarray(n) ** 0.0)

    rows = pd.DataFrame(
        [(8, 1, 16, 0, 4000, 1375.0, 0.0, (1375 + share * 2625) * 1e-6, 2625.0, 1 / 8) for share in (0.45, 0.5, 0.7)],
        columns=SKEWED,
    )
    late = fit_late(rows, lambda chunk, before: 0.0 * chunk, mixed)  # type: ignore[arg-type]
    assert late is not None
    assert late.ratio == pytest.approx(4.0)
    assert late.shares.shape == (4, 7, 12)
    assert late.shares == pytest.approx(np.full(late.shares.shape, 0.5))
    assert fit_late(rows.assign(kv_big=1375, longer=0.0), lambda chunk, before: 0.0 * chunk, mixed) is None  # type: ignore[arg-type]


def test_knots_are_octaves() -> None:
    assert late_octaves(0, 4) == [1, 2, 4, 8]
    assert late_octaves(1, 13) == [2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128]
    assert late_octaves(2, 4) == [256, 384, 512, 768]


def test_a_batch_of_one_length_asks_for_no_shares() -> None:
    none = np.zeros((2, 2))
    late = LateCosts(np.full((1, 1, 1), np.nan), 4.0)
    costs = StepCosts(0.0, 0.0, np.zeros(2), np.zeros(2), none, none, np.ones((1, 2, 1, 1)), late=late)
    assert step_seconds(costs, [(16, 0)], [100] * 5) == 1.0
