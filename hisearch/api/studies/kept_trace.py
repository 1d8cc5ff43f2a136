"""The compiled trace that a run keeps in its folder, so that it can be resumed without the trace file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hisearch.specs.documents.kept import keep_documents
from hisearch.specs.documents.resolved import KEPT_TRACE, ResolvedStudy
from hisearch.specs.errors import SpecError
from hisearch.traces.cache import read_compiled, write_compiled
from hisearch.traces.compiled import CompiledTrace
from hisearch.traces.load import reference_key, trace_name


def _key(resolved: ResolvedStudy) -> str:
    return reference_key(resolved.study.workload, resolved.workload, resolved.study.seed)


def kept_trace(resolved: ResolvedStudy) -> CompiledTrace | None:
    """The trace that the study's run keeps; None where there is none, or settings ask for another one.

    Raises:
        SpecError: it cannot be used, and the trace file is gone.
    """
    path, workload = resolved.kept_trace, resolved.workload
    if path is None:
        return None
    name = trace_name(workload) if isinstance(workload, Path) else workload.name
    try:
        trace = read_compiled(path, name, _key(resolved))
    except ValueError as error:
        if resolved.trace_file is None or not resolved.trace_file.is_file():
            message = f"the run's own copy of {resolved.trace_file}, which is gone, cannot be used: {error}"
            raise SpecError.at(message, path=path) from error
        return None
    return replace(trace, ignore_eos=False if isinstance(workload, Path) else workload.spec.ignore_eos)


def keep_inputs(resolved: ResolvedStudy, trace: CompiledTrace | None, folder: Path) -> None:
    """Keep in a run folder what the study names, and its ``trace`` if it comes from a file; None: another is used."""
    keep_documents([resolved], folder)
    if resolved.trace_file is not None and trace is not None and not (folder / KEPT_TRACE).is_file():
        write_compiled(folder / KEPT_TRACE, trace, _key(resolved))
