from __future__ import annotations

import json
import os
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    """Compiled traces of a test stay in its own folder; jitted code stays where it was compiled."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setattr("hisearch.traces.cache.cache_folder", lambda: folder)


@pytest.fixture(scope="session")
def shared_traces() -> Path:
    """Folder of public traces; tests that need it are skipped where it is absent."""
    root = Path(os.environ.get("HISEARCH_SHARED") or Path(__file__).parents[3] / "shared")
    if not (root / "traces").is_dir():
        pytest.skip(f"public traces not found in {root / 'traces'}; set HISEARCH_SHARED to the folder that holds them")
    return root / "traces"


@pytest.fixture
def write(tmp_path):
    """Writes rows (dictionaries) or text to a file of a given name; returns its path."""

    def to_file(name: str, rows) -> Path:
        path = tmp_path / name
        text = rows if isinstance(rows, str) else "".join(json.dumps(row) + "\n" for row in rows)
        path.write_text(text, encoding="utf-8")
        return path

    return to_file
