"""Reads the command lines of serving engines and benchmark tools out of their wheels, without running them.

Usage::

    pip download --no-deps sglang==0.5.23 vllm==0.33.0 sglang-router==0.3.2 vllm-router==0.1.17 guidellm==0.8.1
    pip download --no-deps ai-dynamo==1.1.1
    python docs/generate_engine_flags.py FOLDER            # prints what each program takes
    python docs/generate_engine_flags.py FOLDER --write    # writes tests/export/flags/PROGRAM-VERSION.json
    python docs/generate_engine_flags.py FOLDER --check    # exits with 1 where a list differs from the wheel's

Lists name flags, what may follow them where that is a closed set, which of them take nothing, and which are
deprecated; no text of the packages is kept. Tests hold every command that an export writes against them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from wheel_flags import (
    Flags,
    Wheel,
    argparse_flags,
    dynamo_frontend,
    guidellm_run,
    sglang_bench,
    sglang_server,
    vllm_bench,
    vllm_serve,
)

TARGET = Path(__file__).resolve().parent.parent / "tests" / "export" / "flags"


class Program(NamedTuple):
    """name: of the file. command: as typed. wheel: start of its file's name. read: its flags. modules: for the note."""

    name: str
    command: str
    wheel: str
    versions: tuple[str, ...]
    read: Callable[[Wheel], Flags]
    modules: str


def _argparse(*modules: str, repeats: bool = False) -> Callable[[Wheel], Flags]:
    return lambda wheel: argparse_flags(*(wheel.tree(module) for module in modules), repeats=repeats)


_SGLANG, _VLLM = ("0.5.9", "0.5.23"), ("0.19.1", "0.33.0")
PROGRAMS = (
    Program(
        "sglang", "python -m sglang.launch_server", "sglang", _SGLANG, sglang_server,
        "sglang/srt/server_args.py, sglang/srt/arg_groups/fields",
    ),
    Program(
        "sglang-bench-serving", "python -m sglang.bench_serving", "sglang", _SGLANG, sglang_bench,
        "sglang/bench_serving.py or sglang/benchmark/serving.py",
    ),
    Program(
        "sglang-router", "python -m sglang_router.launch_router", "sglang_router", ("0.3.2",),
        _argparse("sglang_router/router_args.py", repeats=True),
        "sglang_router/router_args.py, without the router- prefix",
    ),
    Program(
        "vllm-router", "vllm-router", "vllm_router", ("0.1.17",), _argparse("vllm_router/router_args.py", repeats=True),
        "vllm_router/router_args.py, without the router- prefix",
    ),
    Program(
        "dynamo-frontend", "python -m dynamo.frontend", "ai_dynamo", ("1.1.1",), dynamo_frontend,
        "dynamo/common/configuration/groups/kv_router_args.py, dynamo/frontend/frontend_args.py",
    ),
    Program("vllm", "vllm serve", "vllm", _VLLM, vllm_serve, "vllm/engine/arg_utils.py, vllm/config, cli_args.py"),
    Program(
        "vllm-bench-serve", "vllm bench serve", "vllm", _VLLM, vllm_bench,
        "vllm/benchmarks/serve.py, vllm/benchmarks/datasets",
    ),
    Program(
        "guidellm", "guidellm run", "guidellm", ("0.8.1",), guidellm_run,
        "guidellm/cli/run.py, guidellm/schemas",
    ),
)  # fmt: skip


def text_of(program: Program, version: str, folder: Path) -> str | None:
    """The list of a ``program``'s version as it is written; None where its wheel is not in ``folder``."""
    wheels = sorted(folder.glob(f"{program.wheel}-{version}-*.whl"))
    if not wheels:
        return None
    flags = program.read(Wheel(wheels[0]))
    source = f"{program.modules} of the {version} wheel, read by docs/generate_engine_flags.py"
    head = {"command": program.command, "version": version, "source": source}
    lines = [f"    {json.dumps(flag)}: {json.dumps(flags[flag])}" for flag in sorted(flags)]
    top = [f"  {json.dumps(key)}: {json.dumps(value)}," for key, value in head.items()]
    return "\n".join(["{", *top, '  "flags": {', ",\n".join(lines), "  }", "}"]) + "\n"


def main(arguments: list[str]) -> int:
    """Print, write or check the lists whose wheels are in the folder."""
    folder = Path(next((word for word in arguments if not word.startswith("--")), "."))
    stale, seen = [], 0
    for program, version in ((known, version) for known in PROGRAMS for version in known.versions):
        text = text_of(program, version, folder)
        target = TARGET / f"{program.name}-{version}.json"
        if text is None:
            print(f"{program.wheel}-{version}: no wheel in {folder}", file=sys.stderr)
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
