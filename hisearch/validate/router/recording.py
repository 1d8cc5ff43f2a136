"""Recordings of a router's choices: settings, prompts and events. The form is stated in docs/formats.md."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hisearch.base.policies import ROUTERS
from hisearch.specs.deployments.routing import RouterSpec
from hisearch.specs.errors import Problem, SpecError
from hisearch.specs.policies import effective
from hisearch.validate.router.texts import RULES

#: Settings of a recording -> parameters of a RouterSpec.
_PARAMETERS = {
    "cache_threshold": "cache_threshold",
    "balance_abs_threshold": "balance_abs_threshold",
    "balance_rel_threshold": "balance_rel_threshold",
    "max_tree_size": "max_tree_characters",
    "bucket_adjust_interval_secs": "bucket_window_s",
    "assignment_mode": "assignment_mode",
    "max_idle_secs": "max_idle_s",
    "worker_startup_check_interval": "load_poll_s",
    "block_size": "block_tokens",
    "overlap_score_weight": "overlap_weight",
    "router_temperature": "router_temperature",
    "router_ttl_secs": "router_ttl_s",
}
#: Settings without a parameter: events tell when trees were trimmed, and workers and clients are not the router's.
_WITHOUT_PARAMETER = ("eviction_interval_secs", "get_load", "stream")
#: What an event's list has, beside its kind, at least.
_LEAST = {
    "send": 2, "first_token": 1, "finish": 1, "evict": 2, "poll": 1, "adjust": 2, "stored": 2, "removed": 1,
}  # fmt: skip


class RouterRecordingError(SpecError):
    """A recording that cannot be used; ``str`` of it is ``file: key: what is wrong``."""


class _File(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")

    policy: str
    settings: dict[str, Any]
    workers: Annotated[int, Field(ge=1, le=4096)]
    events: list[list[Any]]
    router_version: str = ""
    endpoint: str = ""
    text_rule: str | None = None
    join: str = ""
    segments: list[list[int]] = Field(default_factory=list)
    prompts: list[list[int]] | None = None
    lengths: list[int] | None = None
    first_epoch: int | None = None
    boundaries_at_start: list[list[list[int]]] = Field(default_factory=list)


@dataclass(frozen=True)
class RouterRecording:
    """A recording, checked.

    Attributes:
        router: policy and settings; a token stands for a character.
        workers: how many.
        disaggregated: whether they are prefill workers.
        answers_loads: whether workers told their loads.
        streamed: whether answers were streams, which a router of disaggregated workers counts from their first byte on.
        requests: how many prompts there are, sent or not.
        text_rule, segments, prompts, join: see ``texts.prompts_of``; prompts is None where none has a text.
        lengths: characters of each prompt, where texts do not matter.
        first_clock: what the router's clock stood at when the first request came; None: nobody knows.
        range_order: workers in the order of their ranges (bucket); empty where it has none.
        events: in order, each a list that begins with its kind.
    """

    path: Path
    router: RouterSpec
    workers: int
    disaggregated: bool
    answers_loads: bool
    streamed: bool
    requests: int
    text_rule: str
    segments: tuple[tuple[int, int], ...]
    prompts: list[list[int]] | None
    join: str
    lengths: list[int] | None
    first_clock: int | None
    range_order: tuple[int, ...]
    events: list[list[Any]]


def read_router_recording(path: Path) -> RouterRecording:
    """Read a recording, ``.json`` or ``.json.gz`` (detected by content).

    Raises:
        RouterRecordingError: not JSON, or a key missing, of another type, or not simulated; names file and key.
        OSError: the file cannot be read.
    """
    file = _parsed(path)
    segments = tuple((int(content), int(length)) for content, length in file.segments)
    if file.prompts is not None and file.text_rule not in RULES:
        raise _error(path, "text_rule", f"expected one of {', '.join(RULES)}, not {file.text_rule}")
    _check_events(path, file.events, file.workers)
    sent = [event[1] for event in file.events if event[0] == "send"]
    last = file.boundaries_at_start[-1] if file.boundaries_at_start else []
    return RouterRecording(
        path,
        _router(path, file),
        file.workers,
        "PD" in file.endpoint,
        file.settings.get("get_load", True) is True,
        file.settings.get("stream", False) is True,
        1 + max([*sent, len(file.prompts or ()) - 1, len(file.lengths or ()) - 1]),
        file.text_rule or "",
        segments,
        file.prompts,
        file.join,
        file.lengths,
        file.first_epoch,
        tuple(worker for worker, *_ in last),
        file.events,
    )


def _parsed(path: Path) -> _File:
    data = path.read_bytes()
    try:
        return _File.model_validate_json(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
    except ValidationError as error:
        problem = error.errors()[0]
        raise _error(path, ".".join(map(str, problem["loc"])), problem["msg"]) from None
    except (gzip.BadGzipFile, zlib.error, EOFError, json.JSONDecodeError) as error:
        raise _error(path, "", f"cannot be unpacked: {error}") from None


def _router(path: Path, file: _File) -> RouterSpec:
    """The policy with the recording's settings."""
    values: dict[str, Any] = {"policy": file.policy, "characters_per_token": 1.0}
    settings = dict(file.settings)
    if file.policy == "dynamo_kv":
        if settings.get("router_temperature"):
            raise _error(path, "settings", "of Dynamo are replayed without router_temperature")
        by_events = settings.pop("use_kv_events", True)
        # A router by itself has no workers to look at: events say what a look would show.
        values |= {"block_tracking": "events", "staleness_s": 1.0} if by_events else {"block_tracking": "approximate"}
    for key, value in settings.items():
        if key not in _PARAMETERS and key not in _WITHOUT_PARAMETER:
            known = ", ".join([*_PARAMETERS, *_WITHOUT_PARAMETER])
            raise _error(path, f"settings.{key}", f"is not simulated; known are {known}")
        if key in _PARAMETERS:
            values[_PARAMETERS[key]] = value
    if file.policy in ROUTERS:  # a command line has settings of all policies, of which the router reads its own
        values = {"policy": file.policy} | effective(ROUTERS[file.policy], values)
    try:
        return RouterSpec.model_validate(values)
    except ValidationError as error:
        problem = error.errors()[0]
        raise _error(path, ".".join(map(str, problem["loc"])) or "policy", problem["msg"]) from None


def _check_events(path: Path, events: Sequence[Sequence[Any]], workers: int) -> None:
    """Refuse events that have no meaning: of another kind, or about a worker or prompt that is not there."""
    under_way: set[int] = set()
    for number, event in enumerate(events):
        kind = event[0] if event else None
        if kind not in _LEAST or len(event) <= _LEAST[kind]:
            raise _error(path, f"events.{number}", f"expected one of {', '.join(_LEAST)} with what belongs to it")
        if kind in ("send", "stored") and event[2] not in range(workers):
            raise _error(path, f"events.{number}", f"expected a worker from 0 to {workers - 1}, not {event[2]}")
        if kind == "send":
            under_way.add(event[1])
        elif kind in ("first_token", "finish"):
            if event[1] not in under_way:
                raise _error(path, f"events.{number}", f"prompt {event[1]} is not in flight")
            if kind == "finish":
                under_way.remove(event[1])


def _error(path: Path, key: str, message: str) -> RouterRecordingError:
    return RouterRecordingError(Problem(message, path, key=key))
