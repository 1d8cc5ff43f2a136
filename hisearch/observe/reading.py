"""What servers of all engines say, under one name each.

Counters (rise while a server runs): ``prompt_tokens``, ``output_tokens``, ``requests`` (ended well), ``failed``,
``queried_tokens`` (of prompts, looked up in the prefix cache), ``hit_tokens``, ``preemptions``, ``steps``.
Gauges: ``running`` and ``waiting`` requests, ``kv_usage`` (share of KV pages in use).
Histograms: ``input_tokens`` and ``output_tokens`` by request, ``ttft_s``, ``itl_s``, ``tpot_s``, ``e2e_s``; inside the
engine ``queue_s``, ``prefill_s``, ``decode_s``; ``step_tokens``.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hisearch.observe.prometheus import Histogram
from hisearch.specs.base import EngineName

#: Values of settings, as a Deployment has them.
Value = str | float | bool


class Answer(NamedTuple):
    """A server's answer to a GET. status: of HTTP; 0 where nothing came. text: the body, or why nothing came."""

    status: int
    text: str

    @property
    def is_good(self) -> bool:
        """Whether a body came."""
        return self.status == 200

    def json(self) -> Any:
        """The body as JSON; None where it is none."""
        try:
            return json.loads(self.text) if self.is_good else None
        except (ValueError, RecursionError):
            return None


#: Path -> answer.
Answers = Mapping[str, Answer]


@dataclass(frozen=True)
class Step:
    """One step of an engine that tells its steps; token counts are those of the whole batch."""

    number: int
    latency_s: float
    prompts: int
    prompt_tokens: int
    decodes: int
    paused: int


@dataclass(frozen=True)
class Moment:
    """Counters, gauges and histograms at one time. at_s: seconds of a steady clock. steps: since the last moment."""

    at_s: float
    counters: Mapping[str, float]
    gauges: Mapping[str, float]
    histograms: Mapping[str, Histogram]
    steps: tuple[Step, ...] = ()


@dataclass(frozen=True)
class Facts:
    """What a server says of itself.

    model: as it was started with. settings: key of a Deployment's pool, dotted -> value. kv_tokens: of its KV memory,
    of one attention group. gpu: the accelerator's name where it is told. speculation: of a Deployment's engine,
    lora: of its pool.
    """

    engine: EngineName
    version: str
    model: str
    settings: Mapping[str, Value]
    kv_tokens: int | None = None
    gpu: str = ""
    max_context_tokens: int | None = None
    speculation: Mapping[str, Any] | None = None
    lora: Mapping[str, Any] | None = None
    notes: tuple[str, ...] = field(default=())


def present(values: Mapping[str, float | None]) -> dict[str, float]:
    """Without those that are absent."""
    return {name: value for name, value in values.items() if value is not None}


def histograms_of(values: Mapping[str, Histogram | None]) -> dict[str, Histogram]:
    """Without those that are absent."""
    return {name: value for name, value in values.items() if value is not None}


def settings_of(arguments: Mapping[str, Any], table: Mapping[str, str]) -> dict[str, Value]:
    """Settings of a pool that arguments state.

    Args:
        arguments: name, with underscores -> value.
        table: name -> key of the pool; an exclamation mark in front of the key turns a switch around.
    """
    settings: dict[str, Value] = {}
    for name, key in table.items():
        value = arguments.get(name)
        if value is None or value == "None" or isinstance(value, dict | list):
            continue
        plain = as_value(value) if isinstance(value, str) else value
        settings[key.removeprefix("!")] = (not plain) if key.startswith("!") else plain
    return settings


def parse_arguments(text: str) -> dict[str, Value]:
    """Launch arguments, as a shell script, a manifest or a file has them: name with underscores -> value.

    Raises:
        ValueError: a quotation mark is not closed.
    """
    lines = [line.removeprefix("- ") for line in (raw.strip() for raw in text.splitlines()) if line[:1] != "#"]
    try:
        words = shlex.split(" ".join(line.rstrip("\\") for line in lines))
    except ValueError as error:
        raise ValueError(f"launch arguments: {error}") from None
    arguments: dict[str, Value] = {}
    for at, word in enumerate(words):
        if not word.startswith("--") or len(word) < 3:
            continue
        name, equals, value = word[2:].partition("=")
        follows = words[at + 1] if at + 1 < len(words) else "--"
        name = re.sub(r"[-.]", "_", name)
        if equals:
            arguments[name] = as_value(value)
        elif not follows.startswith("--"):
            arguments[name] = as_value(follows)
        elif name.startswith("no_"):
            arguments[name.removeprefix("no_")] = False
        else:
            arguments[name] = True
    return arguments


def as_value(text: str) -> Value:
    """A number, a switch, or the text."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def first_text(values: Iterable[Any]) -> str:
    """The first that is a text and not empty; "" where none is."""
    return next((value for value in values if isinstance(value, str) and value), "")


def kv_dtype_of(name: str) -> str:
    """The KV cache's format by an engine's word for it; ``auto`` is the format of the model's activations."""
    return {"auto": "bf16", "bfloat16": "bf16", "float16": "fp16", "half": "fp16"}.get(name, name.partition("_")[0])
