"""Tables and residual figures of measured serving runs, as docs/accuracy-details.md has them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from silicon_figures import residual_figure

#: Residual figures: file, title, and the property of a row.
FIGURES: tuple[tuple[str, str, Callable[[dict[str, str]], float]], ...] = (
    ("silicon-in-flight.svg", "requests in flight", lambda row: float(row["concurrency"])),
    ("silicon-prompt.svg", "tokens of a prompt", lambda row: float(row["input_tokens"])),
    ("silicon-tpot.svg", "measured TPOT in ms", lambda row: rounded(row, "measured_tpot_ms")),
)


def rounded(row: dict[str, str], column: str) -> float:
    """A cell to the nearest power of 1.5, so that rows share values."""
    return float(f"{1.5 ** round(float(np.log(float(row[column])) / np.log(1.5))):.2g}")


def figures(rows: Sequence[dict[str, str]]) -> dict[str, str]:
    """Residual figures by file name."""
    done = [row for row in rows if row["predicted_ttft_ms"]]
    return {name: residual_figure(done, title, of_row) for name, title, of_row in FIGURES}


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [f"| {' | '.join(head)} |", f"| {' | '.join('---' for _ in head)} |"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def percent(value: float | None, sign: str = "") -> str:
    """A fraction as a percentage."""
    return "" if value is None else f"{value:{sign}.1%}".replace("%", " %")


def errors_table(groups: Iterable[dict[str, Any]]) -> str:
    """Errors of groups, as ``validate silicon`` reports them."""
    head = ("", "rows", "TTFT median", "MAPE", "bias", "TPOT median", "MAPE", "bias")
    return table(head, (_errors_row(group) for group in groups))


def _errors_row(group: dict[str, Any]) -> list[str]:
    cells = [group["key"], f"{group['n']:,}"]
    for name in ("ttft", "tpot"):
        cells += [percent(group[f"{name}_{figure}"]) for figure in ("median_ape", "mape")]
        cells.append(percent(group[f"{name}_bias"], "+"))
    return cells


def residuals(rows: Sequence[dict[str, str]], title: str, key: Callable[[dict[str, str]], str]) -> str:
    """Median signed errors by a property of the rows, engine by engine."""
    errors_by_engine: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for row in rows:
        errors = [float(row[f"predicted_{t}_ms"]) / float(row[f"measured_{t}_ms"]) - 1.0 for t in ("ttft", "tpot")]
        errors_by_engine[key(row), row["backend"]].append((errors[0], errors[1]))
    engines = sorted({engine for _, engine in errors_by_engine})
    values = sorted({value for value, _ in errors_by_engine}, key=_numerically)
    body = [[value, *(_both(errors_by_engine.get((value, engine), [])) for engine in engines)] for value in values]
    return table((title, *(f"{engine}: rows, TTFT, TPOT" for engine in engines)), body)


def _numerically(text: str) -> tuple[float, str]:
    first = text.split("x")[0]
    return (float(first) if first.replace(".", "").isdigit() else -1.0, text)


def _both(errors: list[tuple[float, float]]) -> str:
    if not errors:
        return ""
    ttft, tpot = np.median(np.array(errors), axis=0)
    return f"{len(errors)}, {percent(float(ttft), '+')}, {percent(float(tpot), '+')}"


def block(report: dict[str, Any], rows: Sequence[dict[str, str]]) -> str:
    """Everything between the markers."""
    done = [row for row in rows if row["predicted_ttft_ms"]]
    skipped = ", ".join(f"{count:,} ({reason})" for reason, count in report["skipped"].items()) or "none"
    beyond = report["beyond_reach"]
    return "\n\n".join(
        [
            f"{report['priced']:,} of {report['rows']:,} rows are simulated{f'; skipped: {skipped}' * bool(skipped)}.",
            errors_table(
                [
                    report["all"],
                    report["dense"],
                    report["drafted"],
                    *([report["within_reach"]] if beyond else []),
                    *report["engines"],
                    report["start_up"],
                ]
            ),
            *peer(report),
            "By engine, version, GPU and model:",
            errors_table(report["groups"]),
            *(f"![Predicted over measured by {title}](images/{name})" for name, title, _ in FIGURES),
            "Median signed errors, (predicted - measured) / measured:",
            residuals(done, "in flight", lambda row: str(int(float(row["concurrency"])))),
            residuals(done, "lengths", lambda row: f"{row['input_tokens']}x{row['output_tokens']}"),
            residuals(done, "tp column", lambda row: str(int(float(row["tp"])))),
            residuals(done, "gemm_dtype", lambda row: row["gemm_dtype"] or "16 bits"),
        ]
    )


def disaggregated(report: dict[str, Any], rows: Sequence[dict[str, str]]) -> str:
    """Runs with disaggregated prefill and decode: in all, and those that state their workers by what decodes."""
    done = [row for row in rows if row["predicted_ttft_ms"]]
    stated = [row for row in done if float(row["prefill_workers"] or 0) > 0 and float(row["decode_workers"] or 0) > 0]
    deployments: dict[str, list[dict[str, str]]] = defaultdict(list)
    for row in stated:
        deployments[_deployment(row)].append(row)
    body = []
    for name, of in sorted(deployments.items()):
        cells = [name, str(len(of))]
        for time in ("ttft", "tpot"):
            signed = np.array(
                [float(row[f"predicted_{time}_ms"]) / float(row[f"measured_{time}_ms"]) - 1 for row in of]
            )
            cells += [
                percent(float(np.median(np.abs(signed)))),
                f"{percent(signed.min(), '+')} to {percent(signed.max(), '+')}",
            ]
        body.append(cells)
    names = {"disaggregated_stated": "workers stated", "disaggregated_known": "recipe known", "disaggregated": "all"}
    return "\n\n".join(
        [
            f"{report['priced']:,} of {report['rows']:,} rows are simulated with the profiles' constants as they are; "
            "nothing is fitted to them.",
            errors_table(report[name] | {"key": title} for name, title in names.items()),
            "Rows that state their workers, by what decodes:",
            table(("", "n", "TTFT median APE", "from, to", "TPOT median APE", "from, to"), body),
        ]
    )


def _deployment(row: dict[str, str]) -> str:
    """Engine, GPU, format and what one decode worker is."""
    groups = int(float(row["decode_attention_dp"] or 1))
    split = f"{groups} groups" if groups > 1 else f"TP {int(float(row['decode_tp']))}"
    gpu = row["system"].split("_")[0].upper()
    model = row["model"].rsplit("/", 1)[-1]
    return f"{row['backend']}, {gpu}, {model}, {row['gemm_dtype'] or '16 bits'}, decode {split}"


def peer(report: dict[str, Any]) -> list[str]:
    """Another tool's own prediction of the rows that both price, where it was asked."""
    if not report["peer"]:
        return []
    comparison = report["peer"]
    return [
        f"Beside {comparison['tool']}, on the rows that both price:",
        errors_table([comparison["ours"], comparison["theirs"]]),
    ]
