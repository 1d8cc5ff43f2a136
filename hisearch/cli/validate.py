"""``hisearch validate``: one part at a time, on data of the user's own."""

from __future__ import annotations

from typing import Annotated

import typer

from hisearch.cli import options

app = typer.Typer(help="Hold one part of hisearch against recorded truth.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def _group() -> None:
    pass


@app.command("cache")
def cache(
    trace: Annotated[str, typer.Argument(metavar="TRACE", help="A workload or trace file.")],
    capacity_tokens: Annotated[
        str, typer.Option("--capacity-tokens", metavar="A,B,…", help="Cache sizes in tokens, at least a page.")
    ],
    policy: Annotated[
        str,
        typer.Option(
            "--policy",
            metavar="P,…",
            help="lru, lfu, fifo, mru, filo, slru, clock, arc; belady knows the future and bounds the others.",
        ),
    ] = "lru",
    page: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=2**31 - 1,
            metavar="N",
            help="Tokens per page; the blocks of the trace where absent, or 16 where it has none.",
        ),
    ] = None,
    outputs: Annotated[
        bool, typer.Option("--outputs", help="Store outputs too, and whole pages alone, as engines do.")
    ] = False,
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
    from hisearch.api.workload import load_trace, parse_columns
    from hisearch.cli import output
    from hisearch.traces.stats import default_block_tokens
    from hisearch.validate.cache import cache_points, check_policies, kernels_compiled

    capacities = _capacities(capacity_tokens)
    policies = [name.strip() for name in policy.split(",")]
    try:
        check_policies(policies)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--policy") from None
    mapping = parse_columns(columns or ())
    compiled = load_trace(trace, seed=seed, limit=limit, skip_bad=skip_bad, format=trace_format, columns=mapping)
    if not quiet and not kernels_compiled(policies):
        output.note("compiling kernels, some seconds, once")
    page_tokens = default_block_tokens(compiled) if page is None else page
    points = cache_points(compiled, capacities, policies, page_tokens=page_tokens, include_outputs=outputs)
    if as_json:
        about = {"trace": compiled.name, "digest": compiled.digest, "requests": len(compiled)}
        output.print_json(about | {"page_tokens": page_tokens, "include_outputs": outputs, "points": points})
        return
    output.say(f"{compiled.name}: {len(compiled):,} requests, pages of {page_tokens:,} tokens", bold=True)
    rows = [
        (
            f"{point.capacity_tokens:,}",
            point.policy + (" (oracle)" if point.oracle else ""),
            f"{point.hit_rate:.2%}",
            f"{point.hit_tokens:,}",
        )
        for point in points
    ]
    output.table(("capacity (tokens)", "policy", "hit rate", "hit tokens"), rows, numbers=(0, 2, 3))
    if not quiet:
        output.warn(compiled.warnings)


def _capacities(text: str) -> list[int]:
    """Whole numbers from 1, separated by commas."""
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 1:
        raise typer.BadParameter(
            f"expected whole numbers of tokens from 1, separated by commas, not '{text}'",
            param_hint="--capacity-tokens",
        )
    return numbers
