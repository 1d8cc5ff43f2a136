"""The house: imports run one way, between packages and between the modules of each."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest

import hisearch
from hisearch.base.engine_rules import RULES

ROOT = Path(hisearch.__file__).parent
#: Packages from the lowest floor up; a module imports from its own floor and from those below.
FLOORS = (
    ("base", "record"), ("specs",), ("traces", "hardware", "observe"), ("latency",), ("kernels", "calibrate"),
    ("simulate",), ("score", "validate", "verify"), ("search",), ("report",), ("export",), ("api",), ("cli",),
)  # fmt: skip


def modules() -> dict[str, Path]:
    """Every module by name; packages by theirs."""
    modules_by_name = {}
    for path in ROOT.rglob("*.py"):
        parts = ["hisearch", *path.relative_to(ROOT).with_suffix("").parts]
        modules_by_name[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return modules_by_name


def imports(tree: ast.AST, known: Mapping[str, Path]) -> Iterator[str]:
    """Modules that one imports, at its head, in functions and for types alike."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module in known:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in known else str(node.module)


def named(tree: ast.AST) -> set[str]:
    """Variables, parameters, functions and classes of a module."""
    return {
        node.arg if isinstance(node, ast.arg) else node.id if isinstance(node, ast.Name) else node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.arg | ast.FunctionDef | ast.ClassDef)
        or (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    }


def circle(graph: Mapping[str, set[str]]) -> list[str]:
    """Modules that import each other in a ring; empty where none do."""
    done: set[str] = set()
    for start in graph:
        way: list[str] = []
        todo = [(start, iter(sorted(graph[start])))]
        while todo:
            name, following = todo[-1]
            if name not in way:
                way.append(name)
            ahead = next((other for other in following if other not in done), None)
            if ahead in way:
                return [*way[way.index(str(ahead)) :], str(ahead)]
            if ahead is None:
                done.add(name)
                way.remove(name)
                todo.pop()
            else:
                todo.append((ahead, iter(sorted(graph[ahead]))))
    return []


KNOWN = modules()


@pytest.fixture(scope="module")
def graph() -> dict[str, set[str]]:
    """Every module's imports."""
    return {name: others for name, (others, _) in _read().items()}


@cache
def _read() -> dict[str, tuple[set[str], set[str]]]:
    """Every module's imports and names; its tree, which would fill the memory, is not kept."""
    trees = ((name, ast.parse(path.read_bytes())) for name, path in KNOWN.items())
    return {name: (set(imports(tree, KNOWN)) - {name}, named(tree)) for name, tree in trees}


def test_a_ring_is_found() -> None:
    assert circle({"a": {"b"}, "b": {"c", "d"}, "c": set(), "d": {"b"}}) == ["b", "d", "b"]
    assert circle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def test_no_modules_import_each_other(graph: dict[str, set[str]]) -> None:
    assert circle(graph) == []


def test_packages_stand_on_those_below(graph: dict[str, set[str]]) -> None:
    floor = {package: height for height, packages in enumerate(FLOORS) for package in packages}
    upward = [
        f"{name} imports {other}"
        for name, others in graph.items()
        for other in sorted(others)
        if name.count(".") and other.count(".")
        for mine, theirs in [(name.split(".")[1], other.split(".")[1])]
        if mine in floor and mine != theirs and floor[mine] <= floor.get(theirs, len(FLOORS))
    ]
    assert upward == []


def test_every_package_has_its_floor() -> None:
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert packages == {package for packages in FLOORS for package in packages}


#: Corridors that import each other by design: estimators are found by ``latency.estimator``, and price devices.
TOGETHER = {"latency": {"estimator", "estimators", "devices"}}
MOST_MODULES = 20


@pytest.mark.parametrize("package", [package for packages in FLOORS for package in packages])
def test_corridors_of_a_package_import_one_way(graph: dict[str, set[str]], package: str) -> None:
    """Of a package's sub-packages and its own modules."""
    together = TOGETHER.get(package, set())

    def corridor(name: str) -> str:
        part = name.split(".")[2]
        return "+".join(sorted(together)) if part in together else part

    within: dict[str, set[str]] = {}
    for name, others in graph.items():
        if name.startswith(f"hisearch.{package}.") and name.count(".") > 1:
            mine = within.setdefault(corridor(name), set())
            mine |= {corridor(other) for other in others if other.startswith(f"hisearch.{package}.")}
    for name, others in within.items():
        others.discard(name)
    assert circle({name: others & set(within) for name, others in within.items()}) == []


def test_no_folder_is_crowded() -> None:
    folders = {path.parent for path in KNOWN.values()}
    crowded = {
        folder.relative_to(ROOT).as_posix()
        for folder in folders
        if len(set(folder.glob("*.py")) - {folder / "__init__.py"}) > MOST_MODULES
    }
    assert not crowded


#: Most lines of a module: a longer one says two things.
MOST_LINES = 400


def test_no_module_is_long() -> None:
    lines = {name: len(path.read_bytes().splitlines()) for name, path in KNOWN.items()}
    assert not {name for name, count in lines.items() if count > MOST_LINES}


#: Names that say nothing of what they hold, and parts of names for which the field has other words.
EMPTY_NAMES = {"found", "here", "one", "told"}
EMPTY_PARTS = {
    "apart", "beside", "doubt", "doubts", "found", "here", "rival", "rivals", "sits", "surer", "told", "twin",
}  # fmt: skip
#: A key of files of measured runs and of what ``validate runs --json`` prints, which stays as it is.
KEYS = {"set_here"}
TESTS = Path(__file__).parent


def _says_nothing(name: str) -> bool:
    parts = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower().split("_")
    return name not in KEYS and (name.lower() in EMPTY_NAMES or not EMPTY_PARTS.isdisjoint(parts))


def test_names_say_what_they_hold() -> None:
    """Of variables, parameters, functions and classes; names of tests are sentences."""
    names = {name: held for name, (_, held) in _read().items()}
    names |= {str(path): named(ast.parse(path.read_bytes())) for path in TESTS.rglob("*.py")}
    empty = {
        name: [one_name for one_name in held if _says_nothing(one_name) and not one_name.startswith("test_")]
        for name, held in names.items()
    }
    assert not {name: held for name, held in empty.items() if held}


def test_record_fields_say_what_they_hold() -> None:
    assert not [name for name in _record_fields() if _says_nothing(name)]


@cache
def _record_fields() -> set[str]:
    """Fields of every record and of every table of arrays that kernels see."""
    fields = set[str]()
    for name in ("agents", "fleet", "hicache", "pages", "sim", "tiers"):
        for value in vars(importlib.import_module(f"hisearch.kernels.layout.{name}")).values():
            fields |= set(getattr(value, "names", None) or ())
            fields |= set(getattr(value, "FIELDS", ()))
    return fields


@pytest.mark.parametrize("path", sorted((ROOT / "kernels").rglob("*.py")), ids=lambda path: path.stem)
def test_kernels_name_what_there_is(path: Path) -> None:
    """Kernels have no types to be checked: a name that is gone would only be found when they are compiled."""
    tree = ast.parse(path.read_bytes())
    modules = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("hisearch"):
            for alias in node.names:
                with suppress(ImportError):
                    modules[alias.asname or alias.name] = importlib.import_module(f"{node.module}.{alias.name}")
    records = {"sim", "fleet", "worker", "request", "member"}
    fields = _record_fields()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Name):
            continue
        holder = node.value.id
        if holder in modules:
            assert hasattr(modules[holder], node.attr), f"{path}:{node.lineno}: {holder}.{node.attr}"
        elif holder in records:
            assert node.attr in fields, f"{path}:{node.lineno}: {holder}.{node.attr}"


def test_rules_are_fields_where_kernels_ask_for_them() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "kernels").rglob("*.py")))
    asked = set(re.findall(r"\bconfig\.(\w+)", text))
    rules = {rule.name: rule.in_kernels for engine in RULES.values() for rule in engine}
    assert {name for name, in_kernels in rules.items() if in_kernels} == asked & set(rules)


PACKAGES = sorted(name for name, path in KNOWN.items() if path.name == "__init__.py" and "." in name)


@pytest.mark.parametrize("name", PACKAGES)
def test_heads_say_what_their_packages_import(name: str, graph: dict[str, set[str]]) -> None:
    """Of the other packages beside it; "below" stands for what the named ones import in turn."""
    head = " ".join((ast.get_docstring(ast.parse(KNOWN[name].read_bytes())) or "").split())
    sentences = re.findall(r"(?:^|[.;:] (?:it )?)(imports? [^.;]+)", head, re.IGNORECASE)
    assert sentences, f"{name}: its head does not say what it imports"
    sentence = sentences[-1]
    parent = name.rpartition(".")[0]
    siblings = {other for other in PACKAGES if other.rpartition(".")[0] == parent}

    def imported(package: str) -> set[str]:
        within = (others for module, others in graph.items() if f"{module}.".startswith(f"{package}."))
        parts = {".".join(other.split(".")[: parent.count(".") + 2]) for others in within for other in others}
        return parts & siblings - {package}

    said = {f"{parent}.{part.partition('.')[0]}" for part in re.findall(r"``([\w.]+)``", sentence)} & siblings
    allowed = siblings - said if re.search(r"\b(all|everything)\b", sentence) else said
    while "below" in sentence and (more := {low for package in allowed for low in imported(package)} - allowed):
        allowed |= more
    assert imported(name) <= allowed


def test_a_module_has_one_alias() -> None:
    aliases: dict[str, set[str]] = {}
    for path in KNOWN.values():
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    aliases.setdefault(f"{node.module}.{alias.name}", set()).add(alias.asname or alias.name)
    assert {name: sorted(known) for name, known in aliases.items() if name in KNOWN and len(known) > 1} == {}
