"""What programs take on their command lines, read out of their wheels' syntax trees (see generate_engine_flags)."""

from __future__ import annotations

import ast
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

#: A flag -> {} or {"choices": [...]} and, where nothing follows it, {"switch": True}; {"deprecated": True} besides.
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

    def first(self, *modules: str) -> str:
        """The first of several paths that the wheel has: files move from release to release."""
        present = set(self.archive.namelist())
        return next(module for module in modules if module in present)

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
            about |= _of_action(ast.unparse(given.get("action", ast.Constant(""))), "nargs" in given)
            if not repeats:
                about.pop("repeats", None)
            if _is_deprecated(given.get("help")):
                about["deprecated"] = True
            flags |= dict.fromkeys(_names(call), about)
    return flags


def _of_action(action: str, takes: bool) -> dict[str, Any]:
    """What a flag's action says of it. takes: something follows it, whatever the action's default is."""
    about: dict[str, Any] = {}
    if action == "argparse.BooleanOptionalAction":
        about |= {"switch": True, "negated": True}
    elif "store_" in action or ("DeprecatedStore" in action and not takes):
        about["switch"] = True
    if action == "'append'":
        about["repeats"] = True
    if action.startswith("Deprecated"):
        about["deprecated"] = True
    return about


def _is_deprecated(text: ast.expr | None) -> bool:
    """Whether a help text begins by saying so."""
    first = next((n.value for n in ast.walk(text) if isinstance(n, ast.Constant)), "") if text is not None else ""
    return str(first).lstrip("([ ").lower().startswith("deprecated")


def sglang_server(wheel: Wheel) -> Flags:
    """Flags of the server: of ``add_argument`` calls and, in later releases, of annotated fields."""
    trees = [wheel.tree("sglang/srt/server_args.py")]
    folder = "sglang/srt/arg_groups/"
    fields = [wheel.tree(module) for module in wheel.modules(folder + "fields/")]
    if not fields:
        return argparse_flags(*trees)
    aliases = [wheel.tree(folder + "choices.py"), wheel.tree("sglang/srt/lora/utils.py")]
    named, flags = _constants(*aliases, *fields), argparse_flags(*trees)
    for tree in fields:
        for members in _fields(tree).values():
            for name, annotation in members.items():
                flags |= _sglang_field(name, annotation, named)
    return flags


def _sglang_field(name: str, annotation: ast.expr, named: dict[str, list[str]]) -> Flags:
    """``name: A[TYPE, "help"]`` or ``A[TYPE, Arg(help=..., cli_name=..., ...)]``: a flag and its other names."""
    if not isinstance(annotation, ast.Subscript) or ast.unparse(annotation.value) not in {"A", "Annotated"}:
        return {}
    assert isinstance(annotation.slice, ast.Tuple), name
    kind, *details = annotation.slice.elts
    call = next((d for d in details if isinstance(d, ast.Call) and ast.unparse(d.func) == "Arg"), None)
    if call is None and not any(isinstance(d, ast.Constant | ast.JoinedStr | ast.BinOp) for d in details):
        return {}
    given = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg} if call is not None else {}
    if "no_cli" in given:
        return {}
    about: dict[str, Any] = {}
    choices = _words(given.get("choices"), named) or _literals(_not_none(kind), {})
    if choices:
        about["choices"] = sorted(choices)
    if "action" in given:
        about |= _of_action(ast.unparse(given["action"]), "nargs" in given)
    elif ast.unparse(_not_none(kind)) == "bool" and "type_parser" not in given:
        about["switch"] = True
    if _is_deprecated(given.get("help", details[0])):
        about["deprecated"] = True
    names = [ast.literal_eval(given["cli_name"])] if "cli_name" in given else ["--" + name.replace("_", "-")]
    names += ast.literal_eval(given["aliases"]) if "aliases" in given else []
    return dict.fromkeys((name for name in names if name.startswith("--")), about)


def _not_none(annotation: ast.expr) -> ast.expr:
    """X of ``Optional[X]`` and ``X | None``."""
    if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "Optional":
        return annotation.slice
    if isinstance(annotation, ast.BinOp) and ast.unparse(annotation.right) == "None":
        return annotation.left
    return annotation


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
    server = wheel.first("vllm/entrypoints/openai/cli_args.py", "vllm/entrypoints/common/cli_args.py")
    modules = [*wheel.modules("vllm/config/"), "vllm/engine/arg_utils.py", server]
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
    flags = argparse_flags(arguments, trees[server])
    for call in _calls(arguments, "add_argument"):
        unpacked = (node for keyword in call.keywords if keyword.arg is None for node in ast.walk(keyword.value))
        for node in unpacked:
            if isinstance(node, ast.Subscript) and ast.unparse(node.value) in of_group:
                annotation = classes.get(of_group[ast.unparse(node.value)], {}).get(ast.literal_eval(node.slice))
                flags |= dict.fromkeys(_names(call), _of_field(annotation, aliases))
    for name in ("FrontendArgs", "BaseFrontendArgs"):
        for field, annotation in classes.get(name, {}).items():
            flags["--" + field.replace("_", "-")] = _of_field(annotation, aliases)
    if b"class EnableDisableAction" in wheel.archive.read("vllm/utils/argparse_utils.py"):
        flags = _with_opposites(flags)
    return flags


def _with_opposites(flags: Flags) -> Flags:
    """``--disable-x`` beside ``--enable-x`` and the reverse, of which ``--no-enable-x`` is a hidden spelling."""
    paired = Flags()
    for flag, about in flags.items():
        prefix = next((prefix for prefix in ("--enable-", "--disable-") if flag.startswith(prefix)), "")
        if prefix and about.get("negated"):
            opposite = "--disable-" if prefix == "--enable-" else "--enable-"
            switch = {key: value for key, value in about.items() if key != "negated"}
            paired |= {flag: switch, opposite + flag.removeprefix(prefix): switch}
        else:
            paired[flag] = about
    return paired


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


def vllm_bench(wheel: Wheel) -> Flags:
    """``vllm bench serve``: its own flags and those of its data sets."""
    datasets = wheel.first("vllm/benchmarks/datasets.py", "vllm/benchmarks/datasets/datasets.py")
    return argparse_flags(wheel.tree("vllm/benchmarks/serve.py"), wheel.tree(datasets))


def sglang_bench(wheel: Wheel) -> Flags:
    """``sglang.bench_serving``, which is ``sglang.benchmark.serving`` in later releases."""
    return argparse_flags(wheel.tree(wheel.first("sglang/benchmark/serving.py", "sglang/bench_serving.py")))


def dynamo_frontend(wheel: Wheel) -> Flags:
    """Flags of Dynamo's frontend, which its own helpers add: ``add_argument`` and ``add_negatable_bool_argument``."""
    modules = ("dynamo/common/configuration/groups/kv_router_args.py", "dynamo/frontend/frontend_args.py")
    helpers = {"add_argument": {}, "add_negatable_bool_argument": {"switch": True, "negated": True}}
    flags = Flags()
    for call in (node for module in modules for node in ast.walk(wheel.tree(module)) if isinstance(node, ast.Call)):
        given = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
        if not isinstance(call.func, ast.Name) or call.func.id not in helpers or "flag_name" not in given:
            continue
        choices = _words(given.get("choices"), {})
        about = helpers[call.func.id] | ({} if choices is None else {"choices": sorted(choices)})
        flags[ast.literal_eval(given["flag_name"])] = about
    return flags
