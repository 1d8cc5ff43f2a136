"""How ``hisearch run`` ends: cut short, before anything was examined, resumed, or with rejections alone."""

import json
import os
import re
import shlex
from pathlib import Path

import pandas as pd
import pytest

from tests.cli.conftest import Hisearch

pytestmark = pytest.mark.slow


def test_a_budget_that_cuts_the_search_short_is_said_everywhere(hisearch: Hisearch, workdir: Path) -> None:
    cut = ("--set", "spec.budget.simulations=3", "--out", "r")
    ran = hisearch("run", "small.yaml", *cut)
    assert ran.code == 0
    sentence = "The budget of 3 simulations ended the search before it had tried "
    assert "Search cut short: " in ran.out
    assert "go on with hisearch run --resume r --set spec.budget.simulations=6." in ran.out
    assert sentence in hisearch("run", "--resume", "r", "-q", "-v").out
    data = hisearch("run", "--resume", "r", "--json", "-q").json
    assert data["stopped"] == "simulations"
    assert data["untried"]
    assert data["likely"]
    assert sentence + data["likely"][0] in data["caution"]
    budget = json.loads((workdir / "r" / "provenance.json").read_text())["budget"]
    assert (budget["stopped"], budget["untried"]) == ("simulations", data["untried"])
    report = (workdir / "r" / "report.html").read_text()
    assert sentence in report
    assert hisearch("report", "r").code == 0
    assert (workdir / "r" / "report.html").read_text() == report


@pytest.mark.slow
def test_a_search_that_came_to_its_end_carries_no_such_caution(hisearch: Hisearch, workdir: Path) -> None:
    ran = hisearch("run", "small.yaml", "--out", "r", "--set", "spec.budget.simulations=1200", "--json", "-q")
    assert ran.code == 0
    assert (ran.json["stopped"], ran.json["untried"]) == ("", [])
    assert "ended the search" not in (ran.json["caution"] or "")
    assert json.loads((workdir / "r" / "provenance.json").read_text())["budget"]["stopped"] == "finished"


def test_no_time_for_a_single_simulation_is_an_error_not_a_verdict(hisearch: Hisearch, workdir: Path) -> None:
    no_time = ("--set", "spec.budget.seconds=0.000001")
    ran = hisearch("run", "small.yaml", "--out", "r", *no_time)
    assert ran.code == 1
    assert ran.out.startswith("small: No answer\nSearch cut short: The budget of 1e-06 s ended the search")
    assert "meets the SLO" not in ran.out.replace("may find a deployment that meets the SLO", "")
    assert "hisearch: error: No deployment was simulated." in ran.err
    assert "hisearch run --resume r --set spec.budget.seconds=2e-06" in ran.err
    again = hisearch("run", "small.yaml", "--out", "r2", "--json", "-q", *no_time)
    assert again.code == 1
    assert again.json["feasible"] is None
    assert again.json["failure"]["deployments"] == 0
    assert again.json["stopped"] == "seconds"
    report = (workdir / "r2" / "report.html").read_text()
    assert "No deployment was simulated" in report
    assert "<h2>No answer</h2>" in report
    assert "earest miss" not in report.partition("<script")[0]


def test_a_run_without_a_simulation_can_be_reported_and_says_that_it_has_nothing_to_export(
    hisearch: Hisearch, workdir: Path
) -> None:
    assert hisearch("run", "small.yaml", "--out", "r", "-q", "--set", "spec.budget.seconds=0.000001").code == 1
    report = (workdir / "r" / "report.html").read_text()
    assert hisearch("report", "r").code == 0
    assert (workdir / "r" / "report.html").read_text() == report
    export = hisearch("export", "r")
    assert (export.code, export.err) == (
        1,
        "hisearch: error: r: no deployment was simulated, there is nothing to export\n",
    )


def test_an_slo_that_nothing_can_meet_asks_for_no_larger_budget(hisearch: Hisearch, workdir: Path) -> None:
    tight = ("--set", "spec.slo.terms.1.at_most_s=0.0001", "--set", "spec.budget.simulations=60")
    ran = hisearch("run", "small.yaml", "--out", "r", *tight)
    assert ran.code == 99
    assert ran.out.startswith("small: Nothing meets the SLO among what was simulated\n")
    sentence = "No deployment of this search space can meet the SLO, and a larger budget will not help: of 4 workers"
    assert sentence in ran.out
    assert "spec.budget" not in ran.out + ran.err
    assert "Search cut short" not in ran.out
    assert sentence in (workdir / "r" / "report.html").read_text()
    data = hisearch("run", "--resume", "r", "--json", "-q").json
    assert sentence in data["failure"]["text"]
    assert "budget" not in (data["caution"] or "")
    assert data["proven"]
    assert data["simulations"] <= 5  # one for each worker that can be built, and the nearest with all replicas


def test_what_an_export_of_a_slice_says_can_be_repeated(hisearch: Hisearch, workdir: Path) -> None:
    larger = ("--set", "spec.workload.trace.generator.requests=2000", "--set", "spec.budget.simulations=120")
    assert hisearch("run", "small.yaml", "--out", "r", "-q", *larger).code == 0
    frame = pd.read_parquet(workdir / "r" / "trials.parquet")
    sliced = frame[(frame["slice_fraction"] < 1) & frame["feasible"]].iloc[0]
    exported = hisearch("export", "r", "--trial", sliced["number"], "--out", "e", "--json").json
    assert exported["slice_fraction"] == sliced["slice_fraction"]
    title = f"meets the SLO on the first {100 * sliced['slice_fraction']:.3g} % of the trace only"
    assert exported["title"].endswith(title)
    folder = workdir / "e"
    engine = "vllm" if (folder / "vllm").is_dir() else "sglang"
    for name in ("README.md", "deployment.yaml", f"{engine}/run.sh"):
        assert title in " ".join((folder / name).read_text().split())
    command = next(line for line in (folder / "README.md").read_text().splitlines() if line.startswith("hisearch sim"))
    assert "--limit 667" in command
    os.chdir(folder)
    again = hisearch(*shlex.split(command)[1:], "--json", "-q").json
    assert again["metrics"]["ttft_p99_s"] == sliced["ttft_p99_s"]
    assert "Simulated on the first" in hisearch("export", workdir / "r", "--trial", sliced["number"], "--out", "f").err


def test_a_resumed_run_says_what_it_took_from_the_earlier_one(hisearch: Hisearch, workdir: Path) -> None:
    setting = ("--set", "spec.budget.simulations=4")
    first = hisearch("run", "small.yaml", "--out", "r", *setting)
    assert "earlier run" not in first.out + first.err
    again = hisearch("run", "--resume", "r")
    assert "4 simulations; none of them new: all are stored ones of an earlier run" in again.out
    assert "4 stored by an earlier run" in again.err
    more = hisearch("run", "--resume", "r", "--set", "spec.budget.simulations=9", "--json", "-q")
    assert 0 < more.json["replayed"] < more.json["simulations"] == 9


def test_one_of_a_thing_is_not_written_as_several(hisearch: Hisearch, workdir: Path) -> None:
    ran = hisearch("run", "small.yaml", "--out", "r", "--set", "spec.budget.simulations=1", "-v")
    assert "1 simulation, in" in ran.out
    assert "among 1 deployment simulated" in ran.out
    texts = ran.out + ran.err + (workdir / "r" / "report.html").read_text()
    assert not re.search(r"(?<![\d.,])1 (simulations|deployments|requests|combinations|trials)\b", texts)


def test_where_requests_are_rejected_and_nothing_else_fails_that_is_the_explanation(
    hisearch: Hisearch, workdir: Path
) -> None:
    rows = [{"id": str(n), "arrival_s": float(n), "input_tokens": 400, "output_tokens": 20} for n in range(40)]
    rows[7]["input_tokens"] = 140_000  # the model's window is 131,072
    lines = [{"format": "hisearch-trace", "version": 1}, *rows]
    (workdir / "long.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    ran = hisearch("run", "small.yaml", "--out", "r", "--set", "spec.workload.trace=long.jsonl")
    assert ran.code == 99
    assert "only because of rejected requests: every latency term is met" in ran.out
    assert "1 of 40 requests" in ran.out
    assert "window" in ran.out
    data = hisearch("run", "--resume", "r", "--json", "-q").json
    assert data["feasible"] is False
    assert data["failure"]["missed"] == {"rejected_fraction": data["failure"]["deployments"]}
    assert data["stopped"] == ""
    assert data["simulations"] <= 8  # a worker each on each slice: neither replicas, routers nor memory can heal it
