"""``hisearch calibrate``: measurements of operators, or of whole steps, to a LatencyProfile."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from typer.core import TyperGroup

from hisearch.cli import options
from hisearch.cli.verbs import observe
from hisearch.specs.wording import format_percent

if TYPE_CHECKING:
    from hisearch.calibrate.profiles import Calibrated
    from hisearch.specs.base import EngineName


class _OperatorsUnlessNamed(TyperGroup):
    """``calibrate FOLDER …`` is ``calibrate operators FOLDER …``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Insert ``operators`` where no command is named."""
        commands = (*self.commands, *ctx.help_option_names)
        if not args or args[0] not in commands:
            args = ["operators", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_OperatorsUnlessNamed,
    help="Make a LatencyProfile of measurements. Without a command: operators.",
    rich_markup_mode=None,
)


@app.command("operators")
def operators(
    folder: Annotated[
        Path,
        typer.Argument(metavar="FOLDER", help="Tables of operator latencies (docs/latency.md)."),
    ],
    accelerator: Annotated[
        str, typer.Option("--accelerator", metavar="NAME", help="Name or path of the Accelerator measured.")
    ],
    engine: Annotated[str, typer.Option("--engine", help="vllm, sglang or trtllm.")],
    multiprocessors: Annotated[int, typer.Option("--multiprocessors", min=1, help="SMs of the accelerator.")],
    engine_version: Annotated[str, typer.Option("--engine-version", help="Of the engine measured.")] = "unknown",
    source: options.Source = "own measurements",
    name: Annotated[str | None, typer.Option("--name", help="Of the profile; ENGINE-ACCELERATOR where absent.")] = None,
    profile_file: options.ProfileFile = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Fit operator latencies, and write them as a LatencyProfile.

    The laws are those of one accelerator under one engine. Each states its error on shapes that were left out of its
    fit. --json prints those instead of the profile.
    """
    from hisearch.calibrate.profiles import calibrate_own
    from hisearch.cli import output
    from hisearch.specs.base import ENGINE_TITLES

    options.check_places(profile_file)
    options.check_choice("--engine", engine, ENGINE_TITLES)
    calibrated = calibrate_own(
        folder,
        accelerator=accelerator,
        engine=cast("EngineName", engine),
        engine_version=engine_version,
        multiprocessors=multiprocessors,
        source=source,
        name=name,
        report=(lambda _: None) if quiet else output.note,
    )
    _write_profile(calibrated, profile_file, {"laws": _errors(calibrated.profile)} if as_json else None)


@app.command("steps")
def steps(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE…", help="Logs of steps, JSON lines or CSV (docs/latency.md).")
    ],
    model: Annotated[str, typer.Option("--model", metavar="NAME", help="Name or path of the Model that was served.")],
    accelerator: Annotated[
        str, typer.Option("--accelerator", metavar="NAME", help="Name or path of the Accelerator that it ran on.")
    ],
    engine: Annotated[str, typer.Option("--engine", help="vllm, sglang or trtllm.")],
    engine_version: Annotated[str, typer.Option("--engine-version", help="Its version.")] = "",
    tensor_parallel: Annotated[int, typer.Option("--tensor-parallel", min=1, help="Ranks.")] = 1,
    weight_dtype: Annotated[
        str | None, typer.Option("--weight-dtype", help="Format of the weights as loaded; the model's own if absent.")
    ] = None,
    kv_dtype: Annotated[str, typer.Option("--kv-dtype", help="Format of the KV cache.")] = "bf16",
    source: options.Source = "own measurements",
    name: Annotated[
        str | None, typer.Option("--name", help="Of the profile; ENGINE-ACCELERATOR-MODEL-steps where absent.")
    ] = None,
    profile_file: options.ProfileFile = None,
    as_json: options.Json = False,
) -> None:
    """Fit whole steps of one deployment to its engine's own log, and write them as a LatencyProfile.

    The profile prices that model on that accelerator, split and format alone. It states its error for steps of prompts,
    of decodes and of both, each on parts of the log that were left out of the fit. --json prints those instead of it.
    """
    from hisearch.calibrate.profiles import LoggedWorker, calibrate_steps
    from hisearch.specs.base import DTYPE_BYTES, ENGINE_TITLES

    options.check_places(profile_file)
    options.check_choice("--engine", engine, ENGINE_TITLES)
    options.check_choice("--weight-dtype", weight_dtype, DTYPE_BYTES)
    options.check_choice("--kv-dtype", kv_dtype, DTYPE_BYTES)
    worker = LoggedWorker(
        model, accelerator, engine, engine_version, tensor_parallel,  # type: ignore[arg-type]
        weight_dtype, kv_dtype,  # type: ignore[arg-type]
    )  # fmt: skip
    calibrated = calibrate_steps(files, worker, source=source, name=name)
    _write_profile(calibrated, profile_file, calibrated.profile.regressions[0].model_dump() if as_json else None)


@app.command("server")
def server(
    observed: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder of `hisearch observe`: deployment.yaml, perhaps steps.jsonl.")
    ],
    drive: Annotated[
        str | None,
        typer.Option("--drive", metavar="URL", help="Send requests to this server, which must serve nobody else."),
    ] = None,
    seconds: Annotated[float, typer.Option("--seconds", min=5, help="Longest time to send requests.")] = 90.0,
    error: Annotated[
        float, typer.Option("--error", min=0.001, help="Median error of steps, held out, that is good enough.")
    ] = 0.05,
    benchmark: Annotated[
        Path | None,
        typer.Option(
            "--benchmark",
            metavar="FILE",
            help="Results of a benchmark that ran while the server was observed: its client is predicted too.",
        ),
    ] = None,
    slo: Annotated[
        str | None,
        typer.Option("--slo", metavar="SLO", help="Say how likely it holds on the observed load, before and now."),
    ] = None,
    source: options.Source = "own measurements",
    name: Annotated[str | None, typer.Option("--name", help="Of the profile.")] = None,
    profile_file: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="The profile; DIR/profile.yaml where absent.")
    ] = None,
    token: observe.Token = None,
    headers: observe.Headers = None,
    ca: observe.Ca = None,
    seed: options.Seed = 0,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Fit steps and front end of a running server, and write them as a LatencyProfile.

    Steps are those of the observation's log. With --drive requests are sent, those that tell most of the law, until
    steps are known within --error or --seconds are over; what the client waits beside the engine is the front end.
    Only vLLM tells its engine's time of a request. A benchmark's own client takes time as well: with --benchmark it is
    held against the server's own TTFT. Errors are those of parts left out of the fits.
    """
    from hisearch.api.drive import calibrate_server
    from hisearch.cli import output
    from hisearch.cli.verbs.running import progress_of

    options.check_places(profile_file)
    with progress_of(quiet) as progress:
        passed = 0
        if progress is not None and drive is not None:
            progress.started("sending requests, seconds at most", round(seconds))

        def report(passed_s: float, said: str) -> None:
            nonlocal passed
            if progress is not None:
                progress.advanced(int(passed_s) - passed, said)
                passed = int(passed_s)

        server = calibrate_server(
            observed, drive=drive, seconds=seconds, error=error, token=token, headers=headers or (), ca=ca,
            source=source, name=name, seed=seed, benchmark=benchmark, slo=slo,
            report=report,
        )  # fmt: skip
        if progress is not None and drive is not None:
            progress.finished()
    written = server.write(observed, profile_file)
    profile = server.calibrated.profile
    facts = {"name": server.calibrated.name, "error": server.error, "reached": server.reached}
    front_end = None if server.front_end is None else server.front_end.times.model_dump()
    chances = None if server.chances is None else server.chances._asdict()
    data = facts | {
        "errors": profile.regressions[0].model_dump()["errors"],
        "front_end": front_end,
        "chances": chances,
        "files": written,
    }
    output.result(
        as_json, lambda: data, lambda: output.pairs(server.facts() | {"written": ", ".join(map(str, written))})
    )
    if not server.reached:
        output.note(f"steps are known within {format_percent(server.error, 1)}, not within {format_percent(error, 1)}")


def _write_profile(calibrated: Calibrated, profile_file: Path | None, figures: dict[str, Any] | None) -> None:
    """Write the profile to ``profile_file`` and print ``figures``; without either, print the profile."""
    from hisearch.api.run_folder import write_text
    from hisearch.cli import output

    if profile_file is not None:
        write_text(profile_file, calibrated.yaml)
    if figures is not None:
        output.print_json({"name": calibrated.name} | figures)
    elif profile_file is None:
        typer.echo(calibrated.yaml, nl=False)


def _errors(profile: Any) -> list[dict[str, Any]]:
    """A row for each law."""
    from hisearch.specs.machines.laws import LawTerms

    rows = []
    for family, laws in profile.laws:
        if isinstance(laws, dict):
            for dtype, terms in cast("dict[str, LawTerms]", laws).items():
                error = terms.error.model_dump() if terms.error is not None else {}
                rows.append({"family": family, "format": dtype, "source": terms.source, **error})
    return rows
