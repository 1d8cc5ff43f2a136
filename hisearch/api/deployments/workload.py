"""Workloads by reference: a catalogue name, a workload's YAML or a trace file."""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

import numpy as np

from hisearch.specs.documents.catalogue import YAML_SUFFIXES, Catalogue
from hisearch.specs.documents.document import Document
from hisearch.specs.wording import unknown
from hisearch.specs.workloads.workload import GeneratorSpec, TraceFormat, WorkloadSpec
from hisearch.traces.agents import reordered
from hisearch.traces.models import chosen

if TYPE_CHECKING:
    from hisearch.traces.compiled import CompiledTrace
    from hisearch.traces.trace import Trace


def find_workload(ref: str | Path, catalogue: Catalogue | None = None) -> Document[WorkloadSpec] | Path:
    """Resolve ``ref`` to a workload or to the path of a trace file.

    Args:
        ref: a catalogue name, or the path of a workload's YAML or of a trace file.
        catalogue: where names are looked up; the working directory and the shipped documents where None.

    Raises:
        UnknownReferenceError: nothing has that name or path.
        SpecError: the workload is not valid.
    """
    catalogue, name = catalogue or Catalogue(), str(ref)
    path = catalogue.find_file(name) if isinstance(ref, Path) else catalogue.find_workload_file(name)
    if path is not None:
        if path.suffix not in YAML_SUFFIXES:
            return path
        name = str(path)
    return catalogue.get("Workload", name)


def load_trace(
    ref: str | Path,
    *,
    seed: int = 0,
    limit: int | None = None,
    skip_bad: int = 0,
    format: str = "auto",  # noqa: A002 - the name of the workload's key
    columns: Mapping[str, str] | None = None,
    time_unit: str = "auto",
    adapters: Mapping[str, int] | None = None,
    models: Collection[str] = (),
    catalogue: Catalogue | None = None,
) -> CompiledTrace:
    """Compile a workload, or take it from the cache.

    Args:
        ref: see ``find_workload``.
        seed: of everything random in it, in addition to a generator's own.
        limit: keep the first requests only.
        skip_bad: broken rows to tolerate.
        format: of a trace file, one of ``hisearch.specs.workloads.workload.TraceFormat``.
        columns: of a table: trace field -> its column, as ``spec.file.columns`` of a workload.
        time_unit: of times that are numbers, as ``spec.file.time_unit`` of a workload.
        adapters: names of LoRA adapters and their ranks, as ``spec.file.adapters`` of a workload.
        models: keep only requests for models of these names; all where empty.
        catalogue: where names are looked up.

    Raises:
        SpecError, TraceError: with file, line and key.
        ValueError: no such format, or a format, columns or adapters for a workload document.
    """
    from hisearch.traces.load import load_document, load_trace_file

    check_format(format)
    workload = find_workload(ref, catalogue)
    if isinstance(workload, Path):
        options: dict[str, Any] = {"limit": limit, "skip_bad": skip_bad, "format": format, "time_unit": time_unit}
        options |= {"columns": dict(columns or {}), "adapters": dict(adapters or {})}
        return _only(load_trace_file(workload, seed=seed, **options), models)
    given_options = (
        ("format", format != "auto"), ("columns", bool(columns)), ("time_unit", time_unit != "auto"),
        ("adapters", bool(adapters)),
    )  # fmt: skip
    for name, given in given_options:
        if given:
            raise ValueError(f"{name} is for trace files; {ref} is a workload, which says its own")
    return _only(load_document(workload, seed=seed, limit=limit, skip_bad=skip_bad), models)


class SeededTraces(NamedTuple):
    """A workload under several seeds. draws: how many of them are a recording's sessions, drawn anew."""

    traces: tuple[CompiledTrace, ...]
    draws: int


def load_traces(
    ref: str | Path, seeds: Sequence[int], *, limit: int | None = None, catalogue: Catalogue | None = None
) -> SeededTraces:
    """A workload as each seed draws it.

    The first seed's is that of ``load_trace``. A trace file is the same for every seed. So further seeds draw its
    sessions anew (``traces.changes.bootstrap``), by its schemes in turn, where it has sessions to draw from.

    Args:
        ref: see ``find_workload``.
        seeds: at least one.
        limit: keep the first requests only.
        catalogue: where names are looked up.

    Raises:
        SpecError, TraceError: with file, line and key.
    """
    from hisearch.traces.changes.bootstrap import resample, session_table
    from hisearch.traces.sampling import stream

    traces = tuple(load_trace(ref, seed=seed, limit=limit, catalogue=catalogue) for seed in seeds)
    workload = find_workload(ref, catalogue)
    table = session_table(traces[0]) if isinstance(workload, Path) or workload.spec.file is not None else None
    if len(seeds) == 1 or table is None or len(table) == 1:
        return SeededTraces(traces, 0)
    drawn = [traces[0]]
    for number, (trace, seed) in enumerate(zip(traces[1:], seeds[1:], strict=True)):
        if trace.digest != table.trace.digest:  # starts of sessions, or moments within a second, are drawn by seed
            table = session_table(trace)
            assert table is not None  # it has the same sessions
        drawn.append(resample(table, table.schemes[number % len(table.schemes)], stream("sessions drawn anew", seed)))
    return SeededTraces(tuple(drawn), len(drawn) - 1)


def generator_of(ref: str | Path, catalogue: Catalogue | None = None) -> GeneratorSpec | None:
    """What a workload is drawn from; None of a file's, or of agents. Errors as of ``find_workload``."""
    workload = find_workload(ref, catalogue)
    return None if isinstance(workload, Path) else workload.spec.generator


def _only(trace: CompiledTrace, models: Collection[str]) -> CompiledTrace:
    from hisearch.traces.changes.selection import requests_for

    return requests_for(trace, models) if models else trace


def first_requests(trace: Trace, count: int) -> Trace:
    """The first ``count`` requests in the order of the file; they refer to no later ones.

    Raises:
        ValueError: ``count`` is less than 1.
    """
    if count < 1:
        raise ValueError(f"a trace needs at least 1 request, not {count}")
    columns: dict[str, Any] = {field.name: getattr(trace, field.name) for field in fields(trace)}
    cut: dict[str, Any] = {
        name: values[:count] for name, values in columns.items() if isinstance(values, list | np.ndarray)
    }
    kept = np.arange(min(count, len(trace)))
    agents = None if trace.agents is None else reordered(trace.agents, kept)
    return replace(trace, models=chosen(trace.models, kept), agents=agents, **cut)


def check_format(name: str) -> None:
    """Refuse an unknown trace format.

    Raises:
        ValueError: the format is unknown; lists the known ones.
    """
    known = get_args(TraceFormat)
    if name not in known:
        raise ValueError(f"no trace format '{name}'{unknown(name, known)}")


def parse_columns(mappings: Iterable[str]) -> dict[str, str]:
    """``columns`` from text such as ``arrival_s=ts,input_tokens=prompt``; quote a mapping with a comma in its column.

    Raises:
        ValueError: a part is no ``FIELD=COLUMN``, or a field is given twice.
    """
    columns: dict[str, str] = {}
    for part in (part for row in csv.reader(mappings, skipinitialspace=True) for part in row):
        field, equals, column = part.partition("=")
        field = field.strip()
        if not (field and equals and column.strip()):
            raise ValueError(f"columns: expected FIELD=COLUMN, for example arrival_s=ts, got '{part}'")
        if field in columns:
            raise ValueError(f"columns: {field} is given twice")
        columns[field] = column.strip()
    return columns


def parse_adapters(given: Iterable[str]) -> dict[str, int]:
    """``adapters`` from text such as ``planner=16,writer=64``; a name alone has the deployment's rank (0).

    Raises:
        ValueError: a part is no ``NAME`` or ``NAME=RANK``, or a name is given twice.
    """
    adapters: dict[str, int] = {}
    for part in (part for row in csv.reader(given, skipinitialspace=True) for part in row):
        # Names may hold a sign of equality themselves.
        name, equals, rank = part.strip().rpartition("=")
        name, rank = (name.strip(), rank.strip()) if equals else (rank, "0")
        if not name or not rank.isascii() or not rank.isdigit():
            raise ValueError(f"adapters: expected NAME=RANK, for example planner=16, or NAME, got '{part}'")
        if name in adapters:
            raise ValueError(f"adapters: {name} is given twice")
        adapters[name] = int(rank)
    return adapters
