"""``hisearch validate``: one part at a time, on data of the user's own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hisearch.cli import options
from hisearch.cli.compilation import note_compilation
from hisearch.cli.errors import ERROR

if TYPE_CHECKING:
    from hisearch.api.mlperf import Cell
    from hisearch.validate.cache_settings import CacheSettings
    from hisearch.validate.scheduler import IdlePasses

app = typer.Typer(help="Hold one part of hisearch against recorded truth.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def _group() -> None:
    pass


@app.command("cache")
def cache(
    trace: options.Trace,
    capacity_tokens: Annotated[
        str, typer.Option("--capacity-tokens", metavar="A,B,…", help="Cache sizes in tokens, at least a page.")
    ],
    policy: Annotated[
        str,
        typer.Option(
            "--policy",
            metavar="P,…",
            help="lru, lfu, fifo, mru, filo, slru, clock, arc, tlru, gdsf, ttl, priority; belady knows the future and "
            "bounds the others.",
        ),
    ] = "lru",
    page: Annotated[
        int | None,
        typer.Option(
            "--page",
            min=1,
            max=2**31 - 1,
            metavar="N",
            help="Tokens per page; the blocks of the trace where absent, or 16 where it has none.",
        ),
    ] = None,
    outputs: Annotated[
        bool, typer.Option("--outputs", help="Store outputs too, and whole pages alone, as engines do.")
    ] = False,
    tail_tokens: Annotated[
        int | None,
        typer.Option("--tail-tokens", metavar="N", help="tlru: uncached tokens with which a prompt is fast enough."),
    ] = None,
    turn_tokens: Annotated[
        int | None,
        typer.Option(
            "--turn-tokens", metavar="N", help="tlru: new tokens expected in a next prompt; the trace's mean if absent."
        ),
    ] = None,
    attention_tokens: Annotated[
        float | None,
        typer.Option(
            "--attention-tokens",
            metavar="N",
            help="gdsf: depth at which a token's attention costs as much as all else; 23000 if absent.",
        ),
    ] = None,
    ttl: Annotated[
        float | None,
        typer.Option("--ttl", metavar="S", help="ttl: seconds after its last use at which a page expires."),
    ] = None,
    reclaim: Annotated[
        str | None,
        typer.Option("--reclaim", metavar="HOW", help="ttl: when what expired goes: lazy, periodic or pressure."),
    ] = None,
    reclaim_period: Annotated[
        float | None, typer.Option("--reclaim-period", metavar="S", help="ttl: seconds between two periodic reclaims.")
    ] = None,
    trace_format: options.Format = "auto",
    seed: options.Seed = 0,
    limit: options.Limit = None,
    skip_bad: options.SkipBad = 0,
    columns: options.Columns = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """What a prefix cache alone hits of a trace, by size and policy.

    Requests are looked up and stored whole, one after another in order of arrival; nothing is scheduled.
    """
    from hisearch.api.deployments.workload import load_trace, parse_columns
    from hisearch.cli import output
    from hisearch.cli.views import cache as cache_view
    from hisearch.traces.stats import default_block_tokens
    from hisearch.validate.cache import cache_points, kernels_compiled
    from hisearch.validate.cache_settings import CacheSettings, complete_settings

    capacities = _capacities(capacity_tokens)
    policies = [name.strip() for name in policy.split(",")]
    user_settings = CacheSettings(tail_tokens, turn_tokens, attention_tokens, ttl, reclaim, reclaim_period)
    _check_policies(policies, user_settings)
    mapping = parse_columns(columns or ())
    compiled = load_trace(trace, seed=seed, limit=limit, skip_bad=skip_bad, format=trace_format, columns=mapping)
    if not quiet and not kernels_compiled(policies):
        output.note("compiling kernels, some seconds, once")
    page_tokens = default_block_tokens(compiled) if page is None else page
    settings = complete_settings(compiled, policies, user_settings, include_outputs=outputs)
    points = cache_points(
        compiled, capacities, policies, page_tokens=page_tokens, include_outputs=outputs, settings=settings
    )
    if as_json:
        about = {"trace": compiled.name, "digest": compiled.digest, "requests": len(compiled)}
        about |= {"page_tokens": page_tokens, "include_outputs": outputs}
        output.print_json(
            about | {"settings": settings.given(), "given": sorted(user_settings.given()), "points": points}
        )
        return
    output.say(f"{compiled.name}: {len(compiled):,} requests, pages of {page_tokens:,} tokens", bold=True)
    cache_view.show(points, settings, user_settings)
    output.warn(compiled.warnings, quiet)


def _check_policies(policies: list[str], settings: CacheSettings) -> None:
    """Refuse unknown policies, and settings of policies that are not selected.

    Raises:
        typer.BadParameter: with the option.
    """
    from hisearch.validate.cache import check_policies
    from hisearch.validate.cache_settings import SettingError, check_settings

    try:
        check_policies(policies)
        check_settings(policies, settings)
    except SettingError as error:
        option = "--" + error.key.removesuffix("_s").replace("_", "-")
        raise typer.BadParameter(error.reason, param_hint=option) from None
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--policy") from None


def _capacities(text: str) -> list[int]:
    """Whole numbers from 1, separated by commas."""
    try:
        numbers = [int(field) for field in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 1:
        message = f"expected whole numbers of tokens from 1, separated by commas, not '{text}'"
        raise typer.BadParameter(message, param_hint="--capacity-tokens")
    return numbers


@app.command("scheduler")
def scheduler(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE…", help="Recordings of an engine's scheduler, .json or .json.gz.")
    ],
    versions: Annotated[
        bool,
        typer.Option("--versions", help="Replay by the rules of every modelled release, and tell how far off each is."),
    ] = False,
    skip_idle_passes: Annotated[
        bool,
        typer.Option(
            "--skip-idle-passes",
            help="An idle SGLang scheduler passes again at the next event, not at once as in the engine: the clock of "
            "the first recordings. The verdict says so.",
        ),
    ] = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Replay recordings of an engine's own scheduler and compare every step.

    Exits with 1 where a single step or token time differs; with --versions, where no release is equal. docs/formats.md
    states the form of a recording.
    """
    from hisearch.cli import output
    from hisearch.cli.views import validate as validate_view
    from hisearch.validate.scheduler import validate_by_release, validate_recordings

    note_compilation(quiet)
    idle_passes: IdlePasses = "skipped" if skip_idle_passes else "repeated"
    cases = list((validate_by_release if versions else validate_recordings)(files, idle_passes=idle_passes))
    equal_files = {case.file for case in cases if case.ok}
    ok = all(case.ok or (versions and case.file in equal_files) for case in cases)
    show = validate_view.show_releases if versions else validate_view.show
    output.result(as_json, lambda: {"cases": cases, "ok": ok}, lambda: show(cases))
    for case in cases:
        if case.error is not None:
            output.note(f"error: {case.error}")
    output.warn(validate_view.warnings(cases), quiet)
    if not ok:
        raise typer.Exit(ERROR)


@app.command("router")
def router(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE…", help="Recordings of a router's choices, .json or .json.gz.")
    ],
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Replay recordings of a real router and compare every choice.

    What the router left to chance is taken from the recording where it was possible, and counted as drawn. Exits with 1
    where a single choice differs. docs/formats.md states the form of a recording.
    """
    from hisearch.cli import output
    from hisearch.cli.views import routers as routers_view
    from hisearch.validate.router.replay import validate_routers

    note_compilation(quiet)
    cases = list(validate_routers(files))
    ok = all(case.ok for case in cases)
    output.result(as_json, lambda: {"cases": cases, "ok": ok}, lambda: routers_view.show(cases))
    for case in cases:
        if case.error is not None:
            output.note(f"error: {case.error}")
    if not ok:
        raise typer.Exit(ERROR)


@app.command("silicon")
def silicon(
    file: Annotated[Path, typer.Argument(metavar="FILE.csv", help="Measured closed-loop runs, a row each.")],
    where: Annotated[
        list[str] | None,
        typer.Option("--where", metavar="COLUMN=VALUE", help="Only rows with this value; may be given several times."),
    ] = None,
    rows: Annotated[
        Path | None, typer.Option("--rows", metavar="OUT.csv", help="Write every row with its prediction here.")
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(
            "--profile",
            metavar="NAME",
            help="One latency profile for all rows, by catalogue name or path; where absent each row's own, "
            "ENGINE-GPU, or roofline where there is none.",
        ),
    ] = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Repeat measured serving runs in the simulator and compare mean TTFT and TPOT.

    Every row is a closed loop of random prompts. docs/formats.md states the columns, docs/accuracy-details.md the
    conditions that are assumed. Where aiconfigurator-core (extra aic) is installed, its own prediction of the same rows
    stands beside.
    """
    from hisearch.cli import output
    from hisearch.cli.views import silicon as silicon_view
    from hisearch.validate.silicon.peer import PeerPricer, installed
    from hisearch.validate.silicon.pricing import Pricer
    from hisearch.validate.silicon.report import validate_silicon

    note_compilation(quiet)
    selection, pricer = _selection(where or ()), Pricer(profile)
    peer = PeerPricer(pricer) if installed() else None
    report = validate_silicon(file, where=selection, pricer=pricer, rows_out=rows, peer=peer)
    output.result(as_json, lambda: report, lambda: silicon_view.show(report))


def _selection(pairs: Sequence[str]) -> dict[str, str]:
    """Columns and values of ``COLUMN=VALUE``."""
    for pair in pairs:
        if not pair.partition("=")[0] or "=" not in pair:
            raise typer.BadParameter(f"expected COLUMN=VALUE, not '{pair}'", param_hint="--where")
    return dict(pair.split("=", 1) for pair in pairs)


@app.command("e2e")
def e2e(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR…", help="Measured runs: requests, settings, operator tables.")
    ],
    profile: Annotated[
        str | None,
        typer.Option(
            "--profile",
            metavar="NAME",
            help="LatencyProfile with the engine's and the machine's constants; that of the machine if absent.",
        ),
    ] = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Replay measured serving runs on their operator tables and compare TTFT, TPOT, latency and throughput.

    docs/formats.md states the form of a run's folder.
    """
    from hisearch.cli import output
    from hisearch.cli.views import accuracy as accuracy_view
    from hisearch.validate.e2e import validate_cases

    note_compilation(quiet)
    cases = list(validate_cases(folders, profile))
    output.result(as_json, lambda: {"cases": cases}, lambda: accuracy_view.show_e2e(cases))
    output.warn([f"{case.case}: {warning}" for case in cases for warning in case.warnings], quiet)


@app.command("batch")
def batch(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE…", help="attention.csv or skew.csv of a folder of operator tables.")
    ],
    as_json: options.Json = False,
) -> None:
    """Price measured attention batches by the laws of the simulator, with a part of the rows held out.

    docs/latency.md states the form of operator tables.
    """
    from hisearch.cli import output
    from hisearch.cli.views import accuracy as accuracy_view
    from hisearch.validate.batch import validate_batches

    batch_files = list(validate_batches(files))
    output.result(as_json, lambda: {"files": batch_files}, lambda: accuracy_view.show_batches(batch_files))


@app.command("open-loop")
def open_loop(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR…", help="Measured runs: runs.json, measured.csv, models/.")
    ],
    profile: Annotated[
        str | None,
        typer.Option(
            "--profile",
            metavar="NAME",
            help="One latency profile for all runs, by catalogue name or path; that of each engine and GPU if absent.",
        ),
    ] = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Repeat measured open-loop serving runs in the simulator and compare E2E, ITL and TTFT.

    Exits with 1 where a run could not be simulated; the others are. docs/formats.md states the form of a folder.
    """
    from hisearch.cli import output
    from hisearch.cli.views import open_loop as open_loop_view
    from hisearch.validate.open_loop_report import validate_open_loop

    note_compilation(quiet)
    report = validate_open_loop(folders, profile, (lambda _: None) if quiet else output.note)
    output.result(as_json, report.document, lambda: open_loop_view.show(report))
    for failure in report.failed:
        output.note(f"error: {failure.reason}")
    output.warn([f"{score.run.name}: {warning}" for score in report.scores for warning in score.warnings], quiet)
    if report.failed:
        raise typer.Exit(ERROR)


@app.command("mlperf")
def mlperf(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="results.csv and datasets/ of MLPerf Inference.")],
    where: Annotated[
        list[str] | None,
        typer.Option(
            "--where",
            metavar="COLUMN=VALUE",
            help="Only cells with this model, accelerator (a catalogue name), scenario or engine; may be given again.",
        ),
    ] = None,
    seconds: Annotated[
        float, typer.Option(metavar="S", callback=options.positive, help="Of each cell's search.")
    ] = 60.0,
    workers: Annotated[int | None, typer.Option(min=1, help="Threads; all cores where absent.")] = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Search the largest rate of every machine of a benchmark's table, and compare it with its best submission.

    Nothing is fitted. docs/formats.md states the form of the folder and what is assumed.
    """
    from hisearch.api.mlperf import validate_mlperf
    from hisearch.cli import output
    from hisearch.cli.views import mlperf as mlperf_view

    note_compilation(quiet)

    def note(cell: Cell) -> None:
        if not quiet:
            outcome = cell.skipped or f"{cell.ratio:.2f} of the best submission, {cell.wall_s:.0f} s"
            output.note(f"{cell.model} on {cell.accelerators} × {cell.accelerator}, {cell.scenario}: {outcome}")

    cells = validate_mlperf(folder, only=_selection(where or ()), workers=workers, seconds=seconds, advanced=note)
    document = {"cells": [cell.to_dict() for cell in cells]}
    output.result(as_json, lambda: document, lambda: mlperf_view.show(cells))


@app.command("runs")
def runs(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Measured runs: runs.yaml, CSV files, traces.")],
    runs_file: Annotated[
        Path | None,
        typer.Option("--runs", metavar="FILE", help="The list of runs, where it is not runs.yaml of the folder."),
    ] = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Repeat measured runs and compare them second by second: tokens, watts, prefix hits, KV capacity.

    Assumptions are stated first. Figures that set a constant are marked, and not to be counted. Exits with 1 where a
    run could not be simulated; the others are. docs/formats.md states the form of a folder.
    """
    from hisearch.api.measured.score import validate_runs
    from hisearch.cli import output
    from hisearch.cli.views import runs as runs_view

    note_compilation(quiet)
    scores = list(validate_runs(folder, runs_file, note=(lambda _: None) if quiet else output.note))
    output.result(as_json, lambda: {"runs": [score.to_dict() for score in scores]}, lambda: runs_view.show(scores))
    output.warn([f"{score.id}: {warning}" for score in scores for warning in score.warnings], quiet)
    if any(score.reason for score in scores):
        raise typer.Exit(ERROR)
