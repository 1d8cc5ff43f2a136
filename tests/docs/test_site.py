"""The documentation site: every page has its place, and the whole is built without a warning."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.docs.pages import PAGES, ROOT, anchors, prose

#: Pages of the site that are made from files outside ``docs``.
OUTSIDE = {"index.md": "README.md", "CONTRIBUTING.md": "CONTRIBUTING.md", "CHANGELOG.md": "CHANGELOG.md"}


def places(tree: Any) -> Iterator[str]:
    """Pages of a navigation, in order."""
    if isinstance(tree, str):
        yield tree
    elif isinstance(tree, dict):
        for branch in tree.values():
            yield from places(branch)
    else:
        for branch in tree:
            yield from places(branch)


def test_every_page_stands_once_in_the_navigation() -> None:
    navigation = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    named = list(places(navigation))
    assert len(named) == len(set(named))
    written = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert set(named) == written | set(OUTSIDE)


@pytest.fixture(scope="module")
def hooks() -> Any:
    spec = importlib.util.spec_from_file_location("site_hooks", ROOT / "docs" / "site_hooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_headings_have_the_same_fragments_as_elsewhere(hooks: Any, page: Path) -> None:
    titles = [
        re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title)
        for title in re.findall(r"^#+ +(.+?) *$", prose(page), re.MULTILINE)
    ]
    assert {hooks.slugify(title, "-") for title in titles} <= anchors(page)


def test_remarks_and_outer_links_are_changed(hooks: Any) -> None:
    assert hooks.on_page_markdown("```sh slow: why\nx\n```\n") == "```sh\nx\n```\n"
    assert hooks.on_page_markdown("[a](../README.md#x)") == "[a](index.md#x)"
    assert hooks.on_page_markdown("[a](../tests/b.md)") == "a (`tests/b.md`)"
    assert hooks.on_page_markdown("<!-- a -->\n| b |\n<!-- /a -->\n") == "<!-- a -->\n\n| b |\n\n<!-- /a -->\n"
    assert hooks.inner_links("[a](docs/b.md) [L](LICENSE)") == "[a](b.md) L"


def test_the_first_page_fits_a_screen_and_a_half() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= 450


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "how-to").glob("*.md")), ids=lambda page: page.name)
def test_a_how_to_is_short(page: Path) -> None:
    assert len(page.read_text(encoding="utf-8").split()) <= 250


@pytest.mark.slow
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("material")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "true", "DISABLE_MKDOCS_2_WARNING": "true"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "site" / "how-to" / "size.html").is_file()
    assert (tmp_path / "site" / "search" / "search_index.json").is_file()
