"""The documentation site: every page has its place, and the whole is built without a warning."""

from __future__ import annotations

import importlib.util
import json
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


def module_of(name: str) -> Any:
    """A module of ``docs``."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def hooks() -> Any:
    return module_of("site_hooks")


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


@pytest.fixture(scope="module")
def builder() -> Any:
    return module_of("build_site")


def test_versions_are_listed_the_newest_first(builder: Any, tmp_path: Path) -> None:
    for name in ("0.9.0", "0.10.0", "0.10.0.dev1", "1.0.0rc1"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "index.html").write_text("")
    (tmp_path / "assets").mkdir()
    names = builder.list_versions(tmp_path)
    assert names == ["1.0.0rc1", "0.10.0", "0.10.0.dev1", "0.9.0"]
    entries = json.loads((tmp_path / "versions.json").read_text())
    assert [entry["version"] for entry in entries] == names
    assert [entry["aliases"] for entry in entries] == [["latest"], [], [], []]
    links = re.findall(r'href="([^"]+)"', (tmp_path / "index.html").read_text())
    assert links == [f"{name}/index.html" for name in names]
    assert all((tmp_path / link).is_file() for link in links)


@pytest.mark.parametrize("name", ["", "..", "a/b", "../x", "-x", "a b"])
def test_a_version_is_the_name_of_a_folder(builder: Any, tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="expected a version"):
        builder.build(name, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_site_is_built_without_a_warning_beside_earlier_versions(tmp_path: Path) -> None:
    pytest.importorskip("material")
    (tmp_path / "0.0.1").mkdir()
    (tmp_path / "0.0.1" / "index.html").write_text("")
    command = [sys.executable, "docs/build_site.py", "0.0.2", "--site", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stdout + done.stderr
    site = tmp_path / "0.0.2"
    assert (site / "how-to" / "size.html").is_file()
    assert (site / "search" / "search_index.json").is_file()
    assert [entry["version"] for entry in json.loads((tmp_path / "versions.json").read_text())] == ["0.0.2", "0.0.1"]
    assert '"provider": "mike"' in (site / "index.html").read_text()
