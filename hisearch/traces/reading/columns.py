"""Which column of a table is which field of a request: as mapped, by name, or as a proposal."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any

from hisearch.traces.reading.times import parse_date

#: Fields for a request's arrival -> the unit that they state; ``auto``: found out.
ARRIVALS = {"arrival_s": "auto", "arrival_ms": "ms", "arrival_us": "us", "arrival_ns": "ns"}
#: Fields that a mapping may name.
TABLE_FIELDS = ("id", *ARRIVALS, "input_tokens", "output_tokens", "thinking_tokens", "session", "tenant", "priority",
                "think_s", "model", "agent", "adapter", "grammar")  # fmt: skip

#: Where a mapping of columns is given.
MAP_COLUMNS = "--columns arrival_s=COLUMN,input_tokens=COLUMN,output_tokens=COLUMN, or spec.file.columns in a Workload"

_INPUTS, _OUTPUTS = ("input", "prompt", "prefill", "context", "request"), (
    "output", "completion", "generated", "generation", "decode", "response", "answer",
)  # fmt: skip


def _lengths(words: tuple[str, ...], short: tuple[str, ...]) -> tuple[str, ...]:
    """Names of a number of tokens, likelier ones first; a bare word may be a text, and comes last."""
    forms = ("{}_tokens", "{}_token_count", "{}_tokens_count", "num_{}_tokens", "n_{}_tokens", "{}_toks", "tokens_{}",
             "{}_length", "{}_len", "n_{}", "num_{}", "{}")  # fmt: skip
    return (*(form.format(word) for form in forms[:-1] for word in words), *short, *words)


#: Field -> names that services, gateways and benchmarks give it, likelier ones first; ends that say a unit left out.
SYNONYMS: dict[str, tuple[str, ...]] = {
    "arrival_s": (
        "arrival", "arrival_time", "arrived_at", "arrival_timestamp", "request_time", "request_timestamp",
        "requested_at", "request_start_time", "request_start", "received_at", "start_time", "started_at",
        "start_timestamp", "start", "submitted_at", "submit_time", "queued_at", "timestamp", "time_stamp", "ts",
        "created_at", "created", "datetime", "date_time", "event_time", "time_generated", "time", "date",
    ),
    "input_tokens": _lengths(_INPUTS, ("tokens_in", "in_tokens", "isl")),
    "output_tokens": _lengths(_OUTPUTS, ("tokens_out", "out_tokens", "gen_tokens", "gen_len", "osl")),
    "thinking_tokens": _lengths(("reasoning", "thinking"), ())[:-2],
    "session": tuple(
        form.format(word)
        for form in ("{}_id", "{}id", "{}_uuid", "{}_key", "{}")
        for word in ("session", "conversation", "conv", "chat", "thread", "dialogue", "dialog")
    ),
}  # fmt: skip
_NEEDED = ("arrival_s", "input_tokens", "output_tokens")


def propose_columns(sample: Mapping[str, Any]) -> dict[str, str]:
    """Field -> the column that it probably is, by the columns' names and a row's values; needed fields first.

    Where no name says when a request arrived, the only column of dates does.
    """
    names = {column: _plain_name(column) for column in sample}
    proposed: dict[str, str] = {}
    for field, synonyms in SYNONYMS.items():
        ranks = {
            column: min((synonyms.index(form) for form in forms if form in synonyms), default=-1)
            for column, forms in names.items()
            if column not in proposed.values() and _may_be(field, sample[column])
        }
        fitting = [column for column, rank in ranks.items() if rank >= 0]
        if field == "arrival_s" and not fitting:
            dates = [column for column, value in sample.items() if _is_date(value)]
            fitting = dates if len(dates) == 1 else []
        if fitting:
            proposed[field] = min(fitting, key=ranks.__getitem__)
    return proposed


def proposal(sample: Mapping[str, Any]) -> str:
    """A sentence that proposes a mapping, or says where one is given and which fields nothing looks like."""
    proposed = propose_columns(sample)
    missing = [field for field in _NEEDED if field not in proposed]
    if len(missing) == len(_NEEDED):
        return f"say which column is what: {MAP_COLUMNS}"
    mapping = format_columns(proposed)
    if missing:
        return f"no column looks like {' or '.join(missing)}; the others may be {mapping}; say {MAP_COLUMNS}"
    return f"it looks as if --columns {mapping}; run again with that (spec.file.columns in a Workload)"


def format_columns(columns: Mapping[str, str]) -> str:
    """A mapping as ``--columns`` takes it, quoted for a shell where it has to be."""
    parts = [f"{field}={column}" for field, column in columns.items()]
    return shlex.quote(",".join(f'"{part}"' if "," in part else part for part in parts))


def _plain_name(column: str) -> tuple[str, ...]:
    """Forms of a name to compare: in lower case with underscores, without a unit; whole, and below its last dot."""
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", column).lower()
    forms = [re.sub(r"[^a-z0-9]+", "_", part).strip("_") for part in (snake, snake.rpartition(".")[2])]
    return tuple(form for name in forms for form in (name, re.sub(r"_(s|ms|us|ns|utc)$", "", name)))


def _is_date(value: Any) -> bool:
    return isinstance(value, str) and not value.strip().isdigit() and parse_date(value) is not None


def _may_be(field: str, value: Any) -> bool:
    """False where a value cannot be the field's; nothing can be said of none."""
    if value in (None, ""):
        return True
    if isinstance(value, bool | list | dict):
        return False
    if field == "session":
        return True
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return field == "arrival_s" and (not isinstance(value, str) or parse_date(value) is not None)
    return field == "arrival_s" or (number >= 0 and number.is_integer())
