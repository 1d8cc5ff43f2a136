"""Platforms declare themselves: what the registry finds, and what is written of them."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from hisearch.cli.verbs.folder import export
from hisearch.export.registry import PLATFORM_PATHS, PLATFORMS, files_of

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("name", PLATFORMS)
def test_a_platform_declares_itself_and_writes_files(name: str) -> None:
    platform = PLATFORMS[name]
    assert platform.title
    assert platform.summary
    assert next(iter(inspect.signature(files_of(name)).parameters)) == "export"
    assert all(f"{platform.folder}/{path}" in PLATFORM_PATHS for path in platform.paths)


def test_platforms_are_written_in_the_order_of_their_ranks() -> None:
    assert list(PLATFORMS) == ["scripts", "compose", "kubernetes", "llm_d", "dynamo", "production_stack", "aibrix"]
    assert len({platform.rank for platform in PLATFORMS.values()}) == len(PLATFORMS)


def test_help_and_docs_name_every_platform() -> None:
    text = " ".join((export.__doc__ or "").split())
    page = (DOCS / "report.md").read_text(encoding="utf-8")
    for platform in PLATFORMS.values():
        assert platform.title.removesuffix("'s Helm chart").removeprefix("NVIDIA ") in text
        assert f"| `{platform.folder}/` |" in page or not platform.folder
