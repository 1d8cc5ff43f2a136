"""Reads the command lines of serving engines and benchmark tools out of their wheels, without running them.

Usage::

    pip download --no-deps sglang==0.5.9 vllm==0.19.1 sglang-router==0.3.2 vllm-router==0.1.17 guidellm==0.8.1
    python docs/generate_engine_flags.py FOLDER            # prints what each program takes
    python docs/generate_engine_flags.py FOLDER --write    # writes tests/export/flags/PROGRAM-VERSION.json
    python docs/generate_engine_flags.py FOLDER --check    # exits with 1 where a list differs from the wheel's

Lists name flags, what may follow them where that is a closed set, and which of them take nothing; no text of the
packages is kept. Tests hold every command that an export writes against them.
"""

from __future__ import annotations

import ast
import json
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

TARGET = Path(__file__).resolve().parent.parent / "tests" / "export" / "flags"

#: A flag -> {} or {"choices": [...]} and, where nothing follows it, {"switch": True}.
Flags = dict[str, dict[str, Any]]


class Wheel:
    """The Python sources of a wheel."""

    def __init__(self, path: Path) -> None:
        """Open the wheel at ``path``."""
        self.archive = zipfile.ZipFile(path)
        self.name = path.name

    def tree(self, module: str) -> ast.Module:
        """Syntax tree of a file, by its path in the wheel."""
        return ast.parse(self.archive.read(module))

    def modules(self, folder: str) -> list[str]:
        """Paths of all Python files below ``folder``."""
        return [n for n in self.archive.namelist() if n.startswith(folder) and n.endswith(".py")]


def _calls(tree: ast.AST, name: str) -> Iterator[ast.Call]:
    return (n for n in ast.walk(tree) if isinstance(n, ast.Call) and getattr(n.func, "attr", "") == name)


def _names(call: ast.Call) -> list[str]:
    """Flags of a call; a prefix that is filled in at run time is left out, as the programs listed here have none."""
    names = []
    for argument in call.args:
        if isinstance(argument, ast.Constant):
            names.append(argument.value)
        elif isinstance(argument, ast.JoinedStr):
            names.append("".join(part.value for part in argument.values if isinstance(part, ast.Constant)))
    return [name for name in names if isinstance(name, str) and name.startswith("--") and len(name) > 2]


def _constants(*trees: ast.Module) -> dict[str, list[str]]:
    """Lists of words that are given names at the top of the modules; a dictionary counts as its keys."""
    constants: dict[str, list[str]] = {}
    for tree in trees:
        for node in tree.body:
            if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
                continue
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            words = _words(node.value, {})
            if words is not None:
                constants |= {target.id: words for target in targets if isinstance(target, ast.Name)}
    return constants


def _words(node: ast.expr | None, named: dict[str, list[str]]) -> list[str] | None:
    """A closed set of words or numbers, as text; None where it is not written out."""
    if isinstance(node, ast.Name):
        return named.get(node.id)
    if isinstance(node, ast.Dict):
        keys = [key.value if isinstance(key, ast.Constant) else None for key in node.keys]
        return [str(key) for key in keys] if all(key is not None for key in keys) else None
    if isinstance(node, ast.Call) and node.args:  # list(X.keys())
        inner = node.args[0]
        return _words(inner.func.value, named) if isinstance(inner, ast.Call) else None  # type: ignore[attr-defined]
    if isinstance(node, ast.List | ast.Tuple | ast.Set) and all(isinstance(e, ast.Constant) for e in node.elts):
        return [str(e.value) for e in node.elts if isinstance(e, ast.Constant)]
    return None


def argparse_flags(*trees: ast.Module, repeats: bool = False) -> Flags:
    """Flags of the ``add_argument`` calls of ``trees``; ``repeats``: which ones may be given several times, too."""
    named, flags = _constants(*trees), Flags()
    for tree in trees:
        for call in _calls(tree, "add_argument"):
            given = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
            about: dict[str, Any] = {}
            choices = _words(given.get("choices"), named)
            if choices is not None:
                about["choices"] = sorted(choices)
            if "store_" in ast.unparse(given.get("action", ast.Constant(""))):
                about["switch"] = True
            if repeats and ast.unparse(given.get("action", ast.Constant(""))) == "'append'":
                about["repeats"] = True
            flags |= dict.fromkeys(_names(call), about)
    return flags


def _fields(tree: ast.Module) -> dict[str, dict[str, ast.expr]]:
    """Class -> field -> annotation."""
    return {
        node.name: {
            item.target.id: item.annotation
            for item in node.body
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
        }
        for node in tree.body
        if isinstance(node, ast.ClassDef)
    }


def _literals(annotation: ast.expr, aliases: dict[str, ast.expr]) -> list[str] | None:
    """Members of a ``Literal``, through the names of aliases and unions with None; None for any other type."""
    if isinstance(annotation, ast.Name) and annotation.id in aliases:
        return _literals(aliases[annotation.id], aliases)
    if isinstance(annotation, ast.BinOp):
        sides = [s for s in (annotation.left, annotation.right) if ast.unparse(s) != "None"]
        members = [_literals(side, aliases) for side in sides]
        return None if None in members else [word for side in members for word in side or ()]
    if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value).endswith("Literal"):
        elements = annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else [annotation.slice]
        return [str(e.value) for e in elements if isinstance(e, ast.Constant)]
    return None


def _of_field(annotation: ast.expr | None, aliases: dict[str, ast.expr]) -> dict[str, Any]:
    """What a flag made from a field takes: vLLM makes switches of booleans, choices of literals."""
    if annotation is None:
        return {}
    text = ast.unparse(annotation)
    if text in {"bool", "bool | None"}:
        return {"switch": True, "negated": True}
    choices = _literals(annotation, aliases)
    return {"choices": sorted(choices)} if choices else {}


def vllm_serve(wheel: Wheel) -> Flags:
    """Engine arguments, each from a field of a config class, and those of the server."""
    modules = [*wheel.modules("vllm/config/"), "vllm/engine/arg_utils.py", "vllm/entrypoints/openai/cli_args.py"]
    trees = {module: wheel.tree(module) for module in modules}
    aliases = {
        node.targets[0].id: node.value
        for tree in trees.values()
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    classes = {name: fields for tree in trees.values() for name, fields in _fields(tree).items()}
    arguments = trees["vllm/engine/arg_utils.py"]
    of_group = {
        node.targets[0].id: ast.unparse(node.value.args[0])
        for node in ast.walk(arguments)
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Call)
        and ast.unparse(node.value.func) == "get_kwargs"
    }
    flags = argparse_flags(arguments, trees["vllm/entrypoints/openai/cli_args.py"])
    for call in _calls(arguments, "add_argument"):
        unpacked = (node for keyword in call.keywords if keyword.arg is None for node in ast.walk(keyword.value))
        for node in unpacked:
            if isinstance(node, ast.Subscript) and ast.unparse(node.value) in of_group:
                annotation = classes.get(of_group[ast.unparse(node.value)], {}).get(ast.literal_eval(node.slice))
                flags |= dict.fromkeys(_names(call), _of_field(annotation, aliases))
    for name in ("FrontendArgs", "BaseFrontendArgs"):
        for field, annotation in classes.get(name, {}).items():
            flags["--" + field.replace("_", "-")] = _of_field(annotation, aliases)
    return flags


def guidellm_run(wheel: Wheel) -> Flags:
    """``guidellm run``: an option for every part of its configuration; ``kind`` and its keys follow in one word."""
    tree, flags = wheel.tree("guidellm/schemas/benchmark/entrypoints.py"), Flags()
    for node in tree.body:
        if not isinstance(node, ast.ClassDef) or node.name != "BenchmarkArgs":
            continue
        for item in node.body:
            if isinstance(item, ast.AnnAssign) and isinstance(item.value, ast.Call):
                extra = next((k.value for k in item.value.keywords if k.arg == "json_schema_extra"), None)
                if extra is not None:
                    flags["--" + ast.literal_eval(extra)["argument_alias"].replace("_", "-")] = {}
    for call in _calls(wheel.tree("guidellm/cli/run.py"), "option"):
        flags |= {name: {} for name in _names(call)}
    kinds = _kinds(wheel)
    return {flag: about | ({"kinds": kinds[flag]} if flag in kinds else {}) for flag, about in flags.items()}


#: Option of guidellm -> modules with the classes of its kinds, base classes first.
_KIND_MODULES = {
    "--backend": ("backends/backend.py", "backends/openai_http.py"),
    "--profile": ("benchmark/profiles/profile.py", "benchmark/profiles/replay.py"),
    "--data": (
        "data/entrypoints.py", "data/deserializers/file.py", "data/deserializers/trace_common.py",
        "data/deserializers/trace_mooncake.py",
    ),
    "--output": ("benchmark/outputs/output.py", "benchmark/outputs/serialized.py"),
    "--tokenizer": ("data/entrypoints.py", "data/tokenizers/huggingface.py"),
}  # fmt: skip


def _kinds(wheel: Wheel) -> dict[str, dict[str, list[str]]]:
    """Option -> kind -> keys, with those of the classes that a kind's is made from."""
    present = set(wheel.archive.namelist())
    kinds: dict[str, dict[str, list[str]]] = {}
    for flag, modules in _KIND_MODULES.items():
        inherited: dict[str, set[str]] = {}
        for module in (f"guidellm/schemas/{name}" for name in modules):
            if module not in present:
                continue
            tree = wheel.tree(module)
            fields = _fields(tree)
            for node in tree.body:
                if isinstance(node, ast.ClassDef):
                    bases = [inherited.get(ast.unparse(base), set()) for base in node.bases]
                    keys = set(fields[node.name]).union(*bases) - {"model_config", "schema_discriminator"}
                    inherited[node.name] = keys
                    for kind in _literals(fields[node.name].get("kind", ast.Constant(None)), {}) or ():
                        kinds.setdefault(flag, {})[kind] = sorted(keys)
    return kinds


class Program(NamedTuple):
    """name: of the file. command: as typed. wheel: start of its file's name. read: its flags. modules: for the note."""

    name: str
    command: str
    wheel: str
    version: str
    read: Callable[[Wheel], Flags]
    modules: str


def _argparse(*modules: str, repeats: bool = False) -> Callable[[Wheel], Flags]:
    return lambda wheel: argparse_flags(*(wheel.tree(module) for module in modules), repeats=repeats)


PROGRAMS = (
    Program(
        "sglang", "python -m sglang.launch_server", "sglang", "0.5.9",
        _argparse("sglang/srt/server_args.py"), "sglang/srt/server_args.py",
    ),
    Program(
        "sglang-bench-serving", "python -m sglang.bench_serving", "sglang", "0.5.9",
        _argparse("sglang/bench_serving.py"), "sglang/bench_serving.py",
    ),
    Program(
        "sglang-router", "python -m sglang_router.launch_router", "sglang_router", "0.3.2",
        _argparse("sglang_router/router_args.py", repeats=True),
        "sglang_router/router_args.py, without the router- prefix",
    ),
    Program(
        "vllm-router", "vllm-router", "vllm_router", "0.1.17", _argparse("vllm_router/router_args.py", repeats=True),
        "vllm_router/router_args.py, without the router- prefix",
    ),
    Program(
        "vllm", "vllm serve", "vllm", "0.19.1", vllm_serve,
        "vllm/engine/arg_utils.py, vllm/config, vllm/entrypoints/openai/cli_args.py",
    ),
    Program(
        "vllm-bench-serve", "vllm bench serve", "vllm", "0.19.1",
        _argparse("vllm/benchmarks/serve.py", "vllm/benchmarks/datasets.py"),
        "vllm/benchmarks/serve.py, vllm/benchmarks/datasets.py",
    ),
    Program(
        "guidellm", "guidellm run", "guidellm", "0.8.1", guidellm_run,
        "guidellm/cli/run.py, guidellm/schemas",
    ),
)  # fmt: skip


def text_of(program: Program, folder: Path) -> str | None:
    """The list of ``program`` as it is written; None where its wheel is not in ``folder``."""
    wheels = sorted(folder.glob(f"{program.wheel}-{program.version}-*.whl"))
    if not wheels:
        return None
    flags = program.read(Wheel(wheels[0]))
    source = f"{program.modules} of the {program.version} wheel, read by docs/generate_engine_flags.py"
    head = {"command": program.command, "version": program.version, "source": source}
    lines = [f"    {json.dumps(flag)}: {json.dumps(flags[flag])}" for flag in sorted(flags)]
    top = [f"  {json.dumps(key)}: {json.dumps(value)}," for key, value in head.items()]
    return "\n".join(["{", *top, '  "flags": {', ",\n".join(lines), "  }", "}"]) + "\n"


def main(arguments: list[str]) -> int:
    """Print, write or check the lists whose wheels are in the folder."""
    folder = Path(next((word for word in arguments if not word.startswith("--")), "."))
    stale, seen = [], 0
    for program in PROGRAMS:
        text = text_of(program, folder)
        target = TARGET / f"{program.name}-{program.version}.json"
        if text is None:
            print(f"{program.wheel}-{program.version}: no wheel in {folder}", file=sys.stderr)
            continue
        seen += 1
        if "--write" in arguments:
            target.write_text(text, encoding="utf-8")
        elif "--check" in arguments:
            stale += [] if target.is_file() and target.read_text(encoding="utf-8") == text else [target.name]
        else:
            print(text, end="")
    for name in stale:
        print(f"tests/export/flags/{name} differs from its wheel", file=sys.stderr)
    return 1 if stale or not seen else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
