"""``hisearch run`` of several models: each is searched alone, all together are simulated once."""

import json
import re
from pathlib import Path

import pandas as pd
import pytest
import yaml

from hisearch.api.deployments.deployment import simulate_deployment
from hisearch.api.fleet_study import load_fleet_study
from hisearch.score.quantities import usd
from tests.cli.conftest import Hisearch

pytestmark = pytest.mark.slow

STUDY = """\
apiVersion: hisearch/v1
kind: FleetStudy
metadata: {name: both}
spec:
  models:
    large: {model: qwen3-32b, asked_as: [big]}
    llama-3.1-8b: {}
  workload: {trace: both.jsonl}
  slo:
    terms: [{metric: ttft_s, percentile: 99, at_most_s: 4.0}]
    models:
      meta-llama/Llama-3.1-8B-Instruct: {terms: [{metric: e2e_s, percentile: 95, at_most_s: 30.0}]}
  space:
    execution:
      accelerators: [h100-sxm, h200]
      engines: [vllm]
      tensor_parallel: [1, 2]
      chunk_tokens: [2048]
      max_running_requests: [128]
      max_replicas: 4
    routing: {policies: [round_robin, least_outstanding_tokens]}
    cache: {tiers: []}
  objectives: [ttft_p99, usd_per_hour]
  budget: {simulations: 24, seconds: 300}
  confidence: {draws: 0, what_if: 0}
"""
SLO_TERMS = {"terms": [{"metric": "ttft_s", "percentile": 99, "at_most_s": 1.0}]}
QWEN = {"model": "qwen3-32b"}
QUIET = ("-q", "--json")


@pytest.fixture
def both(hisearch: Hisearch, workdir: Path) -> Path:
    """A study of two models, and a trace of both."""
    for file, model, seed in (("a.jsonl", "big", 1), ("b.jsonl", "meta-llama/Llama-3.1-8B-Instruct", 2)):
        made = hisearch("trace", "generate", "visits.yaml", "-o", file, "--model", model, "--seed", seed)
        assert made.code == 0, made.err
    assert hisearch("trace", "merge", "a.jsonl", "b.jsonl", "-o", "both.jsonl").code == 0
    path = workdir / "both.yaml"
    path.write_text(STUDY)
    return path


def test_the_whole_is_what_each_models_study_says(hisearch: Hisearch, both: Path) -> None:
    ran = hisearch("run", both, "--out", "out", *QUIET)
    assert ran.code == 0, ran.err
    data = ran.json
    chosen = data["recommendation"]
    assert [entry["model"] for entry in data["models"]] == ["large", "llama-3.1-8b"]
    assert data["missed"] == []
    prices = []
    for entry, share in zip(chosen["models"], chosen["simulated"]["models"], strict=True):
        folder = Path("out/models") / entry["model"]
        trials = pd.read_parquet(folder / "trials.parquet").set_index("number")
        alone = trials.loc[entry["trial"]]
        assert (folder / "report.html").exists()
        for name in ("ttft_mean_s", "ttft_p99_s", "tpot_p99_s", "e2e_p99_s", "hit_rate", "attainment", "usd_per_hour"):
            assert share["metrics"][name] == pytest.approx(alone[name], rel=1e-12), name
        prices.append(share["usd_per_hour"])
    assert chosen["simulated"]["feasible"]
    assert chosen["figures"]["usd_per_hour"] == pytest.approx(sum(prices))
    terms = [[term["label"] for term in share["slo"]["terms"]] for share in chosen["simulated"]["models"]]
    assert terms == [["ttft_p99", "rejected_fraction"], ["e2e_p95", "rejected_fraction"]]
    assert json.loads(Path("out/fleet.json").read_text()) == data
    page = Path("out/report.html").read_text()
    assert usd(chosen["figures"]["usd_per_hour"]) in page
    for entry in data["models"]:
        assert f'href="{entry["run_dir"]}/report.html"' in page
    front = pd.read_csv("out/front.csv")
    assert len(front) == len(data["front"])
    assert front["usd_per_hour"].min() == pytest.approx(chosen["figures"]["usd_per_hour"])


def test_the_recommended_deployment_stands_alone(hisearch: Hisearch, both: Path) -> None:
    data = hisearch("run", both, "--out", "out", *QUIET).json
    again = simulate_deployment(Path("out/recommended/deployment.yaml"), "both.jsonl")
    expected = data["recommendation"]["simulated"]["models"]
    assert [share.model for share in again.models] == [share["model"] for share in expected]
    for share, reference in zip(again.models, expected, strict=True):
        assert share.score.metrics["e2e_mean_s"] == pytest.approx(reference["metrics"]["e2e_mean_s"], rel=1e-12)
    assert list(Path("out/recommended/large").glob("**/run.sh"))


def test_models_have_hosts_of_their_own(hisearch: Hisearch, both: Path) -> None:
    assert hisearch("run", both, "--out", "out", *QUIET).code == 0
    folder = Path("out/recommended")
    # At most eight accelerators a model: a host each.
    assert "1) echo" not in (folder / "large/vllm/run.sh").read_text()
    script = (folder / "llama-3.1-8b/vllm/run.sh").read_text()
    assert "    1) echo 0" in script
    assert "known: 1" in script
    readme = (folder / "README.md").read_text()
    assert re.search(r"^\| \[`large/`\]\(large/README.md\) \| .* \| 0 \|$", readme, re.MULTILINE)
    assert re.search(r"^\| \[`llama-3.1-8b/`\]\(llama-3.1-8b/README.md\) \| .* \| 1 \|$", readme, re.MULTILINE)


def test_a_models_part_simulates_again_on_its_share_of_the_trace(hisearch: Hisearch, both: Path) -> None:
    """As the export's README says."""
    data = hisearch("run", both, "--out", "out", *QUIET).json
    names = [word for name in ("large", "big") for word in ("--model", name)]
    again = hisearch("simulate", "out/recommended/large/deployment.yaml", "--trace", "both.jsonl", *names, *QUIET)
    assert again.code == 0, again.err
    expected = data["recommendation"]["simulated"]["models"][0]["metrics"]
    assert again.json["metrics"]["e2e_mean_s"] == pytest.approx(expected["e2e_mean_s"], rel=1e-12)
    assert "--model large --model big" in (Path("out/recommended/large") / "README.md").read_text()


def test_a_run_goes_on_where_it_was(hisearch: Hisearch, both: Path) -> None:
    first = hisearch("run", both, "--out", "out", *QUIET).json
    again = hisearch("run", "--resume", "out", *QUIET)
    assert again.code == 0, again.err
    assert again.json == first


def test_a_limit_on_the_whole_couples_the_models(hisearch: Hisearch, both: Path) -> None:
    """Two accelerators cannot be had for less than two accelerators."""
    ran = hisearch("run", both, "--out", "out", "--set", "spec.limits={accelerators: {at_most: 1}}", *QUIET)
    assert ran.code == 99
    assert ran.json["missed"] == []
    assert ran.json["front"] == []
    assert ran.json["recommendation"] is None
    assert "those of all together exceed the limits on accelerators" in Path("out/report.html").read_text()
    ran = hisearch("run", both, "--out", "out2", "--set", "spec.limits={accelerators: {at_most: 4}}", *QUIET)
    assert ran.code == 0
    assert all(point["accelerators"] <= 4 for point in ran.json["front"])
    assert ran.json["recommendation"]["figures"]["accelerators"] <= 4


@pytest.mark.parametrize(
    ("change", "key", "message"),
    [
        ({"objectives": ["ttft_p99", "goodput"]}, "spec.objectives", "needs usd_per_hour"),
        ({"slo": {**SLO_TERMS, "models": {"gpt": SLO_TERMS}}}, "spec.slo.models.gpt", "none of the study's"),
        ({"models": {"a": QWEN, "b": QWEN}, "slo": SLO_TERMS}, "spec.models.b", "tell them apart"),
        ({"models": {"large": {"model": "nothing"}, "llama-3.1-8b": {}}}, "spec.models.large.model", "nothing"),
        ({"space": "nowhere"}, "spec.space", "nowhere"),
        ({"limits": {"mean_w": {"at_most": 5.0}, "joules_per_token": {"at_most": 5.0}, "goodput": {"at_least": 1.0}}},
         "spec.limits", "at most 4"),
        ({"workload": None}, "spec.models.large.workload", "needed where the study has no workload"),
    ],
)  # fmt: skip
def test_what_cannot_be_searched_is_refused_by_key(
    hisearch: Hisearch, both: Path, change: dict[str, object], key: str, message: str
) -> None:
    data = yaml.safe_load(STUDY)
    data["spec"] = {name: value for name, value in (data["spec"] | change).items() if value is not None}
    both.write_text(yaml.safe_dump(data, sort_keys=False))
    ran = hisearch("run", both, "--out", "out")
    assert ran.code == 1
    assert "both.yaml:" in ran.err
    assert f" {key}: " in ran.err
    assert message in ran.err
    assert not Path("out").exists()


def test_requests_that_are_no_models_are_refused(hisearch: Hisearch, both: Path) -> None:
    """Left out they would be served by nothing, and nothing would say so."""
    both.write_text(STUDY.replace(", asked_as: [big]", "").replace("llama-3.1-8b: {}", "llama-3.1-8b: {asked_as: [x]}"))
    for file, model, seed in (("c.jsonl", "big", 1), ("d.jsonl", "qwen3-32b", 3)):
        assert hisearch("trace", "generate", "visits.yaml", "-o", file, "--model", model, "--seed", seed).code == 0
    assert hisearch("trace", "merge", "b.jsonl", "c.jsonl", "d.jsonl", "-o", "both.jsonl").code == 0
    ran = hisearch("run", both, "--out", "out", *QUIET)
    assert ran.code == 1
    assert "spec.workload.trace: requests ask for big: no model" in ran.err
    assert not Path("out/models").exists()


def test_a_model_is_asked_for_by_the_catalogues_name_too(both: Path) -> None:
    """In addition to its name in the study, both in traffic and in SLOs."""
    text = STUDY.replace("meta-llama/Llama-3.1-8B-Instruct: {terms", "qwen3-32b: {terms")
    both.write_text(text)
    resolved = load_fleet_study(both).resolved
    part = resolved.parts["large"]
    assert part.study.workload.models == ["large", "big", "qwen3-32b", "Qwen/Qwen3-32B"]
    assert [term.metric for term in part.slo.spec.terms] == ["e2e_s"]
    assert set(resolved.names_of("large")) == set(part.study.workload.models)


def test_verbs_on_runs_of_one_model_name_the_models_folders(hisearch: Hisearch, both: Path, workdir: Path) -> None:
    """Also of a run that has not ended, which is no reason to go on with it first."""
    (workdir / "out").mkdir()
    (workdir / "out" / "study.yaml").write_text(load_fleet_study(both).resolved.to_yaml())
    (workdir / "measured.json").write_text("{}")
    message = "out: a run of several models; name the run of one of them: out/models/large, out/models/llama-3.1-8b"
    for arguments in (
        ("report", "out"),
        ("export", "out"),
        ("compare", "out", "out"),
        ("dashboard", "out", "--port", "0"),
        ("verify", "out", "--measured", "measured.json"),
    ):
        ran = hisearch(*arguments)
        assert ran.code == 1, arguments
        assert ran.err.splitlines()[-1] == f"hisearch: error: {message}", arguments


def test_options_of_one_model_are_refused(hisearch: Hisearch, both: Path) -> None:
    ran = hisearch("run", both, "--recommend", "cheapest")
    assert ran.code == 2
    assert "--recommend" in ran.err
