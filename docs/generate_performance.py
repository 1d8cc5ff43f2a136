"""Writes the measured tables of docs/performance.md; what stands outside of their markers is left alone.

Usage::

    python docs/generate_performance.py                    # measures everything, prints the page
    python docs/generate_performance.py --write            # measures everything, writes docs/performance.md
    python docs/generate_performance.py --write --trace F  # with the trace file of mooncake-conversation
    python docs/generate_performance.py --write --from F   # from the output of `hisearch bench --json`
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

from hisearch.api import bench

TARGET = Path(__file__).resolve().parent / "performance.md"

#: What the page asks of a benchmark: most seconds (median), most bytes.
GOALS_S = {
    "coder-6h": 0.10, "coder-6h-vllm": 0.10, "coder-6h-tiers": 0.25, "million": 5.0, "million-vllm": 5.0, "import": 0.3,
    "compile": 60.0, "stage1-screen": 10.0,
}  # fmt: skip
GOALS_MIB = {"coder-6h": 300, "coder-6h-vllm": 300, "million": 2048, "million-vllm": 2048}

Row = dict[str, Any]


def measured(trace: str | None, repeat: int) -> dict[str, Any]:
    """What ``hisearch bench --json`` of every benchmark at hand gives."""
    rows = []
    for name in [*bench.default_names(trace), bench.COMPILE]:
        print(f"measuring {name}", file=sys.stderr, flush=True)
        rows.append(bench.measure(name, repeat, trace if name == "mooncake-conversation" else None).to_dict())
    return {"benchmarks": rows, "machine": bench.machine()}


def page(text: str, results: dict[str, Any]) -> str:
    """The page ``text`` with its marked sections written from ``results``.

    Raises:
        ValueError: a section has no markers, or markers name no section.
    """
    rows: dict[str, Row] = {row["name"]: row for row in results["benchmarks"]}
    sections = {
        "machine": _machine(results["machine"], rows),
        "simulations": _simulations(rows),
        "comparisons": _comparisons(rows),
        "steps": _steps(rows),
        "others": _others(rows),
    }
    marked = re.findall(r"^<!-- measured: (\S+) -->$", text, flags=re.MULTILINE)
    if sorted(marked) != sorted(sections):
        raise ValueError(f"{TARGET.name}: expected the sections {', '.join(sections)}; marked are {', '.join(marked)}")
    for name, content in sections.items():
        begin, end = f"<!-- measured: {name} -->", "<!-- end -->"
        before, _, rest = text.partition(begin)
        _, ended, after = rest.partition(end)
        if not ended:
            raise ValueError(f"{TARGET.name}: section {name} has no {end}")
        text = f"{before}{begin}\n{content}\n{end}{after}"
    return text


def _machine(facts: Row, rows: dict[str, Row]) -> str:
    versions = ", ".join(f"{name} {number}" for name, number in facts["versions"].items())
    memory = "" if facts["memory_bytes"] is None else f", {facts['memory_bytes'] / 2**30:.0f} GiB"
    load = facts["load_average_1min"]
    busy = "" if load is None else f"; load average at the end {load:.1f}"
    repeat = max(row["repeat"] for row in rows.values())
    return "\n".join(
        [
            f"Measured {facts['date']}: {facts['cores']} cores of {facts['cpu']}{memory}, {facts['system']};",
            f"{versions}{busy}.",
            f"Medians of {repeat} runs after a warm-up, with the fastest and the slowest; `compile` ran once.",
        ]
    )


def _table(columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [columns, ("---",) * len(columns), *rows]
    return "\n".join(["", *(f"| {' | '.join(line)} |" for line in lines), ""])


def _simulations(rows: dict[str, Row]) -> str:
    columns = ("benchmark", "deployment", "requests", "steps", "seconds", "min to max", "goal", "requests/s",
               "peak RSS (MiB)", "goal")  # fmt: skip
    return _table(columns, [_simulation(name, rows[name]) for name in bench.CASES if name in rows])


def _simulation(name: str, row: Row) -> tuple[str, ...]:
    return (
        f"`{name}`",
        _deployment(bench.CASES[name]),
        f"{row['requests']:,}",
        f"{row['steps']:,}",
        *_seconds(row["wall_s"]),
        _goal(GOALS_S.get(name), row["wall_s"]["median"]),
        f"{row['requests_per_s']:,.0f}",
        f"{row['peak_rss_bytes'] / 2**20:,.0f}",
        _goal(GOALS_MIB.get(name), row["peak_rss_bytes"] / 2**20),
    )


def _deployment(case: bench.Case) -> str:
    """A short description: ``4 x (2 x h100-sxm), sglang, cache_aware``."""
    pool = case.pool
    worker = f"{pool.tensor_parallel * pool.pipeline_parallel} x {pool.accelerator}"
    worker += f" in {pool.pipeline_parallel} stages" if pool.pipeline_parallel > 1 else ""
    parts = [f"{pool.replicas} x ({worker})" if pool.replicas > 1 else worker, pool.engine.name]
    parts += [case.router] if pool.replicas > 1 else []
    parts += [" + ".join(tier.medium for tier in pool.tiers)] if pool.tiers else []
    return ", ".join(parts)


def _comparisons(rows: dict[str, Row]) -> str:
    lines = []
    for name in bench.COMPARISONS:
        if name in rows:
            compared = rows[name]["comparison"]
            bound = "at least" if compared["more_is_better"] else "at most"
            points = "; ".join(
                f"{point['label']} {point['us_per_request']:.2f} us ({' to '.join(_spread(point))})"
                for point in compared["points"]
            )
            verdict = f"{bound} {compared['goal']:g}{'' if compared['met'] else ', missed'}"
            lines.append((f"`{name}`", compared["quantity"], f"{compared['ratio']:.2f}", verdict, points))
    return _table(("benchmark", "what is compared", "ratio", "goal", "time per request (min to max)"), lines)


def _steps(rows: dict[str, Row]) -> str:
    lines = []
    if bench.STEP_COST in rows:
        compared = rows[bench.STEP_COST]["comparison"]
        lines = [
            (
                f"`{bench.STEP_COST}`", point["label"], f"{1e3 * point['us_per_request']:.0f} ns",
                " to ".join(f"{1e9 * point['wall_s'][key] / point['requests']:.0f}" for key in ("min", "max")),
                f"{compared['goal']:g} ns" + ("" if 1e3 * point["us_per_request"] <= compared["goal"] else ", missed"),
            )
            for point in compared["points"]
        ]  # fmt: skip
    if bench.SCREEN in rows:
        row = rows[bench.SCREEN]
        goal = GOALS_S[bench.SCREEN] * row["requests"] / 1000
        median, spread = _seconds(row["wall_s"])
        verdict = f"{goal:.1f} s" + ("" if row["wall_s"]["median"] <= goal else ", missed")
        lines.append((f"`{bench.SCREEN}`", f"{row['requests']:,} combinations", f"{median} s", spread, verdict))
    return _table(("benchmark", "what", "processor time", "min to max", "goal"), lines)


def _spread(point: Row) -> tuple[str, str]:
    fastest, slowest = (1e6 * point["wall_s"][key] / point["requests"] for key in ("min", "max"))
    return f"{fastest:.2f}", f"{slowest:.2f}"


def _others(rows: dict[str, Row]) -> str:
    what = {
        bench.TRACE: "generate and compile the million requests of `million`",
        bench.IMPORT: "`hisearch --help`, the whole process",
        bench.COMPILE: "a first simulation with an empty kernel cache, the whole process",
    }
    lines = [
        (
            f"`{name}`",
            text,
            *_seconds(rows[name]["wall_s"]),
            _goal(GOALS_S.get(name), rows[name]["wall_s"]["median"]),
            f"{rows[name]['peak_rss_bytes'] / 2**20:,.0f}",
        )
        for name, text in what.items()
        if name in rows
    ]
    return _table(("benchmark", "what", "seconds", "min to max", "goal", "peak RSS (MiB)"), lines)


def _seconds(wall_s: dict[str, float]) -> tuple[str, str]:
    return f"{wall_s['median']:.3f}", f"{wall_s['min']:.3f} to {wall_s['max']:.3f}"


def _goal(most: float | None, measured: float) -> str:
    if most is None:
        return ""
    return f"{most:g}" if measured <= most else f"{most:g}, missed"


def main() -> None:
    """Measure or read, then print the page or write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help=f"write {TARGET.name} instead of printing it")
    parser.add_argument("--from", dest="results", type=Path, help="JSON of `hisearch bench --json`")
    parser.add_argument("--trace", help="trace file of mooncake-conversation")
    parser.add_argument("--repeat", type=int, default=7, help="timed runs of each benchmark")
    chosen = parser.parse_args()
    results = json.loads(chosen.results.read_text()) if chosen.results else measured(chosen.trace, chosen.repeat)
    text = page(TARGET.read_text(encoding="utf-8"), results)
    if chosen.write:
        TARGET.write_text(text, encoding="utf-8")
    else:
        sys.stdout.buffer.write(text.encode())


if __name__ == "__main__":
    main()
