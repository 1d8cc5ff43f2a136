"""Compiled traces on disk, keyed by the hash of all their inputs."""

from __future__ import annotations

import hashlib
import json
import logging
import tempfile
import zipfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from hisearch.base.folders import cache_root
from hisearch.traces.adapters import Named, RequestAdapters, RequestGrammars
from hisearch.traces.agents import AGENT_DTYPES, AGENT_NAMES, AgentArrays, agent_arrays
from hisearch.traces.compiled import CompiledTrace, TraceArrays, digest_of
from hisearch.traces.compiler import freeze
from hisearch.traces.models import RequestModels

_LOG = logging.getLogger(__name__)

_CHUNK_BYTES = 1 << 20


def cache_folder() -> Path:
    """Folder ``traces`` of what can be computed again (see ``cache_root``)."""
    return cache_root() / "traces"


@cache
def _source_hash() -> str:
    """Hash of this package's code: entries of other versions of the code are not found."""
    digest = hashlib.sha256()
    folder = Path(__file__).parent
    for path in sorted(folder.rglob("*.py")):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def cache_key(options: dict[str, object], file: Path | None = None) -> str:
    """Hash of a file's bytes, the options that it is read with and the code that reads it.

    Args:
        options: JSON values, among them the generator where there is no file.
        file: the trace file.

    Raises:
        OSError: the file cannot be read.
    """
    digest = hashlib.sha256(f"{_source_hash()}{np.__version__}".encode())
    digest.update(json.dumps(options, sort_keys=True).encode())
    if file is not None:
        with file.open("rb") as raw:
            while chunk := raw.read(_CHUNK_BYTES):
                digest.update(chunk)
    return digest.hexdigest()


def load_cached(key: str, name: str) -> CompiledTrace | None:
    """The compiled trace stored under ``key``, or None; a damaged entry is reported and counts as absent."""
    path = cache_folder() / f"{key}.npz"
    if not path.is_file():
        return None
    try:
        return read_compiled(path, name)
    except ValueError as error:
        _LOG.warning("cached trace %s is damaged and will be built again: %s", path, error)
        return None


def read_compiled(path: Path, name: str, key: str | None = None) -> CompiledTrace:
    """The compiled trace in a file that ``write_compiled`` made.

    Args:
        path: the file.
        name: what reports call the trace.
        key: what it must have been written with.

    Raises:
        ValueError: the file cannot be read, is damaged, or was written with another key.
    """
    try:
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as stored:
            columns = {column: stored[column] for column in TraceArrays._fields if column in stored}
            columns.setdefault("thinking_tokens", np.zeros(len(columns["input_tokens"]), np.int64))
            arrays = TraceArrays(**columns)
            meta = json.loads(bytes(stored["meta"]).decode())
            agents = _agents_in(stored, meta["agents"])
            names = meta["models"]
            models = None if names is None else RequestModels(tuple(names), stored["model"])
            adapters = _named_in(stored, RequestAdapters, meta.get("adapters"))
            grammars = _named_in(stored, RequestGrammars, meta.get("grammars"))
        if digest_of(arrays, agents, models, adapters, grammars) != meta["digest"]:
            raise ValueError("its digest does not match its content")
        if key is not None and meta["key"] != key:
            raise ValueError("it is of another workload, seed or limit")
        ids, cautions, notes = meta["request_ids"], tuple(meta["cautions"]), tuple(meta["notes"])
        return freeze(
            name, arrays, ids, meta["skipped_rows"], cautions, meta["block_tokens"], agents, models, notes,
            adapters=adapters, grammars=grammars,
        )  # fmt: skip
    except (OSError, EOFError, KeyError, TypeError, zipfile.BadZipFile) as error:
        raise ValueError(str(error)) from error


def _agents_in(stored: Any, names: dict[str, list[str]] | None) -> AgentArrays | None:
    """The agents of a stored trace: its columns, and their ``names``; None where it has none."""
    if names is None:
        return None
    columns: dict[str, Any] = {column: stored[column] for column in AGENT_DTYPES}
    columns |= {name: tuple(names[name]) for name in AGENT_NAMES}
    return AgentArrays(**columns)


#: Names of the stored columns of what requests ask for by name.
_NAMED = {
    RequestAdapters: ("request_adapter_rank", "request_adapter"),
    RequestGrammars: ("request_grammar_s", "request_grammar"),
}


def _named_in(stored: Any, kind: type[Named], names: list[str] | None) -> Named | None:
    """Adapters or grammars of a stored trace, with their ``names``; None where it has none."""
    return None if names is None else kind(tuple(names), *(stored[column] for column in _NAMED[kind]))


def store_cached(key: str, trace: CompiledTrace) -> None:
    """Store a compiled trace under ``key``. A cache folder that cannot be written to is reported; it is no error."""
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_compiled(folder / f"{key}.npz", trace, key)
    except OSError as error:
        _LOG.warning("the compiled trace could not be kept in %s: %s", folder, error)


def write_compiled(path: Path, trace: CompiledTrace, key: str) -> None:
    """Write a compiled trace: to a temporary file, which is then renamed.

    Raises:
        OSError: the file cannot be written.
    """
    meta = {
        "key": key, "digest": trace.digest, "request_ids": list(trace.request_ids), "skipped_rows": trace.skipped_rows,
        "cautions": trace.cautions, "notes": trace.notes, "block_tokens": trace.block_tokens,
        "agents": None if trace.agents is None else {name: getattr(trace.agents, name) for name in AGENT_NAMES},
        "models": None if trace.models is None else trace.models.names,
        "adapters": None if trace.adapters is None else trace.adapters.names,
        "grammars": None if trace.grammars is None else trace.grammars.names,
    }  # fmt: skip
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".", suffix=".part", delete=False) as raw:
        temporary = Path(raw.name)
        try:
            blob = np.frombuffer(json.dumps(meta).encode(), dtype=np.uint8)
            agents = {} if trace.agents is None else agent_arrays(trace.agents)
            models: dict[str, Any] = {} if trace.models is None else {"model": trace.models.model}
            for named in (trace.adapters, trace.grammars):
                models |= {} if named is None else dict(zip(_NAMED[type(named)], named[1:], strict=True))
            np.savez(raw, meta=blob, **trace.arrays._asdict(), **agents, **models)
            raw.close()
            temporary.chmod(0o644)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
