"""The files of an export: they replace an earlier export's own files, never others."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import get_args

from hisearch.export.benchmark import BENCHMARK_PATHS
from hisearch.export.context import DEPLOYMENT, README, SLO, WORKLOAD
from hisearch.export.engines.flags import TABLES
from hisearch.export.engines.launch import ExportError
from hisearch.export.registry import PLATFORM_PATHS
from hisearch.specs.deployments.cluster import RoleName
from hisearch.specs.deployments.deployment import MOST_POOLS

#: Names and SHA-256 of an export's files, which a later export into the same folder may replace.
MANIFEST = "export.json"

#: Every path that an export may write, except the manifest's.
_NAMES = (
    *(README, DEPLOYMENT, WORKLOAD, SLO),
    *(f"{folder}{engine}/run.sh" for folder in ("", "alternatives/") for engine in TABLES),
    *(f"trtllm/{name}.yaml" for name in ("llm_api_options", *get_args(RoleName))),
    *(f"trtllm/{role}-{number}.yaml" for role in get_args(RoleName) for number in range(MOST_POOLS)),
    *PLATFORM_PATHS,
    *BENCHMARK_PATHS,
)


def write_export(folder: Path, files: Mapping[str, str]) -> list[Path]:
    """Write ``files`` (path in the folder -> text) and their manifest; an earlier export's own files are removed.

    Scripts (``.sh``) are made executable.

    Returns:
        The files written, in order, without the manifest.

    Raises:
        ExportError: a path of the export holds a file that no export wrote, or that was changed since. Nothing is
            written or removed then.
    """
    recorded = _recorded(folder)
    present = [name for name in _NAMES if os.path.lexists(folder / name)]
    foreign = [name for name in present if not _is_text(folder / name, recorded.get(name), files.get(name))]
    if os.path.lexists(folder / MANIFEST) and not recorded:
        foreign.append(MANIFEST)
    # A folder on the way to a file that is a link may lead anywhere.
    foreign += [
        name for name in files
        if any((folder / parent).is_symlink() for parent in Path(name).parents if parent != Path())
    ]  # fmt: skip
    if foreign:
        raise ExportError(
            f"{folder} holds {', '.join(foreign)}, not as an export wrote it: move it away, or choose another folder"
        )
    for name in present:
        if name not in files:
            (folder / name).unlink()
            _remove_empty((folder / name).parent, folder)
    digests = {name: _digest(text.encode()) for name, text in files.items()}
    written = [_write(folder / name, text) for name, text in files.items()]
    _write(folder / MANIFEST, json.dumps({"files": digests}, indent=2) + "\n")
    return written


def is_untouched(folder: Path) -> bool:
    """True where every file in the folder is unchanged since an export wrote it."""
    recorded = _recorded(folder)
    return all(
        name == MANIFEST or _is_text(folder / name, recorded.get(name), None)
        for path in sorted(folder.rglob("*"))
        if path.is_symlink() or not path.is_dir()
        for name in [str(path.relative_to(folder))]
    )


def _recorded(folder: Path) -> dict[str, str]:
    """Path -> SHA-256 of the files of an earlier export; empty without a readable manifest."""
    try:
        data = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, json.JSONDecodeError, UnicodeDecodeError):
        return {}
    files = data.get("files") if isinstance(data, dict) else None
    return files if isinstance(files, dict) else {}


def _is_text(path: Path, digest: str | None, text: str | None) -> bool:
    """True for a plain file with that digest or text."""
    if path.is_symlink() or not path.is_file():
        return False
    return _digest(path.read_bytes()) in {digest, _digest(text.encode()) if text is not None else digest}


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _remove_empty(folder: Path, top: Path) -> None:
    """Remove a folder and its parents, up to ``top``, where they are empty."""
    while folder != top and not any(folder.iterdir()):
        folder.rmdir()
        folder = folder.parent


def _write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", newline="\n")
    if path.suffix == ".sh":
        path.chmod(0o755 & ~_umask())
    return path


def _umask() -> int:
    current = os.umask(0o022)
    os.umask(current)
    return current
