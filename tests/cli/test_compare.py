from pathlib import Path

import pytest

from hisearch.api.compare import mean_times
from hisearch.api.deployments.deployment import simulate_deployment
from tests.cli.conftest import Hisearch
from tests.cli.documents import DEPLOYMENT

pytestmark = pytest.mark.usefixtures("workdir")

#: Keys of ``--json``, as docs/json.md lists them.
KEYS = {
    "kind", "a", "b", "workload", "same_workload", "seeds", "confidence", "question", "changes", "figures", "times",
    "parts", "drivers", "fronts", "notes", "models", "draws",
}  # fmt: skip


def tiered(workdir: Path) -> Path:
    path = workdir / "tiered.yaml"
    text = DEPLOYMENT.replace("replicas: 2", "replicas: 1")
    assert text != DEPLOYMENT
    path.write_text(text)
    return path


def test_a_deployment_against_itself_is_the_same(hisearch: Hisearch) -> None:
    ran = hisearch("compare", "pair.yaml", "pair.yaml", "--trace", "visits.yaml", "--seeds", "2", "--json", "-q")
    assert ran.code == 0
    assert set(ran.json) == KEYS
    assert ran.json["changes"] == []
    assert {figure["better"] for figure in ran.json["figures"]} == {"same"}
    assert all(part["difference_s"] == 0 for part in ran.json["parts"])
    assert ran.json["seeds"] == [0, 1]


def test_two_deployments_and_why_they_differ(hisearch: Hisearch, workdir: Path) -> None:
    other = tiered(workdir)
    ran = hisearch(
        "compare", "pair.yaml", other, "--trace", "visits.yaml", "--slo", "interactive-chat", "--seeds", "3",
        "--html", "page.html", "--json", "-q",
    )  # fmt: skip
    assert ran.code == 0
    data = ran.json
    assert {"key": "pools.0.replicas", "a": "2", "b": "1"} in data["changes"]
    figures = {figure["name"]: figure for figure in data["figures"]}
    assert set(figures["e2e_mean_s"]) == {"name", "a", "b", "difference", "relative", "low", "high", "better"}
    assert figures["usd_per_hour"]["relative"] == pytest.approx(-0.5)
    assert figures["usd_per_hour"]["better"] == "B"
    assert figures["e2e_mean_s"]["low"] <= figures["e2e_mean_s"]["difference"] <= figures["e2e_mean_s"]["high"]
    assert {part["name"] for part in data["parts"]} == {
        "queueing",
        "front_end",
        "misses",
        "prefill",
        "decode",
        "transfers",
    }
    assert data["a"]["feasible"] in (True, False)
    means = [
        simulate_deployment(path, "visits.yaml", seed=0).metrics["e2e_mean_s"] for path in ("pair.yaml", str(other))
    ]
    assert sum(part["difference_s"] for part in data["parts"]) == pytest.approx(means[1] - means[0], abs=1e-9)
    assert sum(row["a_s"] for row in data["times"]) == pytest.approx(means[0])
    assert sum(row["b_s"] for row in data["times"]) == pytest.approx(means[1])
    assert "Why it differs" in Path("page.html").read_text(encoding="utf-8")


def test_mean_times_add_up_to_the_mean_of_a_request(workdir: Path) -> None:
    simulated = simulate_deployment("pair.yaml", "visits.yaml", log=True)
    assert mean_times(simulated.result).total_s == pytest.approx(simulated.metrics["e2e_mean_s"])


def test_text_for_people(hisearch: Hisearch, workdir: Path) -> None:
    ran = hisearch("compare", "pair.yaml", tiered(workdir), "--trace", "visits.yaml", "--seeds", "2")
    assert ran.code == 0
    assert "\nfront end " in ran.out
    for heading in ("What changed", "What came of it", "Where the mean time of a request goes", "Why it differs"):
        assert f"\n{heading}\n" in ran.out


def test_a_recorded_trace_is_drawn_anew(hisearch: Hisearch, workdir: Path) -> None:
    """Figures are of the trace as it is, and intervals have a width: of other days, not of the seeds alone."""
    assert hisearch("trace", "generate", "visits.yaml", "--out", "day.jsonl").code == 0
    ran = hisearch("compare", "pair.yaml", tiered(workdir), "--trace", "day.jsonl", "--seeds", "3", "--json", "-q")
    assert ran.code == 0, ran.err
    assert ran.json["draws"] == 2
    figures = {figure["name"]: figure for figure in ran.json["figures"]}
    assert figures["ttft_mean_s"]["low"] < figures["ttft_mean_s"]["difference"] < figures["ttft_mean_s"]["high"]
    assert figures["usd_per_hour"]["low"] is None
    for side, path in (("a", "pair.yaml"), ("b", "tiered.yaml")):
        alone = simulate_deployment(path, "day.jsonl", seed=0)
        assert figures["ttft_mean_s"][side] == pytest.approx(alone.metrics["ttft_mean_s"])
    text = hisearch("compare", "pair.yaml", "pair.yaml", "--trace", "day.jsonl", "--seeds", "2").out
    assert "by 1 draw of its sessions" in text
    once = hisearch("compare", "pair.yaml", "pair.yaml", "--trace", "day.jsonl", "--seeds", "1")
    assert "One seed: differences have no interval." in once.out


def test_what_cannot_be_drawn_has_no_interval(hisearch: Hisearch, workdir: Path) -> None:
    """One user in a closed loop is one session: nothing tells how another day would differ."""
    rows = [f'{{"arrival_s": {at}, "input_tokens": 900, "output_tokens": 20, "session": "a"}}' for at in range(4)]
    (workdir / "one.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
    ran = hisearch("compare", "pair.yaml", tiered(workdir), "--trace", "one.jsonl", "--seeds", "2", "--json", "-q")
    assert ran.code == 0, ran.err
    assert ran.json["draws"] == 0
    assert all(figure["low"] is None for figure in ran.json["figures"])
    assert any("no figure has an interval" in note for note in ran.json["notes"])


@pytest.mark.slow
def test_two_runs(hisearch: Hisearch) -> None:
    for name, simulations in (("one", 12), ("two", 20)):
        setting = f"spec.budget.simulations={simulations}"
        assert hisearch("run", "small.yaml", "--set", setting, "--out", name, "-q").code == 0
    ran = hisearch("compare", "one", "two", "--json", "-q")
    assert ran.code == 0
    assert set(ran.json) == KEYS
    assert ran.json["question"] == [{"key": "budget.simulations", "a": "12", "b": "20"}]
    assert ran.json["same_workload"] is True
    assert set(ran.json["fronts"]) == {"a", "b", "a_beaten", "b_beaten"}
    assert ran.json["fronts"]["b_beaten"] == 0


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("pair.yaml", "pair.yaml"), "--trace"),
        (("pair.yaml", "."), "is a folder"),
        (("pair.yaml", "pair.yaml", "--trace", "visits.yaml", "--load", "-1"), "--load"),
        ((".", ".", "--trace", "visits.yaml"), "runs bring their own workload"),
    ],
)
def test_usage(hisearch: Hisearch, arguments: tuple[str, ...], complaint: str) -> None:
    ran = hisearch("compare", *arguments)
    assert ran.code == 2
    assert complaint in ran.err


def test_what_is_no_run_or_no_deployment(hisearch: Hisearch) -> None:
    assert hisearch("compare", ".", ".").code == 1
    for pair in ((".", "no/such"), ("no/such", ".")):
        ran = hisearch("compare", *pair)
        assert (ran.code, "no/such: no such run folder" in ran.err) == (1, True)
    ran = hisearch("compare", "pair.yaml", "none.yaml", "--trace", "visits.yaml")
    assert ran.code == 1
    assert "none.yaml" in ran.err


def test_unlike_profiles_are_noted(hisearch: Hisearch, workdir: Path) -> None:
    (workdir / "roof.yaml").write_text(DEPLOYMENT + "  profile: roofline\n")
    ran = hisearch("compare", "pair.yaml", "roof.yaml", "--trace", "visits.yaml", "--seeds", "1", "--json", "-q")
    assert ran.code == 0
    assert "come from different profiles" in ran.json["notes"][0]


def test_workers_that_come_and_go_are_priced_as_simulate_prices_them(hisearch: Hisearch, workdir: Path) -> None:
    """One of two pools grows: dollars, joules and mean times of requests are those of ``simulate``."""
    text = DEPLOYMENT.replace("replicas: 2", "name: steady\n      replicas: 1")
    grows = (
        "    - name: burst\n      accelerator: l40s\n      replicas: 1\n      engine: {name: vllm}\n"
        "      autoscale: {target: 1, max_replicas: 4, startup_s: 0.5, period_s: 0.5, calm_s: 1}\n  router:"
    )
    (workdir / "grows.yaml").write_text(text.replace("  router:", grows), encoding="utf-8")
    ran = hisearch("compare", "pair.yaml", "grows.yaml", "--trace", "visits.yaml", "--seeds", "1", "--json", "-q")
    assert ran.code == 0, ran.err
    alone = simulate_deployment("grows.yaml", "visits.yaml", seed=0)
    mean = sum(alone.result.mean_workers)
    assert mean > 2.1
    figures = {figure["name"]: figure["b"] for figure in ran.json["figures"]}
    assert figures["usd_per_hour"] == pytest.approx(alone.cost.total)
    assert figures["joules_per_token"] == pytest.approx(alone.metrics["joules_per_token"])
    assert sum(row["b_s"] for row in ran.json["times"]) == pytest.approx(alone.metrics["e2e_mean_s"])


def test_figures_of_a_growing_pool_are_of_the_workers_that_are_there(workdir: Path) -> None:
    text = DEPLOYMENT.replace(
        "replicas: 2", "replicas: 1\n      autoscale: {target: 1, max_replicas: 6, startup_s: 0.5, period_s: 0.5}"
    )
    (workdir / "grows.yaml").write_text(text, encoding="utf-8")
    alone = simulate_deployment("grows.yaml", "visits.yaml", seed=0)
    data, result = alone.to_dict(), alone.result
    (mean,) = result.mean_workers
    assert 1.0 < mean < 6.0
    assert result.present_s.sum() == pytest.approx(mean * result.makespan_s)
    (pool,) = data["pools"]
    assert data["metrics"]["utilisation"] == pytest.approx(pool["utilisation"])
    assert max(row["utilisation"] for row in data["workers"]) <= 1.0 + 1e-9
    assert data["cost"]["accelerators"] == pytest.approx(mean)
    idle_w = result.pools[0].idle_w
    assert data["energy"]["idle_j"] == pytest.approx(idle_w * mean * result.makespan_s)
    assert data["energy"]["host_j"] == pytest.approx(result.pools[0].power.host_w * mean * result.makespan_s)
    assert pool["mean_w"] == pytest.approx(sum(row["mean_w"] for row in data["workers"]))
    accelerators_j = data["energy"]["idle_j"] + data["energy"]["active_j"]
    assert pool["mean_w"] * result.makespan_s == pytest.approx(accelerators_j)
