"""Recordings of an engine's own scheduler: its requests, settings and decisions.

The form is stated in docs/formats.md. Only the form is checked in this module; whether
every setting can be simulated, ``replay`` checks.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hisearch.base.engine_rules import MODELLED
from hisearch.specs.base import EngineName, NonNegative, NonNegativeInt
from hisearch.specs.errors import Problem, SpecError, dotted
from hisearch.specs.wording import described, unknown
from hisearch.validate.recorded_settings import Row, SglangSettings, Tokens, VllmSettings

#: A request's name.
Id = str | int
_BlockId = Annotated[int, Field(ge=-(2**63), lt=2**63)]


class RecordingError(SpecError):
    """A recording that cannot be used; ``str`` of it is ``file: key: what is wrong``."""


class RequestRow(Row):
    """One of ``requests``."""

    model_config = ConfigDict(extra="allow")

    id: Id
    arrival_s: NonNegative
    input_tokens: Tokens
    output_tokens: Tokens
    block_ids: list[_BlockId]
    priority: Annotated[int, Field(ge=-(2**31), lt=2**31)] = 0
    max_output_tokens: Tokens | None = None
    adapter: Tokens | None = None
    grammar: Tokens | None = None


class StepRow(Row):
    """One of ``steps``; further keys are for debugging, and ignored.

    ``pool``: free and evictable tokens; behind them those of the window layers' pool with SGLang's sliding windows, or
    free and evictable states with its linear attention.
    """

    start_s: float
    batch: list[tuple[Id, NonNegativeInt, Tokens]]
    scheduled_s: float | None = None
    kind: Literal["prefill", "decode", "mixed"] | None = None
    preempted: list[Id] = Field([])
    retracted: list[Id] = Field([])
    pool: tuple[int, int] | tuple[int, int, int, int] | None = None


class _File(Row):
    """A whole recording; keys of the storage tier and others are ignored."""

    config: dict[str, Any]
    requests: Annotated[list[RequestRow], Field(min_length=1)]
    engine: str = ""
    step_latency_s: str | None = None
    steps: list[StepRow] | None = None
    first_token_s: dict[str, NonNegative] | None = None
    finish_s: dict[str, NonNegative] | None = None
    reused_tokens: dict[str, NonNegativeInt] | None = None
    stored_tokens: NonNegativeInt | None = None
    loaded_tokens: NonNegativeInt | None = None


@dataclass(frozen=True)
class EngineRecording:
    """A recording, checked.

    Attributes:
        path: the file.
        engine: whose scheduler it was. version: its release; the oldest modelled one where the file names none.
        settings: ``config``.
        law_text: the latency law as written; None where absent.
        requests: in order of (arrival, id).
        steps, first_token_s, finish_s: what the engine did, times in seconds by the request's id as text; all of them
            or none (None).
        reused_tokens: tokens found in the cache at first scheduling, by id; None where not recorded.
        copied_tokens: to and from host memory by the KV connector; None where not recorded.
        ignored: keys of ``requests`` that the replay does not use.
        jumps: the recorder left out passes of an idle scheduler beside copies under way (see ``MovementPlan.jumps``).
    """

    path: Path
    engine: EngineName
    version: str
    settings: VllmSettings | SglangSettings
    law_text: str | None
    requests: list[RequestRow]
    steps: list[StepRow] | None
    first_token_s: dict[str, float] | None
    finish_s: dict[str, float] | None
    reused_tokens: dict[str, int] | None
    copied_tokens: tuple[int, int] | None
    ignored: tuple[str, ...]
    jumps: bool = False

    @property
    def block_tokens(self) -> int:
        """Tokens of an entry of ``block_ids``."""
        return self.settings.block_size if isinstance(self.settings, VllmSettings) else self.settings.block_ids_size

    def error(self, key: str, message: str) -> RecordingError:
        """An error about ``key`` of this file ("" for the whole file)."""
        return _error(self.path, key, message)


def read_recording(path: Path) -> EngineRecording:
    """Read a recording, ``.json`` or ``.json.gz`` (detected by content).

    Raises:
        RecordingError: no such file, not JSON, or a key missing, unknown or of another type; names file and key.
        OSError: the file cannot be read.
    """
    file = _parsed(path)
    engine, settings = _settings(path, file.config)
    version = _version(path, engine, file.engine)
    requests = _ordered(path, file.requests)
    names = {row.id: index for index, row in enumerate(requests)}
    stored, loaded = file.stored_tokens, file.loaded_tokens
    copied = None if stored is None or loaded is None else (stored, loaded)
    recording = EngineRecording(
        path, engine, version, settings, file.step_latency_s, requests, file.steps, file.first_token_s, file.finish_s,
        file.reused_tokens, copied,
        tuple(sorted({key for row in requests for key in row.model_extra or ()})),
    )  # fmt: skip
    _check_requests(recording)
    if file.steps is not None:
        _check_steps(path, file.steps, names)
    request_names = {str(name) for name in names}
    for key in ("first_token_s", "finish_s", "reused_tokens"):
        values = getattr(file, key)
        if values is not None:
            _check_names(path, key, values, request_names)
        elif file.steps is not None and key != "reused_tokens":
            raise _error(path, key, "required beside steps, and missing")
    return recording


def _parsed(path: Path) -> _File:
    try:
        return _File.model_validate_json(_content(path))
    except ValidationError as error:
        raise _first_problem(path, "", _File, error) from None


def _content(path: Path) -> bytes:
    try:
        data = path.read_bytes()
        return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    except FileNotFoundError:
        raise _error(path, "", "no such file") from None
    except IsADirectoryError:
        raise _error(path, "", "expected a file, found a folder") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise _error(path, "", f"broken gzip archive: {error}") from None


def _settings(path: Path, config: dict[str, Any]) -> tuple[EngineName, VllmSettings | SglangSettings]:
    """Engine and settings; the engine is recognised by its name for the size of its pool."""
    marks: dict[EngineName, str] = {"vllm": "num_blocks", "sglang": "max_total_tokens"}
    engines = [engine for engine, mark in marks.items() if mark in config]
    if len(engines) != 1:
        raise _error(path, "config", "expected either num_blocks (vLLM) or max_total_tokens (SGLang)")
    model = VllmSettings if engines[0] == "vllm" else SglangSettings
    try:
        return engines[0], model.model_validate(config)
    except ValidationError as error:
        raise _first_problem(path, "config", model, error) from None


def _version(path: Path, engine: EngineName, text: str) -> str:
    """The release that ``text``, such as "vllm 0.33.0 (v1 scheduler)", names."""
    if not text:
        return MODELLED[engine][0]
    match = re.match(rf"{engine}\s+(\d\S*)", text, re.IGNORECASE)
    if match is None:
        raise _error(path, "engine", f"expected {engine} and its release, got {text!r}")
    return match[1]


def _ordered(path: Path, requests: list[RequestRow]) -> list[RequestRow]:
    """By (arrival, id), as both engines' queues take them in."""
    kinds = {type(row.id) for row in requests}
    if len(kinds) > 1:
        raise _error(path, "requests", "expected ids that are all text or all numbers")
    used: set[Id] = set()
    for index, row in enumerate(requests):
        if row.id in used:
            raise _error(path, dotted(("requests", index, "id")), f"{row.id!r} was used before")
        used.add(row.id)
    return sorted(requests, key=lambda row: (row.arrival_s, row.id))


def _check_requests(recording: EngineRecording) -> None:
    for row in recording.requests:
        if row.max_output_tokens is not None and row.max_output_tokens < row.output_tokens:
            raise recording.error(
                "requests",
                f"{row.id}: max_output_tokens {row.max_output_tokens} is less than output_tokens {row.output_tokens}",
            )
        total = row.input_tokens + row.output_tokens
        if len(row.block_ids) * recording.block_tokens > total:
            raise recording.error(
                "requests",
                f"{row.id}: {len(row.block_ids)} block_ids of {recording.block_tokens} tokens are more than the "
                f"{total} tokens of its prompt and output",
            )


def _check_steps(path: Path, steps: list[StepRow], names: dict[Id, int]) -> None:
    for index, step in enumerate(steps):
        batch = [entry[0] for entry in step.batch]
        for key, request_names in (("batch", batch), ("preempted", step.preempted), ("retracted", step.retracted)):
            if len(set(request_names)) < len(request_names):
                raise _error(path, dotted(("steps", index, key)), "names a request twice")
            for name in request_names:
                if name not in names:
                    raise _error(path, dotted(("steps", index, key)), f"{name!r} is none of the requests")


def _check_names(path: Path, key: str, values: Iterable[str], requests: set[str]) -> None:
    named = set(values)
    for name in sorted(requests - named):
        raise _error(path, key, f"request {name} is missing")
    for name in sorted(named - requests):
        raise _error(path, key, f"{name!r} is none of the requests")


def _error(path: Path, key: str, message: str) -> RecordingError:
    return RecordingError(Problem(message, path, key=key))


def _first_problem(path: Path, prefix: str, model: type[BaseModel], error: ValidationError) -> RecordingError:
    details = error.errors(include_url=False, include_context=True)[0]
    # The last entry of a union's location names the branch that was tried.
    location = [entry for entry in (prefix, *details["loc"]) if entry not in ("", "str", "int")]
    kind, value, context = details["type"], details["input"], details.get("ctx", {})
    if kind == "json_invalid":
        return _error(path, "", f"expected JSON: {context['error']}")
    if kind == "missing":
        message = "required, and missing"
    elif kind == "extra_forbidden":
        name = str(location[-1])
        message = f"this setting is not simulated{unknown(name, model.model_fields)}"
    elif kind == "value_error":
        message = str(context["error"])
    elif kind == "literal_error":
        message = f"cannot be replayed: {described(value)}; known: {context['expected']}"
    else:
        message = f"{details['msg'][:1].lower()}{details['msg'][1:]}, got {described(value)}"
    return _error(path, dotted(tuple(location)), message)
