"""``hisearch bench``: how fast it is on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import typer

from hisearch.cli import options
from hisearch.cli.compilation import note_compilation

#: Benchmarks that take ``--trace``.
_OWN_TRACES = ("mooncake-conversation", "weka-agents")


def bench(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]…", help="Benchmarks; all that are at hand where absent.")
    ] = None,
    repeat: Annotated[int, typer.Option(min=1, help="Timed runs of each.")] = 7,
    trace: Annotated[
        str | None, typer.Option(help="Trace file of mooncake-conversation, or of weka-agents where that is named.")
    ] = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Measure speed on this machine.

    Simulations run on one thread, but for those of `threads`. `import` is the start of `hisearch --help`; `compile`,
    which runs only when named, a first simulation with an empty kernel cache. `study-coder-6h`, likewise, is a whole
    study on two threads, once; its requests are those that all its simulations replay together.
    """
    from hisearch.api import bench as benchmarks
    from hisearch.cli import output

    known_names = benchmarks.names()
    for name in names or ():
        if name not in known_names:
            raise typer.BadParameter(f"no benchmark '{name}'; known: {', '.join(known_names)}", param_hint="NAME")
    trace_names = [name for name in names or _OWN_TRACES[:1] if name in _OWN_TRACES]
    if trace is not None and len(trace_names) != 1:
        raise typer.BadParameter(f"goes with one of {', '.join(_OWN_TRACES)}", param_hint="--trace")
    chosen = names or benchmarks.default_names(trace)
    if not quiet and any(name in benchmarks.CASES or name in benchmarks.COMPARISONS for name in chosen):
        note_compilation()
    results = []
    for name in chosen:
        if not quiet:
            output.note(f"{name}, {'once' if name in benchmarks.ONCE else f'{repeat} times'}")
        own_trace = trace if name in trace_names else None
        results.append(benchmarks.measure(name, repeat, own_trace).to_dict())
    if as_json:
        output.print_json({"benchmarks": results, "machine": benchmarks.machine()})
        return
    output.records([_row(row) for row in results])
    for line in _verdicts(results):
        output.say(line)


def _row(row: dict[str, Any]) -> dict[str, str]:
    return {
        "benchmark": row["name"],
        "requests": _count(row["requests"]),
        "steps": _count(row["steps"]),
        **{f"{key} (s)": f"{row['wall_s'][key]:.3f}" for key in ("median", "min", "max")},
        "requests/s": _count(row["requests_per_s"]),
        "peak RSS (MiB)": f"{row['peak_rss_bytes'] / 2**20:,.0f}",
    }


def _verdicts(results: list[dict[str, Any]]) -> Iterator[str]:
    """``flat: 1.06 (time per request, largest over smallest; goal: at most 1.5)``."""
    for row in results:
        if "comparison" in row:
            compared = row["comparison"]
            bound = "at least" if compared["more_is_better"] else "at most"
            goal = f"goal: {bound} {compared['goal']:g}{'' if compared['met'] else ', missed'}"
            yield f"{row['name']}: {compared['ratio']:.2f} ({compared['quantity']}; {goal})"


def _count(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"
