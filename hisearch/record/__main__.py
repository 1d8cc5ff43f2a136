"""Entry point of ``python -m hisearch.record``."""

from __future__ import annotations

import argparse
import functools
import importlib
import os
import sys
from collections.abc import Iterable
from pathlib import Path


def main(arguments: list[str] | None = None) -> int:
    """Record cases; the exit status is 1 where a case failed, 2 where nothing could be recorded."""
    options = _parser().parse_args(arguments)
    return _record_router(options) if options.engine in ("router", "dynamo") else _record_engine(options)


def _record_router(options: argparse.Namespace) -> int:
    from hisearch.record.router import cases, dynamo, run
    from hisearch.record.router.cases import CaseError, read_case
    from hisearch.record.router.run import RecordingError

    real = dynamo if options.engine == "dynamo" else run
    random_case = dynamo.random_case if options.engine == "dynamo" else cases.random_case
    if options.feature is not None:
        random_case = dynamo.random_events_case if options.engine == "dynamo" else cases.random_pd_case
    try:
        real.version()
        if options.cases:
            named = {path.name.split(".")[0]: read_case(path) for path in options.cases}
        else:
            named = {f"{seed}": random_case(seed) for seed in range(options.seed, options.seed + options.random)}
        failed = real.record_all(named, options.out)
    except (CaseError, RecordingError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return _status(failed)


def _record_engine(options: argparse.Namespace) -> int:
    # PyYAML is not where a router alone is installed.
    from hisearch.record.cases import Case, CaseError, EngineError, random_cases, read_cases, record_cases

    engine = importlib.import_module(f"hisearch.record.{options.engine}")
    try:
        cases: Iterable[Case]
        if options.cases:
            cases = [case for path in options.cases for case in read_cases(path, engine.SETTINGS, engine.BLOCK_KEY)]
        else:
            draw = engine.draw
            if getattr(options, "feature", None):
                draw = functools.partial(draw, feature=options.feature)
            cases = random_cases(options.random, options.seed, draw)
        engine.version()
        failed = record_cases(cases, options.out, engine.record)
    except (CaseError, EngineError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return _status(failed)


def _status(failed: list[str]) -> int:
    if failed:
        print(f"error: {len(failed)} cases failed: {', '.join(failed[:10])}", file=sys.stderr)
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m hisearch.record",
        description="Record what an engine's own scheduler or a router decides. Run it with the Python that has it.",
    )
    engines = parser.add_subparsers(dest="engine", required=True, metavar="ENGINE")
    names = {
        "vllm": "the scheduler of vLLM 0.19 to 0.33",
        "sglang": "the scheduler of SGLang",
        "router": "sglang-router",
        "dynamo": "NVIDIA Dynamo's KV router",
    }
    for name, title in names.items():
        command = engines.add_parser(name, help=title, description=f"Record {title}.")
        source = command.add_mutually_exclusive_group(required=True)
        source.add_argument(
            "--cases",
            type=Path,
            nargs="+",
            metavar="FILE",
            help="case files (YAML; of a router JSON), or recordings to repeat",
        )
        source.add_argument("--random", type=int, metavar="N", help="draw N cases, of the seeds SEED to SEED + N - 1")
        command.add_argument("--seed", type=int, default=0, metavar="SEED", help="of --random (default: 0)")
        if name == "vllm":
            command.add_argument(
                "--with",
                dest="feature",
                choices=("adapters", "context", "drafts", "grammars", "lmcache", "offload", "states", "windows"),
                help="draw cases of --random with LoRA adapters, with ranks that share each sequence's KV, with "
                "drafted tokens, with grammars of structured output, with LMCache's connector, as installed, with "
                "vLLM's OffloadingConnector, with linear attention's states, or with sliding windows",
            )
        for other, features, what in (
            (
                "sglang",
                ("adapters", "context", "drafts", "grammars", "states", "windows"),
                "with LoRA adapters, ranks that share each sequence's KV, drafted tokens, grammars, states of linear "
                "attention or windows (0.5.23)",
            ),
            ("router", ("pd",), "before prefill or decode workers"),
            ("dynamo", ("events",), "by the workers' KV events, which need nats-server"),
        ):
            if name == other:
                command.add_argument("--with", dest="feature", choices=features, help=f"draw cases of --random {what}")
        command.add_argument(
            "--out", type=Path, required=True, metavar="DIR", help="folder of the recordings; what it holds is skipped"
        )
    return parser


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # Threads that an engine started may wait for ever.
