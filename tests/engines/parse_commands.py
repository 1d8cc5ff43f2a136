"""Push command lines through an engine's own argument parser: run with the Python that has the engine.

Reads {name: words} as JSON from standard input, the words without program and model, and writes {name: error} with ""
for those that the parser takes; with ``--flags`` it writes what the parser has instead. No GPU: vLLM is told that it
runs on one, SGLang's kernels are replaced by stand-ins.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

#: Parser, and what makes the engine's own arguments of what it returns.
Parser = tuple[argparse.ArgumentParser, Callable[[Any], Any]]


def vllm_parser() -> Parser:
    """``vllm serve``."""
    from vllm import platforms  # type: ignore[import-not-found]
    from vllm.platforms.interface import Platform, PlatformEnum  # type: ignore[import-not-found]

    names = {"_enum": PlatformEnum.CUDA, "device_name": "cuda", "device_type": "cuda", "dispatch_key": "CUDA"}
    platforms._current_platform = type("NamedGpu", (Platform,), names)()
    try:
        from vllm.entrypoints.common import cli_args  # type: ignore[import-not-found]
    except ImportError:
        from vllm.entrypoints.openai import cli_args  # type: ignore[import-not-found]
    from vllm.engine.arg_utils import AsyncEngineArgs  # type: ignore[import-not-found]
    from vllm.utils.argparse_utils import FlexibleArgumentParser  # type: ignore[import-not-found]

    def arguments(parsed: Any) -> Any:
        cli_args.validate_parsed_serve_args(parsed)
        return AsyncEngineArgs.from_cli_args(parsed)

    return cli_args.make_arg_parser(FlexibleArgumentParser()), arguments


def sglang_parser() -> Parser:
    """``python -m sglang.launch_server``."""
    from hisearch.record.sglang.standins import install

    install(version("sglang"))
    from sglang.srt.server_args import ServerArgs  # type: ignore[import-not-found]

    def arguments(parsed: Any) -> Any:
        # 0.5.9 looks at the model when its arguments are made; 0.5.23 does so later.
        return parsed if version("sglang") == "0.5.9" else ServerArgs.from_cli_args(parsed)

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    return parser, arguments


def error_of(parser: Parser, words: list[str]) -> str:
    """The error, or "" where the command line is taken."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            parser[1](parser[0].parse_args(words))
    except SystemExit:
        return said.getvalue().strip().splitlines()[-1]
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def flags_of(parser: argparse.ArgumentParser) -> dict[str, dict[str, Any]]:
    """Flag -> what it takes."""
    flags = {}
    for action in parser._actions:
        about: dict[str, Any] = {}
        if action.choices is not None:
            about["choices"] = sorted(str(choice) for choice in action.choices)
        if action.nargs == 0:
            about["switch"] = True
        flags |= {name: about for name in action.option_strings if name.startswith("--")}
    return flags


def main() -> None:
    """Read, parse, write."""
    engine = sys.argv[1]
    with contextlib.redirect_stdout(sys.stderr):
        parser = {"vllm": vllm_parser, "sglang": sglang_parser}[engine]()
    if "--flags" in sys.argv:
        answer: dict[str, Any] = flags_of(parser[0])
    else:
        leading = ["--model-path", "model"] if engine == "sglang" else ["model"]
        answer = {name: error_of(parser, [*leading, *words]) for name, words in json.load(sys.stdin).items()}
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
