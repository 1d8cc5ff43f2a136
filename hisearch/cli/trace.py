"""``hisearch trace``: statistics, import, generation."""

from __future__ import annotations

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


@app.command("stats")
def stats(
    trace: Annotated[str, typer.Argument(metavar="TRACE", help="A workload or trace file.")],
    trace_format: options.Format = "auto",
    capacity_tokens: Annotated[
        list[int] | None,
        typer.Option(
            "--capacity-tokens", min=1, help="Cache size for the hit-rate curve; may be given more than once."
        ),
    ] = None,
    block_tokens: Annotated[int, typer.Option(min=1, help="Block size of the caches in the curve.")] = 16,
    seed: options.Seed = 0,
    limit: options.Limit = None,
    skip_bad: options.SkipBad = 0,
    as_json: options.Json = False,
) -> None:
    """Describe a trace: rates, burstiness, lengths, sessions.

    And what a prefix cache could hit, without limit and by its size.
    """
    from hisearch.api.workload import load_trace
    from hisearch.cli import output, trace_view
    from hisearch.traces.stats import trace_stats

    compiled = load_trace(trace, seed=seed, limit=limit, skip_bad=skip_bad, format=trace_format)
    found = trace_stats(compiled, capacities_tokens=capacity_tokens, block_tokens=block_tokens)
    if as_json:
        output.print_json(found.to_dict())
    else:
        trace_view.show(found)
        output.warn(found.warnings)


@app.command("import")
def import_(
    source: Annotated[Path, typer.Argument(metavar="SRC", help="Trace file in any known format.")],
    out: _Out,
    trace_format: options.Format = "auto",
    skip_bad: options.SkipBad = 0,
    limit: options.Limit = None,
    seed: options.Seed = 0,
) -> None:
    """Convert a trace to hisearch's own form."""
    from hisearch.api.workload import check_format, first_requests
    from hisearch.cli import output
    from hisearch.specs.workload import TraceFileSpec
    from hisearch.traces.importers import read_trace

    check_format(trace_format)
    spec = TraceFileSpec.model_validate({"path": str(source), "format": trace_format, "skip_bad": skip_bad})
    trace = read_trace(source, spec, seed=seed)
    _write(trace if limit is None else first_requests(trace, limit), out)
    output.warn(trace.warnings)
    if trace.skipped_rows:
        output.note(f"{trace.skipped_rows} broken rows left out")


@app.command("generate")
def generate(
    workload: Annotated[str, typer.Argument(metavar="WORKLOAD", help="A workload that has a generator.")],
    out: _Out,
    seed: options.Seed = 0,
    requests: Annotated[
        int | None, typer.Option(min=1, help="Make so many requests, whatever the workload says.")
    ] = None,
) -> None:
    """Make a synthetic trace."""
    from hisearch.specs.catalogue import Catalogue
    from hisearch.specs.workload import GeneratorSpec
    from hisearch.traces.generate import generate_trace

    document = Catalogue().get("Workload", workload)
    generator = document.spec.generator
    if generator is None:
        raise document.error("spec.file", "this workload is read from a file; use `hisearch trace import`")
    if requests is not None:
        data = generator.model_dump() | {"requests": requests, "duration_s": None}
        generator = GeneratorSpec.model_validate(data)
    _write(generate_trace(generator, seed=seed), out)


def _write(trace: Trace, out: Path) -> None:
    from hisearch.cli import output
    from hisearch.traces.canonical import write_trace
    from hisearch.traces.ordering import in_arrival_order

    write_trace(in_arrival_order(trace), out)
    output.say(f"{out}: {len(trace):,} requests")
