"""Requests from figures: who shares what, and which tokens that means."""

from __future__ import annotations

import itertools
from typing import Any

from hisearch.record.workload import add_block_ids, make_requests, token_texts

FIGURES: dict[str, Any] = {
    "requests": 40, "seed": 3, "input_tokens": [10, 90], "output_tokens": [1, 30], "turns": 0.3, "repeats": 0.2,
    "shared_prefixes": {"count": 2, "tokens": [20, 60], "share": 0.5},
}  # fmt: skip


def test_the_same_figures_give_the_same_requests() -> None:
    assert make_requests(FIGURES) == make_requests(FIGURES)
    assert make_requests(FIGURES) != make_requests(FIGURES | {"seed": 4})


def test_names_are_shared_where_all_tokens_up_to_the_block_are() -> None:
    rows = make_requests(FIGURES)
    texts = {row["id"]: row["_tokens"] for row in rows}
    add_block_ids(rows, 8)
    shared = 0
    for a, b in itertools.combinations(rows, 2):
        for index, (name, same) in enumerate(zip(a["block_ids"], b["block_ids"], strict=False)):
            end = 8 * (index + 1)
            assert (name == same) == (texts[a["id"]][:end] == texts[b["id"]][:end])
            shared += name == same
    assert shared > 50


def test_tokens_are_equal_where_names_are() -> None:
    rows = make_requests(FIGURES)
    add_block_ids(rows, 8)
    texts = token_texts(rows, 8)
    for row in rows:
        assert len(texts[row["id"]]) == row["input_tokens"] + row["output_tokens"]
        assert min(texts[row["id"]]) > 3
    for a, b in itertools.combinations(rows, 2):
        for index, (name, same) in enumerate(zip(a["block_ids"], b["block_ids"], strict=False)):
            span = slice(8 * index, 8 * index + 8)
            assert (name == same) == (texts[a["id"]][span] == texts[b["id"]][span])


def test_rows_without_texts_share_nothing_and_given_names_stay() -> None:
    rows = [
        {"id": "a", "arrival_s": 0, "input_tokens": 9, "output_tokens": 8, "block_ids": [4, 7]},
        {"id": "b", "arrival_s": 0, "input_tokens": 9, "output_tokens": 8},
        {"id": "c", "arrival_s": 0, "input_tokens": 17, "output_tokens": 8},
    ]
    add_block_ids(rows, 8)
    assert [row["block_ids"] for row in rows] == [[4, 7], [8, 9], [10, 11, 12]]
    tails = {text[-1] for text in token_texts(rows, 8).values()}
    assert len(tails) == 3


def test_limits_samples_bursts_and_bounds() -> None:
    figures = {"requests": 30, "limits": 1.0, "eos": 0.5, "samples": 2, "burst": 5, "max_tokens": 120, "priorities": 3}
    rows = make_requests(FIGURES | figures)
    assert len(rows) == 60
    assert len({row["arrival_s"] for row in rows}) == 6
    assert {row["priority"] for row in rows} == {0, 1, 2}
    assert all(row["input_tokens"] + row["max_output_tokens"] <= 120 for row in rows)
    ends = {row["max_output_tokens"] > row["output_tokens"] for row in rows}
    assert ends == {True, False}
    for a, b in zip(rows[::2], rows[1::2], strict=True):
        assert a["_tokens"][: a["input_tokens"]] == b["_tokens"][: b["input_tokens"]]
        assert a["id"][:-2] == b["id"][:-2]
