"""``hisearch simulate``: one deployment on one workload."""

from __future__ import annotations

import math
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hisearch.cli import options
from hisearch.cli.compilation import note_compilation
from hisearch.cli.verbs.simulate_files import Files
from hisearch.kernels.fleet import head_start

if TYPE_CHECKING:
    from hisearch.api.deployments.deployment import SimulatedDeployment


class By(StrEnum):
    """Fields of a trace by which requests are told apart."""

    PRIORITY = "priority"
    TENANT = "tenant"


def simulate(
    deployment: Annotated[str, typer.Argument(metavar="DEPLOYMENT", help="A deployment.")],
    trace: Annotated[str, typer.Option(help="The workload or trace file.")],
    slo: Annotated[
        str | None,
        typer.Option(help="Hold it against this SLO: a name, a path or a phrase (ttft p95 < 1s, rejected < 1%)."),
    ] = None,
    load: Annotated[
        float,
        typer.Option(
            callback=options.positive,
            help="Factor on the arrival rate, more than 0; above 1 the workload is carried on to a steady state.",
        ),
    ] = 1.0,
    carry_on: Annotated[
        bool, typer.Option("--carry-on/--as-it-is", help="Above a load of 1: carry the workload on, or replay it once.")
    ] = True,
    settings: options.Setting = None,
    horizon_s: Annotated[
        float | None,
        typer.Option(
            "--horizon-s", callback=options.positive, help="Stop after so many simulated seconds, more than 0."
        ),
    ] = None,
    seed: options.Seed = 0,
    limit: options.Limit = None,
    skip_bad: options.SkipBad = 0,
    trace_format: options.Format = "auto",
    columns: options.Columns = None,
    adapters: options.Adapters = None,
    models: Annotated[
        list[str] | None,
        typer.Option("--model", metavar="NAME", help="Keep only what asks for this model; again for its other names."),
    ] = None,
    requests: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a row per request to FILE (.parquet, .csv, .csv.gz).")
    ] = None,
    series: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write what each worker did, a row per step, to FILE (as --requests)."),
    ] = None,
    tier_series: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write what each store of the cache tiers held to FILE (as --requests)."),
    ] = None,
    series_interval_s: Annotated[
        float | None,
        typer.Option("--series-interval-s", help="Of both series: a row every so many simulated seconds."),
    ] = None,
    timeline: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a Chrome trace for Perfetto to FILE (.json, .json.gz).")
    ] = None,
    timeline_from_s: Annotated[
        float | None, typer.Option("--timeline-from-s", help="Of --timeline: leave out what is over before.")
    ] = None,
    timeline_to_s: Annotated[
        float | None, typer.Option("--timeline-to-s", help="Of --timeline: leave out what begins later.")
    ] = None,
    tier_values: Annotated[
        bool, typer.Option("--tier-values", help="Say what one more GiB of each cache tier would be worth.")
    ] = False,
    by: Annotated[
        By | None, typer.Option(help="Say also what the requests of each priority, or tenant, get and cost.")
    ] = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Replay a workload on one deployment.

    Prints what its users would see, what it costs and what its workers do.
    """
    files = Files(requests, series, tier_series, series_interval_s, timeline, timeline_from_s, timeline_to_s)
    head_start.begin()
    from hisearch.api.deployments.deployment import simulate_deployment
    from hisearch.api.deployments.workload import generator_of, load_trace, parse_adapters, parse_columns
    from hisearch.specs.documents.resolve import load_deployment

    mapping = parse_columns(columns or ())
    resolved = load_deployment(deployment, tuple(settings or ()))
    note_compilation(quiet)
    simulated = simulate_deployment(
        resolved,
        load_trace(
            trace,
            seed=seed,
            limit=limit,
            skip_bad=skip_bad,
            format=trace_format,
            columns=mapping,
            adapters=parse_adapters(adapters or ()),
            models=models or (),
        ),
        slo=slo,
        load=load,
        seed=seed,
        horizon_s=math.inf if horizon_s is None else horizon_s,
        log=files.need_log,
        generator=generator_of(trace) if load > 1.0 and limit is None else None,
        carry_on=carry_on,
    )
    files.write(simulated)
    _print_result(simulated, tier_values, by, as_json, quiet)


def _print_result(simulated: SimulatedDeployment, tier_values: bool, by: By | None, as_json: bool, quiet: bool) -> None:
    """Print what came out and what errors of step times would change, then notes and warnings."""
    from hisearch.api.deployments.steps_off import with_steps_off
    from hisearch.api.deployments.tiers import tier_values as marginal_values
    from hisearch.cli import output
    from hisearch.cli.views import classes as classes_view
    from hisearch.cli.views import simulate as simulate_view

    values = marginal_values(simulated) if tier_values else []
    classes = simulated.classes(by) if by is not None else []
    fairness = simulated.fairness() if by is By.TENANT else None
    off = with_steps_off(simulated)
    if as_json:
        document = simulated.to_dict() | {"steps_off": None if off is None else off.to_dict()}
        if tier_values:
            document |= {"tier_values": [asdict(value) for value in values]}
        if by is not None:
            document |= {"classes": [{"by": by.value} | asdict(share) for share in classes]}
        if by is By.TENANT:
            document |= {"fairness": None if fairness is None else asdict(fairness)}
        output.print_json(document)
    else:
        simulate_view.show(simulated, off)
        if tier_values:
            simulate_view.show_tier_values(values)
        if by is not None:
            classes_view.show_classes(by, classes, fairness)
    for text in () if quiet else simulated.trace.notes:
        output.note(text)
    shown = () if as_json else simulate_view.caveats_of(simulated)
    output.warn([warning for warning in simulated.warnings if warning not in shown], quiet)
