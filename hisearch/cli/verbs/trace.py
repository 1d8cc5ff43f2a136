"""``hisearch trace``: statistics, import, generation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hisearch.cli import options

if TYPE_CHECKING:
    from hisearch.traces.trace import Trace

app = typer.Typer(help="Look at, convert and make workload traces.", no_args_is_help=True, rich_markup_mode=None)

_Out = Annotated[
    Path, typer.Option("--out", "-o", metavar="FILE", help="File to write: .jsonl, .jsonl.gz or .parquet.")
]

_Model = Annotated[str | None, typer.Option("--model", metavar="MODEL", help="What all its requests ask for.")]


@app.command("stats")
def stats(
    trace: options.Trace,
    trace_format: options.Format = "auto",
    capacity_tokens: Annotated[
        list[int] | None,
        typer.Option(
            "--capacity-tokens", min=1, help="Cache size for the hit-rate curve; may be given more than once."
        ),
    ] = None,
    block_tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=2**31 - 1,
            help="Block size of the caches in the curve; that of the trace where absent, or 16 where it has none.",
        ),
    ] = None,
    curve: Annotated[bool, typer.Option("--curve", help="The whole hit-rate curve of an LRU cache.")] = False,
    curve_html: Annotated[
        Path | None, typer.Option("--curve-html", metavar="FILE", help="Draw the curve into a page that opens offline.")
    ] = None,
    seed: options.Seed = 0,
    limit: options.Limit = None,
    skip_bad: options.SkipBad = 0,
    columns: options.Columns = None,
    adapters: options.Adapters = None,
    time_unit: options.TimeUnit = "auto",
    as_json: options.Json = False,
) -> None:
    """Describe a trace: how its file was read, rates, burstiness, lengths, sessions.

    And what a prefix cache could hit, without limit and by its size.
    """
    from hisearch.api.deployments.workload import load_trace, parse_adapters, parse_columns
    from hisearch.cli import output
    from hisearch.cli.views import trace as trace_view
    from hisearch.traces.adapter_tree import by_adapter
    from hisearch.traces.stats import curve_capacities, lru_hit_curve, trace_stats

    options.check_choice("--time-unit", time_unit, options.TIME_UNITS)
    compiled = load_trace(
        trace,
        seed=seed,
        limit=limit,
        skip_bad=skip_bad,
        format=trace_format,
        columns=parse_columns(columns or ()),
        adapters=parse_adapters(adapters or ()),
        time_unit=time_unit,
    )
    statistics = trace_stats(compiled, capacities_tokens=capacity_tokens, block_tokens=block_tokens)
    points = []
    if curve or curve_html is not None:
        keyed = by_adapter(compiled)
        capacities = curve_capacities(keyed, block_tokens=statistics.block_tokens)
        points = lru_hit_curve(keyed, capacities, block_tokens=statistics.block_tokens)
    if curve_html is not None:
        from hisearch.report.figures.cache_curve import write_curve

        write_curve(curve_html, points, trace_name=statistics.name, block_tokens=statistics.block_tokens)
    if as_json:
        output.print_json(statistics.to_dict() | ({"curve": points} if curve else {}))
    else:
        trace_view.show(statistics)
        if curve:
            trace_view.show_curve(points)
        output.warn(statistics.warnings)


@app.command("import")
def import_(
    source: Annotated[Path, typer.Argument(metavar="SRC", help="Trace file in any known format.")],
    out: _Out,
    trace_format: options.Format = "auto",
    skip_bad: options.SkipBad = 0,
    limit: options.Limit = None,
    seed: options.Seed = 0,
    columns: options.Columns = None,
    adapters: options.Adapters = None,
    time_unit: options.TimeUnit = "auto",
    history: Annotated[
        bool,
        typer.Option(
            "--history",
            help="Prompts of a session begin with the turn before them, its answer included, if they are long enough.",
        ),
    ] = False,
    max_tokens: Annotated[
        int | None,
        typer.Option(
            min=2, help="Leave out requests of more tokens, prompt and declared output, and turns after them."
        ),
    ] = None,
    cancelled: Annotated[
        str, typer.Option(help="Cancelled requests: keep (with the tokens that they have) or leave_out.")
    ] = "keep",
    model: _Model = None,
    as_json: options.Json = False,
) -> None:
    """Convert a trace to hisearch's own form."""
    from hisearch.api.deployments.workload import check_format, first_requests, parse_adapters, parse_columns
    from hisearch.specs.workloads.workload import TraceFileSpec
    from hisearch.traces.importers import read_trace

    check_format(trace_format)
    options.check_choice("--time-unit", time_unit, options.TIME_UNITS)
    options.check_choice("--cancelled", cancelled, ("keep", "leave_out"))
    mapping = parse_columns(columns or ())
    reading = {"format": trace_format, "skip_bad": skip_bad, "columns": mapping, "time_unit": time_unit}
    reading |= {
        "history": history,
        "max_tokens": max_tokens,
        "cancelled": cancelled,
        "adapters": parse_adapters(adapters or ()),
    }
    spec = TraceFileSpec.model_validate({"path": str(source)} | reading)
    trace = _asking(read_trace(source, spec, seed=seed), model)
    _write(trace if limit is None else first_requests(trace, limit), out, as_json)


@app.command("generate")
def generate(
    workload: Annotated[
        str, typer.Argument(metavar="WORKLOAD", help="A workload that has a generator, or a population of agents.")
    ],
    out: _Out,
    seed: options.Seed = 0,
    requests: Annotated[
        int | None, typer.Option(min=1, help="Make so many requests, whatever the workload says.")
    ] = None,
    model: _Model = None,
    as_json: options.Json = False,
) -> None:
    """Make a synthetic trace."""
    from hisearch.specs.documents.catalogue import Catalogue
    from hisearch.specs.workloads.workload import GeneratorSpec
    from hisearch.traces.generate import generate_trace
    from hisearch.traces.load import generate_population

    document = Catalogue().get("Workload", workload)
    if document.spec.agents is not None:
        if requests is not None:
            raise document.error("spec.agents.calls", "--requests is of generators; set the calls of the population")
        _write(_asking(generate_population(document.spec.agents, document.path.parent, seed=seed), model), out, as_json)
        return
    generator = document.spec.generator
    if generator is None:
        raise document.error("spec.file", "this workload is read from a file; use `hisearch trace import`")
    if requests is not None:
        data = generator.model_dump() | {"requests": requests, "duration_s": None}
        generator = GeneratorSpec.model_validate(data)
    _write(_asking(generate_trace(generator, seed=seed), model), out, as_json)


@app.command("merge")
def merge(
    sources: Annotated[list[Path], typer.Argument(metavar="SRC...", help="Trace files in any known format.")],
    out: _Out,
    seed: options.Seed = 0,
    as_json: options.Json = False,
) -> None:
    """Put traces together, such as those of several models behind one router."""
    from hisearch.specs.workloads.workload import TraceFileSpec
    from hisearch.traces.changes.merging import merged
    from hisearch.traces.importers import read_trace

    traces = [read_trace(path, TraceFileSpec(path=str(path)), seed=seed) for path in sources]
    notes = tuple(f"{path}: {note}" for path, trace in zip(sources, traces, strict=True) for note in trace.notes)
    _write(replace(merged(traces), notes=notes), out, as_json)


def _asking(trace: Trace, model: str | None) -> Trace:
    """The trace with ``model`` set on every request, unless ``model`` is None."""
    from hisearch.traces.changes.merging import asking_for

    return trace if model is None else asking_for(trace, model)


def _write(trace: Trace, out: Path, as_json: bool) -> None:
    """Write the trace and print a line, with what its file was taken for; or its facts as JSON."""
    from hisearch.cli import output
    from hisearch.specs.wording import counted
    from hisearch.traces.changes.ordering import in_arrival_order
    from hisearch.traces.reading.canonical import write_trace

    write_trace(in_arrival_order(trace), out)
    if as_json:
        facts = {"path": out, "requests": len(trace), "skipped_rows": trace.skipped_rows}
        output.print_json({**facts, "notes": list(trace.notes), "warnings": list(trace.warnings)})
        return
    output.say(f"{out}: {counted(len(trace), 'request')}")
    for note in trace.notes:
        output.note(note)
    output.warn(trace.warnings)
