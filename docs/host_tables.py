"""Tables of host work: its constants, what they were judged by, open-loop runs, Blackwell, and the front page's own."""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from silicon_tables import errors_table, percent, table

from hisearch.specs.machines.host import RANGES

#: Constants of an engine, with the unit they are shown in.
CONSTANTS = (
    ("step_s", "step, ms", 1e3),
    ("kernel_s", "kernel, µs", 1e6),
    ("per_sequence_s", "sequence, µs", 1e6),
    ("schedule_s", "schedule, ms", 1e3),
    ("launch_s", "dispatch, µs", 1e6),
    ("request_s", "request, ms", 1e3),
    ("prompt_token_s", "prompt token, µs", 1e6),
)
#: Groups of runs as they were judged, and the words for what was left out.
LEFT_OUT = {
    "model": "another model of these runs",
    "GPU": "another GPU",
    "campaign": "another client and other settings",
}
#: Simulators whose predictions of the same open-loop runs are known.
PEERS = ("blis-trained-physics", "blis-evolved", "aiconfigurator-estimate", "llm-optimizer-estimate")
METRICS = ("e2e_mean", "itl_mean", "ttft_mean", "ttft_p99")


def front(judged: Mapping[str, Any]) -> str:
    """What to expect, by situation: medians and means of absolute errors that had no part in the constants."""
    kinds = {"closed loop": "TPOT", "open loop": "E2E", "served": "TPOT"}
    titles = {"served": "own tables"}
    head = ["your deployment has"]
    head += [f"{figure}, {titles.get(kind, kind)}" for kind, step in kinds.items() for figure in ("TTFT", step)]
    body = []
    for name in LEFT_OUT:
        if name not in judged["errors"]:
            continue
        groups = judged["errors"][name]
        cells = [_pair(groups.get(kind, {}).get(figure)) for kind in kinds for figure in FIGURES]
        body.append([LEFT_OUT[name], *cells])
    return table(head, body)


FIGURES = ("ttft", "step")


def details(judged: Mapping[str, Any], hosts: Mapping[str, Any]) -> str:
    """Constants, their ranges, errors by what was left out, and how many runs the intervals hold."""
    constants = []
    for engine, times in hosts.items():
        for version, of in (("(all runs)", times), *times["versions"].items()):
            constants.append([f"{engine} {version}", *(f"{of[name] * unit:.3g}" for name, _, unit in CONSTANTS)])
    ranges = [
        [f"`{name}`", f"{known.low:g} to {known.high:g} s", known.per, known.source] for name, known in RANGES.items()
    ]
    groups = sorted({group for errors in judged["errors"].values() for group in errors})
    errors = [
        [
            group,
            *(
                _pair(judged["errors"][out].get(group, {}).get(figure))
                for out in judged["errors"]
                for figure in FIGURES
            ),
        ]
        for group in groups
    ]
    head = ["runs", *(f"{figure}, {out}" for out in judged["errors"] for figure in ("TTFT", "step"))]
    inside = [
        [engine, *(percent(of.get(f"{figure} {share} %")) for figure in FIGURES for share in (50, 90))]
        for engine, of in judged["coverage"].items()
    ]
    return "\n\n".join(
        [
            f"{judged['runs']:,} runs. Constants of engines, and of versions with at least 20 runs:",
            table(("engine and version", *(title for _, title, _ in CONSTANTS)), constants),
            "Their ranges:",
            table(("constant", "range", "of each", "source"), ranges),
            "Median and mean of absolute errors, refitted without what each column names:",
            table(head, errors),
            "Share of runs that intervals hold, each by a law of the other models' runs:",
            table(("engine", "TTFT, 50 %", "TTFT, 90 %", "step, 50 %", "step, 90 %"), inside),
        ]
    )


def open_loop(report: Mapping[str, Any], others: Path) -> str:
    """Errors of open-loop runs, whole runs, beside other simulators' on the runs that each predicts."""
    runs = report["runs"]
    ours = {(run["set"], run["id"]): run["metrics"] for run in runs}
    body = [
        [
            "hisearch",
            str(len(runs)),
            *(_errors([run["metrics"][m]["error"] for run in runs if m in run["metrics"]]) for m in METRICS),
        ]
    ]
    theirs: dict[str, dict[tuple[str, str, str], float]] = defaultdict(dict)
    with others.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            run = row.get("run") or row.get("id") or ""
            if row["stage"] == "-1" and row["simulator"] in PEERS:
                theirs[row["simulator"]][row["set"], run, row["metric"]] = float(row["ms"])
    for name in PEERS:
        cells, predicted = [], set()
        for metric in METRICS:
            signed = []
            for (group, run), metrics in ours.items():
                if metric in metrics and (group, run, metric) in theirs[name]:
                    signed.append(theirs[name][group, run, metric] / metrics[metric]["measured_ms"] - 1.0)
                    predicted.add((group, run))
            cells.append(_errors(signed))
        body.append([name, str(len(predicted)), *cells])
    each = [
        [run["id"], run["model"], run["accelerator"], str(run["tensor_parallel"]), run["workload"],
         *(percent(run["metrics"][m]["error"], "+") if m in run["metrics"] else "" for m in METRICS)]
        for run in runs
    ]  # fmt: skip
    names = ("E2E", "ITL", "TTFT", "TTFT p99")
    return "\n\n".join(
        [
            "Median and mean of absolute errors:",
            table(("simulator", "runs", *names), body),
            "Signed errors of each run:",
            table(("run", "model", "accelerator", "TP", "workload", *names), each),
        ]
    )


def blackwell(together: Mapping[str, Any], split: Mapping[str, Any]) -> str:
    """Runs on B300 and GB200."""
    parts = []
    for title, report, keys in (
        ("Aggregated:", together, ("all",)),
        ("Disaggregated prefill and decode:", split, ("disaggregated_stated", "disaggregated_known", "disaggregated")),
    ):
        skipped = ", ".join(f"{count:,} ({reason})" for reason, count in report["skipped"].items()) or "none"
        lines = [report[key] for key in keys] + list(report["groups"])
        parts += [f"{title} {report['priced']:,} of {report['rows']:,} rows; skipped: {skipped}.", errors_table(lines)]
    return "\n\n".join(parts)


def _pair(of: Mapping[str, float] | None) -> str:
    return "" if not of else f"{percent(of['median_ape'])}, {percent(of['mape'])}"


def _errors(signed: Iterable[float]) -> str:
    values: Sequence[float] = list(signed)
    if not values:
        return ""
    absolute = np.abs(np.array(values))
    return f"{percent(float(np.median(absolute)))}, {percent(float(np.mean(absolute)))}"
