"""``hisearch validate cache``: what a prefix cache alone hits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from hisearch.cli import options

if TYPE_CHECKING:
    from hisearch.validate.cache_settings import CacheSettings


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
