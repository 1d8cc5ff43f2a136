"""File and symbol references on the pages exist in the code."""

import importlib
import re
from pathlib import Path

import pytest

from hisearch.base.policies import ADMISSIONS, AUTOSCALERS, EVICTIONS, PREFETCHES, QUEUE_ORDERS, ROUTERS, WRITE_POLICIES
from tests.docs.pages import ROOT, blocks, prose

#: Packages with a policy in each module.
POLICIES = {
    registry.package
    for registry in (ROUTERS, ADMISSIONS, AUTOSCALERS, EVICTIONS, QUEUE_ORDERS, WRITE_POLICIES, PREFETCHES)
}
GUIDES = [ROOT / "CONTRIBUTING.md", ROOT / "docs" / "simulator.md"]
MAP = ROOT / "docs" / "simulator.md"
#: Of other projects: rules of engines are quoted with the file that has them.
FOREIGN = {"py_executor.py", "resource_manager.py", "_util.py"}


def named_files(page: Path) -> set[str]:
    return set(re.findall(r"`([\w/]+\.py)(?:: \w+)?`", prose(page))) - FOREIGN


def named_places(page: Path) -> list[tuple[str, str]]:
    return re.findall(r"`([\w/]+\.py): (\w+)`", prose(page))


def matching_files(name: str) -> list[Path]:
    """Files of that path from the root, from the package or, without a folder, anywhere in either."""
    if "/" in name:
        return [path for path in (ROOT / name, ROOT / "hisearch" / name) if path.is_file()]
    return [path for top in ("hisearch", "tests", "docs") for path in (ROOT / top).rglob(name)]


def test_a_stale_place_is_noticed() -> None:
    assert ("kernels/routing/router.py", "route") in named_places(GUIDES[0])
    assert matching_files("kernels/routing/router.py")
    assert matching_files("radix.py")
    assert not matching_files("kernels/nothing.py")


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.name)
def test_files_that_are_named_exist(page: Path) -> None:
    assert [name for name in sorted(named_files(page)) if not matching_files(name)] == []


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.name)
def test_names_that_are_said_to_be_in_a_file_are_defined_there(page: Path) -> None:
    def defined(name: str, file: str) -> bool:
        pattern = rf"^(?:(?:def|class) {name}\b|{name}\b[^=\n]*=)"
        return any(re.search(pattern, path.read_text(encoding="utf-8"), re.MULTILINE) for path in matching_files(file))

    assert [f"{file}: {name}" for file, name in named_places(page) if not defined(name, file)] == []


@pytest.mark.parametrize("package", ["kernels", "simulate"])
def test_every_module_of_the_simulator_is_on_the_map(package: str) -> None:
    """A row for each folder, which names its modules and no others; of policies, the folder alone."""
    text, root = MAP.read_text(encoding="utf-8"), ROOT / "hisearch"
    for folder in {path.parent for path in (root / package).rglob("*.py")}:
        modules = {path.name for path in folder.glob("*.py")} - {"__init__.py"}
        if ".".join(folder.relative_to(root.parent).parts) in POLICIES:
            modules = set()
        rows = re.findall(rf"^\| `{folder.relative_to(root).as_posix()}/` \|(.*)\|$", text, re.MULTILINE)
        named = set(re.findall(r"`(\w+\.py)`", "".join(rows)))
        assert (folder.name, named) == (folder.name, modules)


def test_every_package_is_in_the_contributors_table() -> None:
    (table,) = (block.text for block in blocks(ROOT / "CONTRIBUTING.md", "") if "hisearch/specs" in block.text)
    packages = {path.parent.name for path in (ROOT / "hisearch").glob("*/__init__.py")}
    assert packages - set(re.findall(r"hisearch/(\w+)", table)) == set()


def test_python_calls_next_to_the_verbs_exist() -> None:
    """``package.module.name`` of the table of verbs, below ``hisearch``."""
    text = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `[^|]+\|[^|]+\|(.+)\|$", text.split("\n\nStandard output")[0], re.MULTILINE)
    packages = {path.parent.name for path in (ROOT / "hisearch").glob("*/__init__.py")}
    calls = [call for row in rows for call in re.findall(r"`(?:hisearch\.)?((?:\w+\.)+\w+)", row)]
    calls = [call for call in calls if call.split(".")[0] in packages]
    assert len(calls) > 10
    for call in calls:
        module, _, name = call.rpartition(".")
        assert hasattr(importlib.import_module(f"hisearch.{module}"), name), call
