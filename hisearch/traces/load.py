"""From a workload's spec, or a trace file, to a compiled trace; the disk cache in between."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from hisearch.specs.documents.document import Document
from hisearch.specs.studies.study import WorkloadRef
from hisearch.specs.workloads.agent_workload import AgentWorkloadSpec
from hisearch.specs.workloads.workload import TraceFileSpec, WorkloadSpec
from hisearch.traces.cache import cache_key, load_cached, store_cached
from hisearch.traces.changes.selection import head, requests_for
from hisearch.traces.compiled import CompiledTrace
from hisearch.traces.compiler import compile_trace
from hisearch.traces.generate import generate_trace
from hisearch.traces.generators import edge_list, generate_agents
from hisearch.traces.importers import read_trace
from hisearch.traces.reading.errors import TraceError
from hisearch.traces.trace import Trace


def load_workload(
    spec: WorkloadSpec,
    base_dir: Path,
    *,
    seed: int = 0,
    limit: int | None = None,
    skip_bad: int = 0,
    name: str = "workload",
) -> CompiledTrace:
    """Compile the workload that ``spec`` describes, or take it from the cache.

    Args:
        spec: a trace file, a generator, or a population of agents.
        base_dir: folder that a relative ``file.path`` is looked for in, before the working directory.
        seed: of everything random in it, in addition to the generator's own.
        limit: keep the first requests only (as ``file.limit``; the smaller counts).
        skip_bad: broken rows to tolerate (as ``file.skip_bad``; the larger counts).
        name: what reports call the trace.

    Raises:
        TraceError: the file is missing or cannot be used, see ``read_trace``; or it cannot be replayed as asked.
    """
    if spec.file is not None:
        path = find_trace_file(spec.file.path, base_dir)
        file = spec.file.model_copy(update={"skip_bad": max(skip_bad, spec.file.skip_bad)})
        compiled = _compiled_file(path, file, seed, name)
        limits = [bound for bound in (limit, file.limit) if bound is not None]
    elif spec.agents is not None:
        population = spec.agents
        edge_file = _edge_file(population, base_dir)
        key = cache_key(
            {"agents": population.model_dump(mode="json", exclude={"graph": {"path"}}), "seed": seed}, edge_file
        )
        compiled = load_cached(key, name) or _store(key, generate_population(population, base_dir, seed=seed), name)
        limits = [] if limit is None else [limit]
    else:
        assert spec.generator is not None  # the spec's own check
        generator = spec.generator
        key = cache_key({"generator": generator.model_dump(mode="json"), "seed": seed})
        compiled = load_cached(key, name) or _store(key, generate_trace(generator, seed=seed), name)
        limits = [] if limit is None else [limit]
    compiled = replace(compiled, ignore_eos=spec.ignore_eos)
    return head(compiled, min(limits)) if limits else compiled


def generate_population(spec: AgentWorkloadSpec, base_dir: Path, *, seed: int = 0) -> Trace:
    """The calls of a population, with the edges of its graph's file, which ``base_dir`` is looked through for.

    Raises:
        TraceError: that file is missing or no list of edges.
    """
    edge_file = _edge_file(spec, base_dir)
    return generate_agents(spec, seed=seed, edges=edge_list(edge_file, spec.agents) if edge_file is not None else None)


def _edge_file(spec: AgentWorkloadSpec, base_dir: Path) -> Path | None:
    return find_trace_file(spec.graph.path, base_dir) if spec.graph.path is not None else None


def load_trace_file(path: str | Path, *, name: str | None = None, seed: int = 0, **options: Any) -> CompiledTrace:
    """Compile one trace file; ``options`` are the fields of ``TraceFileSpec`` but ``path``.

    Raises:
        TraceError: see ``load_workload``.
        pydantic.ValidationError: an option that ``TraceFileSpec`` does not know or allow.
    """
    spec = WorkloadSpec(file=TraceFileSpec(path=str(path), **options))
    return load_workload(spec, Path.cwd(), seed=seed, name=name or trace_name(Path(path)))


def load_reference(ref: WorkloadRef, workload: Document[WorkloadSpec] | Path, seed: int) -> CompiledTrace:
    """The trace that a study's reference leads to, cut to the requests that it keeps.

    Raises:
        TraceError: see ``load_workload``.
        ValueError: it keeps requests for some models, which cannot be separated; see ``selection.requests_for``.
    """
    limit, skip_bad = ref.limit, ref.skip_bad
    if isinstance(workload, Path):
        trace = load_trace_file(workload, seed=seed, limit=limit, skip_bad=skip_bad)
    else:
        trace = load_document(workload, seed=seed, limit=limit, skip_bad=skip_bad)
    return requests_for(trace, ref.models) if ref.models else trace


def reference_key(ref: WorkloadRef, workload: Document[WorkloadSpec] | Path, seed: int) -> str:
    """Hash of what decides the trace of ``load_reference``, besides the content of its file; hexadecimal."""
    described = (
        str(workload) if isinstance(workload, Path) else workload.spec.model_dump(mode="json", exclude={"ignore_eos"})
    )
    asked = {"workload": described, "limit": ref.limit, "skip_bad": ref.skip_bad, "models": ref.models, "seed": seed}
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()


def load_document(
    workload: Document[WorkloadSpec], *, seed: int = 0, limit: int | None = None, skip_bad: int = 0
) -> CompiledTrace:
    """The workload of a document.

    Raises:
        TraceError: see ``load_workload``; it names the document, the line and the key that lead to the trace.
    """
    spec, folder = workload.spec, workload.path.parent
    try:
        return load_workload(spec, folder, seed=seed, limit=limit, skip_bad=skip_bad, name=workload.name)
    except TraceError as error:
        key = "file.path" if spec.file is not None else "generator" if spec.generator is not None else "agents"
        raise error.named_by(workload.problem(f"spec.{key}", "")) from error


def trace_name(path: Path) -> str:
    """A trace file's name without its endings."""
    return path.name.split(".")[0] or path.name


def find_trace_file(path: str, base_dir: Path) -> Path:
    """The file at ``path``: relative to ``base_dir``, the folder of its document, else to the working directory.

    Raises:
        TraceError: there is none.
    """
    tried = list(dict.fromkeys([base_dir / path, Path.cwd() / path]))
    for candidate in tried:
        if candidate.is_file():
            return candidate
    places = " or ".join(str(candidate.parent) for candidate in tried)
    known = _DOWNLOADS.get(tried[0].name.removesuffix(".gz"), "")
    raise TraceError.at(f"no trace file {tried[0].name} in {places}{known}", path=Path(path), key="path")


#: Where published traces come from, by file name.
_DOWNLOADS = {
    "conversation_trace.jsonl": "; download it from https://github.com/kvcache-ai/Mooncake "
    "(FAST25-release/traces/conversation_trace.jsonl), or name yours with --set spec.workload.trace=PATH",
}


def _compiled_file(path: Path, spec: TraceFileSpec, seed: int, name: str) -> CompiledTrace:
    # Where the file lies and how many requests are kept does not change what is compiled.
    options = spec.model_dump(mode="json", exclude={"path", "limit"})
    key = cache_key({"file": options, "seed": seed}, path)
    cached = load_cached(key, name)
    if cached is not None:
        return cached
    trace = read_trace(path, spec, seed=seed)
    try:
        return _store(key, trace, name, spec)
    except ValueError as error:
        raise TraceError.at(str(error), path=path) from error


def _store(key: str, trace: Trace, name: str, spec: TraceFileSpec | None = None) -> CompiledTrace:
    compiled = compile_trace(trace, name, spec.follow_ups if spec is not None else "auto")
    store_cached(key, compiled)
    return compiled
