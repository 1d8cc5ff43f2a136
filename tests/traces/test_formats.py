"""Trace formats as they declare themselves: each can be read, and is found by its fields."""

from __future__ import annotations

from importlib import import_module
from typing import get_args

import pytest

from hisearch.base.policies import BENCHMARKS, TRACE_FORMATS
from hisearch.specs.workloads.workload import TraceFormat
from hisearch.traces.importers import detect_format

JSON = [(name, fields) for name, declared in TRACE_FORMATS.items() for fields in declared.json_fields]
CSV = [(name, fields) for name, declared in TRACE_FORMATS.items() for fields in declared.csv_fields]


def test_workloads_may_name_every_format():
    assert get_args(TraceFormat) == ("auto", *TRACE_FORMATS)
    assert {"hisearch", "csv"} <= set(TRACE_FORMATS)  # which detection and the mapping of columns know by name


@pytest.mark.parametrize("name", TRACE_FORMATS)
def test_every_format_is_read_by_its_module(name):
    """By ``read``, or of a benchmark's results by ``measurements``, whose requests are the trace."""
    module = import_module(TRACE_FORMATS.modules[name])
    assert callable(getattr(module, "measurements" if name in BENCHMARKS else "read"))


@pytest.mark.parametrize("name", [name for name in TRACE_FORMATS if name != "hisearch"])
def test_every_format_but_our_own_is_told_by_its_content(name):
    assert TRACE_FORMATS[name].json_fields or TRACE_FORMATS[name].csv_fields or TRACE_FORMATS[name].line_pattern


@pytest.mark.parametrize(("name", "fields"), JSON)
def test_a_format_is_found_by_its_json_fields(write, name, fields):
    assert detect_format(write("t.jsonl", [dict.fromkeys(("more", *fields), 1)])) == name


@pytest.mark.parametrize(("name", "fields"), CSV)
def test_a_format_is_found_by_its_columns(write, name, fields):
    assert detect_format(write("t.csv", ",".join(("more", *fields)) + "\n")) == name
    assert detect_format(write("t.csv", ",".join(("more", *fields)) + "\n"), has_columns=True) == name


@pytest.mark.parametrize(
    ("first", "others"),
    [
        ("bailian", ["mooncake", "weka", "lmcache", "llmservingsim"]),
        ("mooncake", ["weka", "lmcache", "llmservingsim"]),
        ("weka", ["lmcache", "llmservingsim"]),
        ("lmcache", ["llmservingsim"]),
    ],
)
def test_the_more_specific_format_is_found_first(write, first, others):
    for name in others:
        for mine in TRACE_FORMATS[first].json_fields:
            for theirs in TRACE_FORMATS[name].json_fields:
                assert detect_format(write("t.jsonl", [dict.fromkeys((*theirs, *mine), 1)])) == first


@pytest.mark.parametrize("name", ["azure", "burstgpt", "sharegpt_lengths"])
def test_a_service_s_own_table_is_found_before_any_table(write, name):
    fields = (*TRACE_FORMATS["csv"].csv_fields[0], *TRACE_FORMATS[name].csv_fields[0])
    assert detect_format(write("t.csv", ",".join(fields) + "\n")) == name
