"""``hisearch advise``: what would serve the observed load for less."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hisearch.cli import options
from hisearch.cli.compilation import note_compilation
from hisearch.cli.errors import NOTHING_FEASIBLE
from hisearch.cli.verbs.running import how_to_resume, interruptible, progress_of


def advise(
    observed: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of `hisearch observe`.")],
    slo: Annotated[
        str, typer.Option(metavar="SLO", help='A phrase such as "ttft p95 < 1s, tpot p95 < 50ms", a name or a path.')
    ],
    profile: Annotated[
        Path | None, typer.Option("--profile", metavar="FILE", help="LatencyProfile; DIR/profile.yaml where absent.")
    ] = None,
    gpu: Annotated[
        list[str] | None, typer.Option(metavar="NAME,…", help="Accelerators to try beside the one that runs.")
    ] = None,
    more: Annotated[
        bool, typer.Option("--more", help="The most load at today's price, instead of today's load for less.")
    ] = False,
    settings: options.Setting = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Run folder; runs/advise-TIME where absent.")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Threads; all cores where absent.")] = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Say what would serve an observed load for less, and how.

    Simulates what runs on the observed load, searches its neighbours as `run` does, and prints both, the probability
    that the recommendation holds the SLO, and the flags that differ. Exits with 99 where nothing meets the SLO.
    """
    from hisearch.api.advise import advise as ask
    from hisearch.cli import output
    from hisearch.specs.documents.question import split_names

    note_compilation(quiet)
    with interruptible() as interrupts, progress_of(quiet) as progress:
        advice = ask(
            observed, slo, profile=profile, gpu=split_names(gpu or []), more=more, overrides=settings or (),
            workers=workers, run_dir=out, progress=progress, interrupts=interrupts,
        )  # fmt: skip
    output.result(as_json, advice.to_dict, lambda: output.pairs(advice.facts()))
    if not as_json:
        output.say(f"Run folder, with launch scripts in recommended/: {advice.result.run_dir}")
    if interrupts.exit_code is not None:
        output.note(how_to_resume(advice.result.run_dir))
        raise typer.Exit(interrupts.exit_code)
    if advice.recommended is None or advice.result.unsure:
        raise typer.Exit(NOTHING_FEASIBLE)
