"""Requests that a model's window rejects."""

from __future__ import annotations

import numpy as np

from hisearch.traces.load import load_trace_file
from hisearch.traces.stats import requests_over_window, window_warning


def _trace(write):
    rows = [{"timestamp": i, "input_length": tokens, "output_length": 10, "hash_ids": ids} for i, (tokens, ids) in
            enumerate([(500, [1]), (1020, [2, 3]), (1014, [4, 5]), (2000, [6, 7, 8, 9])])]  # fmt: skip
    return load_trace_file(write("t.jsonl", rows))


def test_prompt_and_declared_output_count(write):
    assert np.array_equal(requests_over_window(_trace(write), 1024), [False, True, False, True])


def test_the_warning_counts_and_is_silent_where_all_fit(write):
    trace = _trace(write)
    assert window_warning(trace, 2010) is None
    warning = window_warning(trace, 1024)
    assert warning is not None
    assert warning.startswith("2 of 4 requests (50.0 %) exceed the model's window of 1,024 tokens")
    assert "1 of them with the prompt alone (the longest has 2,010 tokens)" in warning
    assert warning.endswith("`hisearch trace import --max-tokens 1024` leaves them out")
