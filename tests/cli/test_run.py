"""``hisearch run`` and the verbs on the folder that it leaves."""

import json
import os
import shlex
import shutil
from pathlib import Path

import pytest

from hisearch.api.studies.result import StudyResult
from hisearch.api.studies.stored_run import load_run
from hisearch.api.studies.study import load_study
from hisearch.score.metrics import joules_per_generated_token
from hisearch.score.quantities import quantity, significant
from hisearch.search.model.trial import Trial
from hisearch.specs.documents.catalogue import shipped_root
from tests.cli.conftest import Hisearch
from tests.cli.documents import CHECKED_STUDY, STUDY


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> StudyResult:
    folder = tmp_path_factory.mktemp("run")
    (folder / "small.yaml").write_text(STUDY)
    return load_study(folder / "small.yaml").run(workers=2, run_dir=folder / "run")


def test_run_prints_what_to_buy_in_thirty_lines_and_why_if_asked(hisearch: Hisearch, workdir: Path) -> None:
    (workdir / "small.yaml").write_text(CHECKED_STUDY)
    ran = hisearch("run", "small.yaml", "--out", "r")
    assert ran.code == 0
    lines = ran.out.splitlines()
    assert len(lines) <= 30, "what an engineer needs at once; the rest is in the report"
    assert lines[0] == "Recommended for small"
    assert "per hour" in lines[1]
    assert "per month" in lines[1]
    assert "with a probability of" in " ".join(lines[2:6]), "cautions come before figures"
    for expected in ("Against the SLO", "TTFT p99", "chance to hold", "cheaper", "surer", "faster", "--verbose"):
        assert expected in ran.out
    assert "J per generated token" not in ran.out, "only where the rule or a limit asks for energy"
    assert str(Path("r") / "report.html") in ran.out
    assert "2 routing" in ran.err
    assert (workdir / "r" / "report.html").is_file()
    again = hisearch("run", "small.yaml", "--out", "r")
    assert again.code == 1
    assert "resume it or choose another folder" in again.err
    verbose = hisearch("run", "--resume", "r", "-q", "--verbose").out
    for expected in ("Against the SLO", "Why this one", "goodput", "per million tokens", "The front:"):
        assert expected in verbose
    assert "it meets the whole SLO in" in verbose


def test_run_as_json_tells_the_same_as_the_library(hisearch: Hisearch, workdir: Path, result: StudyResult) -> None:
    ran = hisearch("run", "small.yaml", "--out", "r", "--json", "--quiet")
    assert (ran.code, ran.err) == (0, "")
    data, best = ran.json, result.recommend()
    assert best is not None
    assert data["feasible"] is True
    assert data["simulations"] == len(result.trials)
    assert data["recommendation"]["deployment"] == best.trial.deployment.model_dump(mode="json")
    assert data["recommendation"]["metrics"]["usd_per_hour"] == best.trial.metrics["usd_per_hour"]
    assert data["recommendation"]["usd_per_month"] == pytest.approx(730 * best.trial.metrics["usd_per_hour"])
    assert [term["label"] for term in data["recommendation"]["slo"]] == [
        "ttft_p99",
        "tpot_p99",
        "rejected_fraction",
    ]
    assert data["assumed_prices"] == list(result.report_input().provenance.assumed_prices)
    assert all(term["holds"] for term in data["recommendation"]["slo"])
    assert len(data["recommendation"]["runner_ups"]) == len(best.runner_ups)
    assert [trial["trial"] for trial in data["front"]] == [trial.number for trial in result.front]
    assert data["nearest_miss"] is None


def test_the_least_energy_is_recommended_and_stated(hisearch: Hisearch, workdir: Path, result: StudyResult) -> None:
    shutil.copytree(result.run_dir, workdir / "r")
    nominal = ("--set", "spec.confidence.at_least=0", "--recommend", "least_energy")
    data = hisearch("run", "--resume", "r", "-q", "--json", *nominal).json
    least = min(
        joules_per_generated_token(trial.metrics) for trial in load_run(workdir / "r").trials if trial.meets_slo
    )
    chosen = data["recommendation"]
    assert chosen["rule"] == "least_energy"
    assert joules_per_generated_token(chosen["metrics"]) == pytest.approx(least)
    assert [row["rule"] for row in data["confidence"]["rules"]][-1] == "least_energy"
    per_token = chosen["metrics"]["joules_per_token"]
    stated = f"{significant(least)} J per generated token, {significant(per_token)} J per token, prompts counted"
    assert f"Energy: {stated}" in hisearch("run", "--resume", "r", "-q").out
    assert stated in hisearch("run", "--resume", "r", "-q", "-v").out
    page = (workdir / "r" / "report.html").read_text(encoding="utf-8")
    assert '<div class="energy"><dt>Energy</dt>' in page


@pytest.mark.slow
def test_how_sure_it_is_and_other_rules(hisearch: Hisearch, workdir: Path) -> None:
    (workdir / "small.yaml").write_text(CHECKED_STUDY)
    ran = hisearch("run", "small.yaml", "--out", "r", "-q", "-v", "--recommend", "best_value")
    assert ran.code == 0
    for expected in (
        "it meets the whole SLO in",
        "What would change the answer",
        "with its default settings",
    ):
        assert expected in ran.out
    page = (workdir / "r" / "report.html").read_text(encoding="utf-8")
    for expected in ('href="#sensitivity"', "of 64 draws", "Best value", "Engine&#39;s defaults"):
        assert expected in page
    data = hisearch("run", "--resume", "r", "--json", "-q").json
    assert data["recommendation"]["rule"] == "best_value"  # the folder's study keeps it
    assert data["confidence"]["recommendation"]["trial"] == data["recommendation"]["trial"]
    assert data["confidence"]["draws"] == 64
    tpot_s = data["recommendation"]["metrics"]["tpot_p99_s"]
    tight = ("--set", f"spec.slo.terms.1={{metric: tpot_s, percentile: 99, at_most_s: {1.001 * tpot_s}}}")
    strict = hisearch("run", "small.yaml", "--out", "tight", "--json", "-q", "--confidence", "0.999", *tight,
                      "--set", "spec.confidence.search=1")  # fmt: skip
    assert strict.json["confidence"]["satisfied"] is False
    assert strict.code == 99
    assert "is required" in strict.json["confidence"]["summary"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--recommend", "lowest_latency"), "needs the most that may be spent"),
        (("--recommend", "fastest"), "spec.recommend.rule"),
        (("--confidence", "95"), "spec.confidence.at_least"),
    ],
)
def test_rules_and_probabilities_that_make_no_sense_are_refused(
    hisearch: Hisearch, workdir: Path, options: tuple[str, ...], message: str
) -> None:
    ran = hisearch("run", "small.yaml", "--out", "r", *options)
    assert ran.code == 1
    assert message in ran.err


def test_an_slo_that_nothing_meets_exits_with_99(hisearch: Hisearch, workdir: Path) -> None:
    setting = "spec.slo.terms.0.at_most_s=0.001"
    ran = hisearch("run", "small.yaml", "--out", "r", "--set", setting)
    assert ran.code == 99
    assert "Nothing meets the SLO" in ran.out
    assert "TTFT p99" in ran.out
    assert "missed by" in ran.out
    data = hisearch("run", "--resume", "r", "--json", "-q")
    assert data.code == 99
    assert (data.json["feasible"], data.json["recommendation"]) == (False, None)
    missed = data.json["nearest_miss"]["slo"][0]
    assert missed["margin"] == pytest.approx(1 - missed["value_s"] / 0.001)
    assert missed["holds"] is False


def test_a_model_that_fits_nowhere_says_how_many_bytes_are_short(hisearch: Hisearch, workdir: Path) -> None:
    ran = hisearch("run", "small.yaml", "--out", "r", "--set", "spec.model=llama-3.1-70b")
    assert ran.code == 1
    assert "GiB short on each rank" in ran.err


@pytest.mark.slow
def test_a_study_from_an_slo(hisearch: Hisearch, workdir: Path) -> None:
    slo = ("run", "interactive-chat")
    assert hisearch(*slo).code == 2
    arguments = ("--model", "llama-3.1-8b", "--trace", "visits.yaml", "--keep", "kept.yaml")
    ran = hisearch(*slo, *arguments, "--out", "r", "--set", "spec.budget.simulations=12")
    assert ran.code == 0
    assert "space quickstart" in ran.err
    kept = load_study(workdir / "kept.yaml").resolved
    assert (kept.model.name, kept.study.budget.simulations) == ("llama-3.1-8b", 12)
    again = hisearch(*slo, *arguments, "--out", "r2")
    assert again.code == 1
    assert "kept.yaml" in again.err
    assert hisearch("run", "small.yaml", "--model", "llama-3.1-8b").code == 2


@pytest.mark.slow
def test_a_kept_study_is_found_from_anywhere(
    hisearch: Hisearch, workdir: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (shipped_root() / "profiles/models/llama-3.1-8b.yaml").read_text()
    (workdir / "mine.yaml").write_text(text.replace("max_context_tokens: 131072", "max_context_tokens: 8192"))
    assert hisearch("trace", "generate", "visits.yaml", "-o", "v.jsonl").code == 0
    (workdir / "sub").mkdir()
    few = ("--set", "spec.budget.simulations=3", "-q")
    for trace in ("v.jsonl", "visits.yaml"):
        (workdir / "sub" / "kept.yaml").unlink(missing_ok=True)
        arguments = ("--model", "mine.yaml", "--trace", trace, "--keep", "sub/kept.yaml", "--out", f"r-{trace}")
        assert hisearch("run", "interactive-chat", *arguments, *few).code in (0, 99)
        with monkeypatch.context() as context:
            context.chdir(tmp_path_factory.mktemp("elsewhere"))
            kept = load_study(workdir / "sub" / "kept.yaml")
            assert kept.resolved.model.spec.max_context_tokens == 8192
            assert len(kept.trace) == 120
            assert kept.resolved.study.slo == "interactive-chat"


@pytest.mark.parametrize(
    ("model", "trace", "setting", "expected"),
    [
        ("llama-3.1-8b", "nowhere.jsonl", "spec.seed=0", "--trace: no file at nowhere.jsonl"),
        ("llama-3.1-8b", "vists", "spec.seed=0", "--trace: no Workload named 'vists'"),
        ("nowhere.yaml", "visits.yaml", "spec.seed=0", "--model: no file at nowhere.yaml"),
        ("llama-3.1-8b", "visits.yaml", "spec.space=small", "(--set spec.space=small): spec.space: no SearchSpace"),
    ],
)
def test_an_error_in_a_study_from_an_slo_names_the_option(
    hisearch: Hisearch, workdir: Path, model: str, trace: str, setting: str, expected: str
) -> None:
    ran = hisearch("run", "interactive-chat", "--model", model, "--trace", trace, "--set", setting)
    assert ran.code == 1
    assert ran.err.startswith(f"hisearch: error: {expected}")


@pytest.mark.slow
def test_a_run_of_the_users_own_model_is_resumed(hisearch: Hisearch, workdir: Path) -> None:
    (workdir / "mine.yaml").write_bytes((shipped_root() / "profiles/models/llama-3.1-8b.yaml").read_bytes())
    arguments = ("--set", "spec.model=mine.yaml", "--out", "r", "-q", "--json")
    first = hisearch("run", "small.yaml", *arguments).json
    (workdir / "mine.yaml").unlink()
    (workdir / "r" / "recommended" / "README.md").write_text("my notes")
    again = hisearch("run", "--resume", "r", "-q", "--json").json
    assert json.loads((workdir / "r" / "provenance.json").read_text())["run"]["replayed"] == first["simulations"]
    assert again["front"] == first["front"]
    assert (workdir / "r" / "recommended.1" / "README.md").read_text() == "my notes"
    assert "hisearch simulate" in (workdir / "r" / "recommended" / "README.md").read_text()


def test_an_unknown_name_and_a_wrong_kind_are_refused(hisearch: Hisearch, workdir: Path) -> None:
    ran = hisearch("run", "quickstrat")
    assert ran.code == 1
    assert "quickstart" in ran.err
    wrong = hisearch("run", "visits.yaml")
    assert wrong.code == 1
    assert "visits.yaml" in wrong.err
    assert "got Workload" in wrong.err


def test_a_stored_run_is_what_the_run_returned(result: StudyResult) -> None:
    loaded = load_run(result.run_dir)
    assert loaded.trials == result.trials
    assert loaded.front == result.front
    assert loaded.recommendation == result.recommendation
    assert loaded.report_input() == result.report_input()
    stored, kept = loaded.outcome.headroom, result.outcome.headroom
    assert stored is not None
    assert kept is not None
    assert (stored.load, stored.goodput_rps, stored.infeasible_load) == (
        kept.load,
        kept.goodput_rps,
        kept.infeasible_load,
    )


def test_report_is_written_again(hisearch: Hisearch, result: StudyResult) -> None:
    report = result.run_dir / "report.html"
    before = report.read_bytes()
    report.unlink()
    assert hisearch("report", result.run_dir).code == 0
    assert report.read_bytes() == before
    assert hisearch("report", result.run_dir, "--json").json == {"path": str(report), "so_far": None}


def _engine_of(trial: Trial) -> str:
    return trial.deployment.pool.engine.name


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_export_by_engine(hisearch: Hisearch, result: StudyResult, tmp_path: Path, engine: str) -> None:
    assert any(trial.feasible and _engine_of(trial) == engine for trial in result.trials)
    made = hisearch("export", result.run_dir, "--engine", engine, "--out", tmp_path / "out")
    assert made.code == 0
    assert os.access(tmp_path / "out" / engine / "run.sh", os.X_OK)
    assert result.recommendation is not None
    best = result.recommendation.trial
    # What is not the recommendation says so, and what that is.
    assert (f"the run recommends trial {best.number}, " in made.err) == (_engine_of(best) != engine)
    assert ("chosen by the rule cheapest, of " in made.err) == (_engine_of(best) != engine)


def test_what_is_exported_replays_as_its_trial(
    hisearch: Hisearch, workdir: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    (workdir / "mine.yaml").write_bytes((shipped_root() / "profiles/models/llama-3.1-8b.yaml").read_bytes())
    card = (shipped_root() / "profiles/accelerators/l40s.yaml").read_text()
    (workdir / "profiles/accelerators").mkdir(parents=True)
    (workdir / "profiles/accelerators/our-card.yaml").write_text(
        card.replace("name: l40s", "name: our-card").replace("usd_per_hour: ", "usd_per_hour: 3")
    )
    settings = ("spec.model=mine.yaml", "spec.space.execution.accelerators=[our-card]", "spec.seed=5")
    chosen = [word for setting in (*settings, "spec.workload.load=1.5") for word in ("--set", setting)]
    recommendation = hisearch("run", "small.yaml", *chosen, "--out", "r", "-q", "--json").json["recommendation"]
    assert recommendation is not None
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "out"
    shutil.copytree(workdir / "r" / "recommended", elsewhere)
    shutil.rmtree(workdir / "profiles")
    monkeypatch.chdir(elsewhere)
    readme = (elsewhere / "README.md").read_text()
    assert readme.startswith("# Recommended deployment\n")
    command = next(line for line in readme.splitlines() if line.startswith("hisearch simulate "))
    replayed = hisearch(*shlex.split(command)[1:], "--json", "-q").json
    assert replayed["metrics"]["ttft_p99_s"] == recommendation["metrics"]["ttft_p99_s"]
    assert replayed["metrics"]["usd_per_hour"] == recommendation["metrics"]["usd_per_hour"] > 3
    assert replayed["slo"]["terms"] == recommendation["slo"]


def test_export_of_a_trial_that_misses_the_slo_says_so(hisearch: Hisearch, result: StudyResult, tmp_path: Path) -> None:
    missed = next(t for t in result.trials if t.comparable and not t.feasible)
    out = tmp_path / "out"
    ran = hisearch("export", result.run_dir, "--trial", missed.number, "--out", out)
    assert ran.code == 0
    assert f"Trial {missed.number}, which does NOT meet the SLO" in ran.err
    readme = (out / "README.md").read_text()
    assert readme.startswith(f"# Trial {missed.number}, which does NOT meet the SLO\n")
    assert "Recommended" not in readme
    failing = [check.label for check in missed.slo if not check.holds]
    assert failing
    for label in failing:
        term = quantity(label).label
        assert any(line.startswith(f"| {term} | ") and "**missed**" in line for line in readme.splitlines())
    assert "does NOT meet the SLO" in (out / missed.deployment.pool.engine.name / "run.sh").read_text()
    assert f"name: trial-{missed.number}" in (out / "deployment.yaml").read_text()
    data = hisearch("export", result.run_dir, "--trial", missed.number, "--out", out, "--json")
    assert (data.code, data.err) == (0, "")
    assert (data.json["trial"], data.json["feasible"]) == (missed.number, False)
    assert [term["label"] for term in data.json["slo"] if not term["holds"]] == failing
    assert data.json["files"][0] == str(out / "README.md")


def test_a_second_engine_in_the_same_folder_replaces_the_first(
    hisearch: Hisearch, result: StudyResult, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    for engine, other in (("vllm", "sglang"), ("sglang", "vllm")):
        assert hisearch("export", result.run_dir, "--engine", engine, "--out", out).code == 0
        scripts = {str(path.relative_to(out)) for path in out.rglob("run.sh")}
        assert scripts == {f"{engine}/run.sh", f"alternatives/{other}/run.sh"}
    (out / "sglang" / "run.sh").write_text("mine")
    refused = hisearch("export", result.run_dir, "--engine", "vllm", "--out", out)
    assert refused.code == 1
    assert "out holds sglang/run.sh, not as an export wrote it" in refused.err
    assert (out / "sglang" / "run.sh").read_text() == "mine"


def test_export_of_a_trial_that_is_not_there(hisearch: Hisearch, result: StudyResult, tmp_path: Path) -> None:
    ran = hisearch("export", result.run_dir, "--trial", len(result.trials), "--out", tmp_path / "out")
    assert ran.code == 1
    assert "no trial" in ran.err
    assert not (tmp_path / "out").exists()
    assert hisearch("export", result.run_dir, "--engine", "tgi").code == 2


@pytest.mark.parametrize("verb", ["report", "export", "dashboard"])
def test_a_folder_without_a_run_is_refused(hisearch: Hisearch, workdir: Path, verb: str) -> None:
    ran = hisearch(verb, workdir)
    assert ran.code == 1
    assert "not a run folder" in ran.err


def test_a_run_that_has_not_ended_says_how_to_go_on(hisearch: Hisearch, result: StudyResult, tmp_path: Path) -> None:
    for name in ("study.yaml", "journal.jsonl"):
        (tmp_path / name).write_bytes((result.run_dir / name).read_bytes())
    ran = hisearch("export", tmp_path)
    assert ran.code == 1
    assert f"hisearch run --resume {tmp_path}" in ran.err
