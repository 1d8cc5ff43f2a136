"""Shrinking of a case that differs, with a rule in the place of engine and simulation."""

from __future__ import annotations

import pytest

from tests.engines.shrink import Case, halve, length, shrink

ROWS = [
    {"id": f"r{index}", "arrival_s": 0.1 * index, "input_tokens": 64, "output_tokens": 16, "block_ids": [*range(5)]}
    for index in range(12)
]


def test_what_is_not_needed_goes(capsys: pytest.CaptureFixture[str]) -> None:
    def differs(cases: list[Case]) -> list[bool]:
        kept = [{row["id"]: row for row in case["requests"]} for case in cases]
        return [{"r3", "r8"} <= set(rows) and rows["r8"]["input_tokens"] >= 20 for rows in kept]

    case = shrink({"config": {"block_size": 16}, "requests": ROWS}, differs, "block_size")
    assert [row["id"] for row in case["requests"]] == ["r3", "r8"]
    assert [(row["input_tokens"], row["output_tokens"]) for row in case["requests"]] == [(1, 1), (32, 1)]
    assert [row["block_ids"] for row in case["requests"]] == [[], [0, 1]]
    assert length(case) == 37
    assert "2 requests, 37 tokens" in capsys.readouterr().err


def test_a_halved_prompt_shares_its_start_alone() -> None:
    row = ROWS[0] | {"max_output_tokens": 40}
    short = halve(row, "input_tokens", 16)
    assert (short["input_tokens"], short["block_ids"][:2], len(short["block_ids"])) == (32, [0, 1], 3)
    assert short["block_ids"][2] < 0
    short = halve(row, "output_tokens", 16)
    assert (short["output_tokens"], short["max_output_tokens"], short["block_ids"]) == (8, 32, [0, 1, 2, 3])


def test_no_more_time_than_given() -> None:
    asked: list[int] = []

    def differs(cases: list[Case]) -> list[bool]:
        asked.append(len(cases))
        return [True] * len(cases)

    case = shrink({"config": {"block_size": 16}, "requests": ROWS}, differs, "block_size", seconds=-1.0)
    assert (len(case["requests"]), asked) == (12, [])
