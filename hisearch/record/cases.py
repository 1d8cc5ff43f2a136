"""Cases to record: settings and requests, read from a file or drawn by seed; and the recordings' files.

A case file is YAML: one case, or a list of them::

    - name: shared-prompts
      settings: {max_num_seqs: 16, max_num_batched_tokens: 512, num_blocks: 300, block_size: 16}
      workload: {requests: 60, seed: 7, rate_per_s: 20, shared_prefixes: {count: 3, tokens: [64, 256], share: 0.6}}
    - name: two-requests
      settings: {max_num_seqs: 2, max_num_batched_tokens: 256, num_blocks: 50, block_size: 16}
      requests:
        - {id: a, arrival_s: 0.0, input_tokens: 100, output_tokens: 20}

A recording (.json, .json.gz) is a case too: its ``config`` and ``requests`` are recorded again.
"""

from __future__ import annotations

import gzip
import json
import random
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from hisearch.record.workload import Row, WorkloadError, add_block_ids, make_requests

#: The latency law of every recording, as it is written into the file.
LAW = "0.005 + 2e-5*sum(new) + 1e-9*sum(new*(computed+(new+1)/2)), over the requests of the step's batch"

_NUMBER = (int, float)
_ROW_KEYS: dict[str, tuple[type, ...]] = {
    "id": (str, int), "arrival_s": _NUMBER, "input_tokens": (int,), "output_tokens": (int,), "block_ids": (list,),
    "priority": (int,), "max_output_tokens": (int,), "adapter": (int,), "grammar": (int,),
}  # fmt: skip


class CaseError(Exception):
    """A case that cannot be recorded; the text is ``file: key: what is wrong``."""


class EngineError(Exception):
    """The engine is not installed, of a version outside the range, or cannot do what a case asks for."""


@dataclass(frozen=True)
class Setting:
    """A setting of a case.

    Attributes:
        key: its name in a recording's ``config``.
        types: what its value may be.
        expected: the same in words.
        default: the engine's; such a value is left out of ``config``.
        required: a case must give it.
        least: no value is below it.
        choices: the values of a text.
    """

    key: str
    types: tuple[type, ...]
    expected: str
    default: Any = None
    required: bool = False
    least: float = 0
    choices: tuple[str, ...] = ()

    def accepts(self, value: Any) -> bool:
        """Whether a case may give this value."""
        known: Any = value
        if isinstance(value, dict):
            return dict in self.types
        if not isinstance(value, self.types) or (isinstance(value, bool) and bool not in self.types):
            return False
        return known in self.choices if isinstance(value, str) else bool(known >= self.least)


@dataclass(frozen=True)
class Case:
    """What to record.

    Attributes:
        name: the recording's file is ``<name>.json.gz``.
        settings: the engine's settings, by their names in a recording's ``config``.
        requests: rows as a recording holds them, with ``block_ids``, in order of (arrival, id).
        source: whence it came: a file, or the seed.
    """

    name: str
    settings: dict[str, Any]
    requests: list[Row]
    source: str = field(default="", compare=False)


def step_latency_s(batch: Iterable[tuple[Any, int, int]]) -> float:
    """Seconds of a step by ``LAW``; ``batch`` is (id, computed before, new tokens) of each request."""
    entries = list(batch)
    linear = sum(new for _, _, new in entries)
    pairs = sum(new * (computed + (new + 1) / 2) for _, computed, new in entries)
    return 0.005 + 2e-5 * linear + 1e-9 * pairs


def read_cases(path: Path, settings: Mapping[str, Setting], block_key: str) -> list[Case]:
    """The cases of a YAML file, or the case that a recording states.

    Args:
        path: ``.yaml``, or a recording.
        settings: the engine's, by their names in a case file.
        block_key: the setting that says how many tokens an entry of ``block_ids`` stands for.

    Raises:
        CaseError: unreadable, or a key is unknown, missing or of another type.
    """
    try:
        data = path.read_bytes()
        data = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
        document = json.loads(data) if ".json" in path.suffixes else yaml.safe_load(data)
    except (OSError, EOFError, ValueError, yaml.YAMLError) as error:
        raise CaseError(f"{path}: cannot be read: {error}") from None
    entries = document if isinstance(document, list) else [document]
    cases = [_case(path, index, entry, settings, block_key) for index, entry in enumerate(entries)]
    names = [case.name for case in cases]
    for name in names:
        if names.count(name) > 1:
            raise CaseError(f"{path}: name: {name!r} is the name of more than one case")
    return cases


def _case(path: Path, index: int, entry: Any, settings: Mapping[str, Setting], block_key: str) -> Case:
    if not isinstance(entry, dict):
        raise CaseError(f"{path}: case {index}: expected a mapping, found {entry!r}")
    recording = "config" in entry
    name = path.name.split(".")[0] if recording else entry.get("name", f"{path.stem}-{index}")
    where = f"{path}: {name}"
    if not recording:
        for key in entry:
            if key not in ("name", "settings", "requests", "workload"):
                raise CaseError(f"{where}: {key}: unknown key; expected name, settings, and requests or workload")
    config = check_settings(f"{where}: settings", entry.get("config" if recording else "settings"), settings)
    if recording or "requests" in entry:
        if "workload" in entry:
            raise CaseError(f"{where}: workload: expected either requests or workload, found both")
        rows = _rows(where, entry.get("requests"), recording)
    elif isinstance(entry.get("workload"), dict):
        try:
            rows = make_requests(entry["workload"])
        except WorkloadError as error:
            raise CaseError(f"{where}: workload: {error}") from None
    else:
        raise CaseError(f"{where}: expected requests (a list) or workload (a mapping)")
    return finished_case(str(name), config, rows, config[block_key], str(path))


def finished_case(name: str, config: dict[str, Any], rows: list[Row], block_tokens: int, source: str) -> Case:
    """A case whose requests are in order of (arrival, id) and have ``block_ids``."""
    rows = sorted(rows, key=lambda row: (row["arrival_s"], row["id"]))
    add_block_ids(rows, block_tokens)
    return Case(name, config, rows, source)


def check_settings(where: str, given: Any, settings: Mapping[str, Setting]) -> dict[str, Any]:
    """Settings by their names in a recording; a setting may be given by that name too.

    Raises:
        CaseError: a key is unknown, missing, given twice or of another type.
    """
    if not isinstance(given, dict):
        raise CaseError(f"{where}: expected a mapping")
    known = {setting.key: setting for setting in settings.values()} | dict(settings)
    config: dict[str, Any] = {}
    for name, value in given.items():
        if name not in known:
            raise CaseError(f"{where}: {name}: unknown setting; expected one of {', '.join(sorted(settings))}")
        setting = known[name]
        if setting.key in config:
            raise CaseError(f"{where}: {name}: given twice (the same as {setting.key})")
        if not setting.accepts(value):
            raise CaseError(f"{where}: {name}: expected {setting.expected}, found {value!r}")
        config[setting.key] = value
    for name, setting in settings.items():
        if setting.required and setting.key not in config:
            raise CaseError(f"{where}: {name}: missing; expected {setting.expected}")
    return config


def _rows(where: str, given: Any, recording: bool) -> list[Row]:
    if not isinstance(given, list) or not given:
        raise CaseError(f"{where}: requests: expected a list of requests")
    rows = []
    for index, row in enumerate(given):
        key = f"{where}: requests[{index}]"
        if not isinstance(row, dict):
            raise CaseError(f"{key}: expected a mapping, found {row!r}")
        for name, value in row.items():
            if name not in _ROW_KEYS:
                if recording:
                    continue
                raise CaseError(f"{key}: {name}: unknown key; expected one of {', '.join(_ROW_KEYS)}")
            if not isinstance(value, _ROW_KEYS[name]):
                raise CaseError(f"{key}: {name}: expected {_ROW_KEYS[name][0].__name__}, found {value!r}")
        for name in ("id", "arrival_s", "input_tokens", "output_tokens"):
            if name not in row:
                raise CaseError(f"{key}: {name}: missing")
        if row["input_tokens"] < 1 or row["output_tokens"] < 1 or row["arrival_s"] < 0:
            raise CaseError(f"{key}: expected at least one token in and out, and an arrival_s of 0 or later")
        if row.get("max_output_tokens", row["output_tokens"]) < row["output_tokens"]:
            raise CaseError(f"{key}: max_output_tokens: expected output_tokens ({row['output_tokens']}) or more")
        rows.append({name: row[name] for name in _ROW_KEYS if name in row})
    if len({row["id"] for row in rows}) < len(rows):
        raise CaseError(f"{where}: requests: an id is used twice")
    return rows


def random_cases(
    count: int, seed: int, draw: Callable[[random.Random], tuple[dict[str, Any], list[Row], int]]
) -> Iterable[Case]:
    """Cases of the seeds ``seed``, ``seed + 1``, …: one case is one seed, whatever ``count``.

    Args:
        count: how many.
        seed: the first.
        draw: the engine's: settings by their names in a recording, requests, tokens of an entry of ``block_ids``.
    """
    for number in range(seed, seed + count):
        config, rows, block_tokens = draw(random.Random(number))
        yield finished_case(f"random-{number:08d}", config, rows, block_tokens, f"seed {number}")


def record_cases(cases: Iterable[Case], out: Path, record: Callable[[Case], dict[str, Any]]) -> list[str]:
    """Record what ``out`` does not hold yet, one file a case.

    Progress goes to standard error. A case that the engine fails on is reported, and does not end the others.

    Returns:
        Names of the cases that failed.
    """
    out.mkdir(parents=True, exist_ok=True)
    failed = []
    for number, case in enumerate(cases, 1):
        path = out / f"{case.name}.json.gz"
        if path.exists():
            continue
        start = time.monotonic()
        try:
            recording = record(case)
        except EngineError:
            raise
        except Exception as error:  # of the engine's own code, which may raise anything
            failed.append(case.name)
            print(f"{number}: {case.name}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            continue
        write_recording(path, recording)
        seconds = time.monotonic() - start
        print(f"{number}: {case.name}: {len(recording['steps'])} steps, {seconds:.1f} s", file=sys.stderr, flush=True)
    return failed


def write_recording(path: Path, recording: Mapping[str, Any]) -> None:
    """Write a recording as a whole or not at all; the same recording gives the same bytes."""
    text = json.dumps(recording, separators=(",", ":"), allow_nan=False)
    temporary = path.with_name(f".{path.name}.part")
    temporary.write_bytes(gzip.compress(text.encode(), compresslevel=6, mtime=0))
    temporary.replace(path)


def offload_settings(given: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """``offload`` of a case with a connector's ``defaults``, where None marks a key that must be given.

    Raises:
        CaseError: an unknown key, or one missing.
    """
    for key in given:
        if key not in defaults:
            raise CaseError(f"offload: {key}: unknown key; expected one of {', '.join(defaults)}")
    offload = {**defaults, **given}
    for key, value in offload.items():
        if value is None:
            raise CaseError(f"offload: {key}: missing")
    return offload
