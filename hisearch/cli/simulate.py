"""``hisearch simulate``: one deployment on one workload."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hisearch.cli import options

if TYPE_CHECKING:
    from hisearch.api.deployment import SimulatedDeployment

_TABLES = (".parquet", ".csv", ".csv.gz")


def simulate(
    deployment: Annotated[str, typer.Argument(metavar="DEPLOYMENT", help="A deployment.")],
    trace: Annotated[str, typer.Option(help="The workload or trace file.")],
    slo: Annotated[str | None, typer.Option(help="Hold it against this SLO.")] = None,
    load: Annotated[float, typer.Option(help="Factor on the arrival rate, more than 0.")] = 1.0,
    settings: options.Setting = None,
    horizon_s: Annotated[
        float | None, typer.Option("--horizon-s", help="Stop after so many simulated seconds, more than 0.")
    ] = None,
    seed: options.Seed = 0,
    limit: options.Limit = None,
    skip_bad: options.SkipBad = 0,
    trace_format: options.Format = "auto",
    columns: options.Columns = None,
    requests: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a row per request to FILE (.parquet, .csv, .csv.gz).")
    ] = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Replay a workload on one deployment.

    Prints what its users would see, what it costs and what its workers do.
    """
    if requests is not None and not requests.name.endswith(_TABLES):
        raise typer.BadParameter(f"{requests}: expected a name ending in {', '.join(_TABLES)}", param_hint="--requests")
    from hisearch.api.deployment import simulate_deployment
    from hisearch.api.workload import load_trace, parse_columns
    from hisearch.cli import output, simulate_view
    from hisearch.specs.resolve import load_deployment

    mapping = parse_columns(columns or ())
    resolved = load_deployment(deployment, tuple(settings or ()))
    if not quiet:
        output.note_compilation()
    simulated = simulate_deployment(
        resolved,
        load_trace(trace, seed=seed, limit=limit, skip_bad=skip_bad, format=trace_format, columns=mapping),
        slo=slo,
        load=load,
        seed=seed,
        horizon_s=math.inf if horizon_s is None else horizon_s,
    )
    if requests is not None:
        _write_requests(simulated, requests)
    if as_json:
        output.print_json(simulated.to_dict())
    else:
        simulate_view.show(simulated)
    if not quiet:
        output.warn(simulated.warnings)


def _write_requests(simulated: SimulatedDeployment, path: Path) -> None:
    from hisearch.api.run_folder import replace_with

    frame = simulated.requests_frame()
    if path.name.endswith(".parquet"):
        replace_with(path, lambda part: frame.to_parquet(part, index=False))
    else:
        # The temporary file's name does not tell pandas whether to pack.
        packed = path.name.endswith(".gz")
        replace_with(path, lambda part: frame.to_csv(part, index=False, compression="gzip" if packed else None))
