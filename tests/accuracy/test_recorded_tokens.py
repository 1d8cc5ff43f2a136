"""Token times from the steps that the engines' own schedulers took: each request's first and last one as recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hisearch.simulate.results.gaps import exact_gaps, token_times
from tests.accuracy.test_scheduler_recordings import ALL
from tests.reference.recorded import load_recording, recorded_law
from tests.simulate.logged import LoggedStep, logged_result, slow_token_times


def recorded_steps(document: dict[str, Any], index: dict[Any, int]) -> list[LoggedStep]:
    """The recording's steps; a step ends as its latency law says, and not after the next one begins."""
    steps = []
    for row in document["steps"]:
        batch = [(index[name], computed, new) for name, computed, new in row["batch"]]
        chunks = [(new, computed) for _, computed, new in batch]
        end_s = max(row["start_s"] + recorded_law(chunks, [], 0), row.get("load_back", (0, 0.0))[1])
        lost = [index[name] for name in row.get("preempted", row.get("retracted", ()))]
        scheduled_s = row.get("scheduled_s", row["start_s"])
        if steps:
            steps[-1].end_s = min(steps[-1].end_s, row["start_s"])
        steps.append(LoggedStep(scheduled_s, row["start_s"], end_s, batch, lost, row.get("kind", "")))
    return steps


@pytest.mark.slow
@pytest.mark.parametrize("path", ALL, ids=lambda path: path and f"{path.parent.name}-{path.name[:-8]}")
def test_first_and_last_tokens_are_as_recorded(path: Path) -> None:
    document = load_recording(path)
    rows = document["requests"]
    index = {row["id"]: k for k, row in enumerate(rows)}
    result = logged_result(
        recorded_steps(document, index),
        [row["input_tokens"] for row in rows],
        [row["output_tokens"] for row in rows],
    )
    first, times = token_times(result)
    recorded = document["first_token_s"], document["finish_s"]
    for moments, slots in zip(recorded, (first[:-1], first[1:] - 1), strict=True):
        by_name = {str(name): moment for name, moment in moments.items()}
        expected = [by_name[str(row["id"])] for row in rows]
        np.testing.assert_allclose(times[slots], expected, rtol=0, atol=1e-6)
    assert times.tolist() == [moment for tokens in slow_token_times(result) for moment in tokens]
    assert (exact_gaps(result) > 0).all()
