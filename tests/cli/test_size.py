"""``hisearch size``: its answer in few lines, its exit codes, an error for everything that can be wrong."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer

from hisearch.cli.verbs import choosing
from hisearch.cli.views import size as view
from hisearch.report.data.confidence import Confidence, Priced
from hisearch.score.terms import TermCheck
from hisearch.search.select.recommend import format_term
from hisearch.specs.documents.catalogue import Catalogue
from tests.cli.conftest import Hisearch

QUESTION = {
    "--model": "llama-3.1-8b", "--slo": "ttft p95 < 1s, tpot p95 < 50ms", "--input": "1000", "--output": "100",
    "--rate": "2", "--gpu": "h100-sxm",
}  # fmt: skip

SHORT = (
    "--set", "spec.budget.simulations=16", "--set", "spec.workload.trace.generator.requests=300",
    "--set", "spec.confidence.draws=16", "--set", "spec.confidence.what_if=0",
    "--set", "spec.confidence.candidate_draws=2", "--set", "spec.confidence.fresh_draws=8",
)  # fmt: skip


def question(**changes: str | None) -> list[str]:
    """The question with options changed, or left out where None."""
    options = QUESTION | {f"--{name.replace('_', '-')}": value for name, value in changes.items()}
    return ["size", *(text for name, value in options.items() if value is not None for text in (name, value))]


def test_it_answers_in_25_lines(hisearch: Hisearch, workdir: Path) -> None:
    ran = hisearch(*question(), *SHORT, "--out", "r", "--keep", "kept.yaml")
    assert ran.code == 0
    lines = ran.out.splitlines()
    assert len(lines) <= 25
    assert lines[0].startswith("Buy 1 × h100-sxm for meta-llama/Llama-3.1-8B-Instruct: $2.7")
    assert "per month" in lines[0]
    for expected in (
        "1 replica × TP 1 on vLLM", "bf16 weights (own); chunks of", "running requests each",
        "2 requests/s, Poisson; 1,000 tokens in, 100 out (on average, lognormal, spread 0.7)",
        "TTFT p95", "chance to hold", "for the whole SLO", "× this rate", "a quarter more would take TPOT p95",
        "nothing cheaper was tried", "simulations of", "r/report.html", "hisearch run r/study.yaml",
    ):  # fmt: skip
        assert expected in ran.out, expected
    assert "wall time" not in ran.out
    assert (workdir / "r" / "report.html").is_file()
    again = hisearch("run", "kept.yaml", "--out", "again", "--json", "-q")
    same = hisearch("run", "--resume", "r", "--json", "-q")
    assert again.json["recommendation"] == same.json["recommendation"]
    assert again.json["recommendation"]["deployment"]["pools"][0]["accelerator"] == "h100-sxm"


def test_its_json_adds_the_question_to_that_of_run(hisearch: Hisearch, workdir: Path) -> None:
    ran = hisearch(*question(slo="ttft p95 < 1s", weights="bf16,fp8"), *SHORT, "--out", "r", "--json", "-q")
    assert (ran.code, ran.err) == (0, "")
    data = ran.json
    assert data["feasible"] is True
    assert data["question"]["rate"] == 2.0
    assert data["question"]["weights"] == ["bf16", "fp8"]
    assert data["held_back_by"]["label"] == "ttft_p95"
    assert set(data["held_back_by"]["relieved_s"]) == {
        "prefill compute", "decode bandwidth", "host speed", "KV memory",
    }  # fmt: skip
    assert data["next_cheaper"] is None
    assert data["requests"].startswith("300 requests are simulated (150 s, 15 of them above p95)")


def test_an_answer_that_wall_time_cut_short_says_so(hisearch: Hisearch, workdir: Path) -> None:
    ran = hisearch(*question(), *SHORT, "--set", "spec.confidence.seconds=0.000001", "--out", "s", "-q")
    sentence = "Checks of the answer ended after 1e-06 s of wall time (spec.confidence.seconds), before all were made"
    assert f"{sentence}: a less busy or faster machine may answer otherwise." in " ".join(ran.out.split())
    assert sentence in (workdir / "s" / "report.html").read_text()


@pytest.mark.parametrize("feasible", [True, False])
def test_what_is_cheaper_is_named_once(feasible: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    missed = TermCheck("ttft_p95", 2.0, 1.0)
    trial = SimpleNamespace(feasible=feasible, deployment=None, metrics={"usd_per_hour": 2.0}, worst=missed)
    monkeypatch.setattr(view, "next_cheaper", lambda _: trial)
    monkeypatch.setattr(view, "_short", lambda *_: "1 × l40s")
    result: Any = SimpleNamespace(recommendation=object(), confidence=Confidence(nominal=Priced(1, 2.0, 0.5)))
    assert view._cheaper(result) == ("" if feasible else f"1 × l40s at $2.00 per hour: {format_term(missed)}")


def test_it_says_why_the_largest_rate_of_the_same_accelerators_may_differ() -> None:
    pools = [SimpleNamespace(accelerator="h200", accelerators=4)]
    trial = SimpleNamespace(deployment=SimpleNamespace(pools=pools))
    asked: Any = SimpleNamespace(question=SimpleNamespace(total_rate=20.0))
    result: Any = SimpleNamespace(recommendation=SimpleNamespace(trial=trial), confidence=Confidence(chance=0.93))
    said = view._asked_in_reverse(result, asked)
    assert "`size --have h200:4` draws step times alone" in said
    assert "a replica more or less" in said
    users: Any = SimpleNamespace(question=SimpleNamespace(total_rate=None))
    unsure: Any = SimpleNamespace(recommendation=result.recommendation, confidence=Confidence())
    assert view._asked_in_reverse(result, users) == view._asked_in_reverse(unsure, asked) == ""


def test_nothing_within_the_budget_exits_with_99_and_the_nearest_miss(hisearch: Hisearch, workdir: Path) -> None:
    ran = hisearch(*question(budget_usd="0.5"), *SHORT, "--out", "r", "-q")
    assert ran.code == 99
    assert len(ran.out.splitlines()) <= 25
    expected_texts = (
        "Nothing that was tried meets the SLO", "Nothing comes near: the closest, 1 × h100-sxm at", "misses Cost",
        "why", "ask again with a higher --budget-usd, another --gpu, narrower --weights or a looser --slo",
    )  # fmt: skip
    for expected in expected_texts:
        assert expected in " ".join(ran.out.split()), expected
    assert "per month" not in ran.out
    near = hisearch(*question(budget_usd="2"), *SHORT, "--out", "near", "-q")
    assert near.code == 99
    assert "nearest miss 1 × h100-sxm: $2.70 per hour, $1,971 per month" in " ".join(near.out.split())
    data = hisearch(*question(slo="ttft p95 < 1us"), *SHORT, "--out", "json", "-q", "--json")
    assert data.code == 99
    assert data.json["nearest_miss"]["metrics"]["ttft_p95_s"] > 1e-6


def test_a_probability_that_none_reaches_exits_with_99(hisearch: Hisearch, workdir: Path) -> None:
    first = hisearch(*question(), *SHORT, "--out", "r", "-q", "--json").json
    tpot_ms = 1001 * first["recommendation"]["metrics"]["tpot_p95_s"]
    tight = f"tpot p95 < {tpot_ms:.4f}ms"
    ran = hisearch(
        *question(slo=tight, confidence="0.999"), *SHORT, "--set", "spec.confidence.search=1", "--out", "t", "-q"
    )
    assert ran.code == 99
    said = " ".join(ran.out.split())
    assert "the search for one with the 99.9 % that are required was ended by the limit on simulations" in said


REFUSED = [
    ({"slo": "ttft p95 = 1s"}, 2, "Invalid value for --slo: expected <, <= or under, got '=' at character 10"),
    ({"slo": None}, 2, "Missing option '--slo'"),
    ({"input": "2,000"}, 2, "Invalid value for --input: expected 'exactly' or the end (numbers have no comma)"),
    ({"output": "0"}, 2, "Invalid value for --output: expected 1 token or more"),
    ({"input": "200000"}, 2, "Invalid value for --input: prompt and output of a request have 200,100 tokens"),
    ({"turns": "200"}, 2, "Invalid value for --turns: prompt and output of the last turn"),
    ({"rate": None}, 2, "Invalid value for --rate: expected requests per second, or a concurrency instead"),
    ({"concurrency": "5"}, 2, "not both"),
    ({"rate": "-1"}, 2, "Invalid value for --rate"),
    ({"rate": "many"}, 2, "Invalid value for '--rate': Input should be a valid number"),
    ({"rate": None, "concurrency": "0"}, 2, "Invalid value for --concurrency"),
    ({"burst": "0"}, 2, "Invalid value for --burst"),
    ({"turns": "0"}, 2, "Invalid value for --turns"),
    ({"shared": "-3"}, 2, "Invalid value for --shared"),
    ({"think": "-3"}, 2, "Invalid value for --think: expected 0 to 86,400 seconds"),
    ({"sigma": "9"}, 2, "Invalid value for --spread: expected 0 (all alike) to 3"),
    ({"engine": "vlm"}, 2, "Invalid value for --engine: no engine 'vlm'; did you mean 'vllm'?"),
    ({"quant": "fp7"}, 2, "Invalid value for --weights: no format of weights 'fp7'"),
    ({"gpu": ","}, 2, "Invalid value for --gpu: names no accelerator"),
    ({"budget_usd": "0"}, 2, "Invalid value for --budget-usd"),
    ({"confidence": "90"}, 2, "Invalid value for --confidence: expected a probability above 0 and below 1"),
    ({"keep": "no/folder/kept.yaml"}, 1, "no/folder"),
    ({"model": "llama-4"}, 1, "error: --model: no Model named 'llama-4'"),
    ({"model": "acme/unheard-of-7b"}, 1, "error: --model: no model of the catalogue has the Hugging Face id"),
    ({"model": "./no.json"}, 1, "error: --model: no file at"),
    ({"slo": "interactive"}, 1, "error: --slo: no SLO named 'interactive'"),
    (
        {"gpu": None, "rate": None, "have": "h200:8,h101-sxm:3"}, 1,
        "error: --have: no Accelerator named 'h101-sxm'; did you mean 'h100-sxm'?",
    ),
    ({"gpu": "h101-sxm"}, 1, "error: --gpu: no Accelerator named 'h101-sxm'; did you mean 'h100-sxm'?"),
    ({"set": "spec.budget.simulation=3"}, 1, "spec.budget.simulation"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "code", "message"), REFUSED, ids=lambda value: str(value)[:40])
def test_what_is_wrong_is_said_by_option(
    hisearch: Hisearch, workdir: Path, changes: dict[str, Any], code: int, message: str
) -> None:
    ran = hisearch(*question(**changes))
    assert ran.code == code
    assert message in " ".join(ran.err.split())
    assert not (workdir / "runs").exists()


def test_what_fits_nowhere_says_by_how_much(hisearch: Hisearch, workdir: Path) -> None:
    ran = hisearch(*question(model="deepseek-v3", gpu="l40s"), "-q")
    assert ran.code == 1
    assert "no deployment of the search space can be built" in ran.err


def test_files_that_are_there_are_kept(hisearch: Hisearch, workdir: Path) -> None:
    (workdir / "kept.yaml").write_text("mine")
    ran = hisearch(*question(), "--keep", "kept.yaml")
    assert ran.code == 1
    assert "kept.yaml: File exists" in ran.err
    assert (workdir / "kept.yaml").read_text() == "mine"


def test_run_without_a_study_lists_those_there_are(hisearch: Hisearch, workdir: Path) -> None:
    ran = hisearch("run")
    assert ran.code == 2
    assert ran.out == ""
    lines = ran.err.splitlines()
    assert lines[0] == "Studies:"
    assert lines[1].split()[:2] == ["1", "quickstart"]
    names = {line.split()[1] for line in lines[1:] if line[:4].strip().isdecimal()}
    assert names == {*Catalogue().names("Study"), *Catalogue().names("FleetStudy")}
    assert "without a study file ask with: hisearch size" in ran.err


def test_a_terminal_is_asked_which_study(monkeypatch: pytest.MonkeyPatch, workdir: Path) -> None:
    answers = iter(["99", "no-such", "2"])
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(typer, "prompt", lambda *_, **__: next(answers))
    (workdir / "studies").mkdir()
    (workdir / "studies" / "broken.yaml").write_text("kind: Study\n")
    assert choosing.choose_study() == "agent-memory"
    monkeypatch.setattr(typer, "prompt", lambda *_, **__: "coder-6h")
    assert choosing.choose_study() == "coder-6h"
