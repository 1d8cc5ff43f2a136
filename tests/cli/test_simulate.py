"""``hisearch simulate`` and ``hisearch.simulate_deployment``."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import hisearch as package
from hisearch.specs.resolve import load_deployment
from tests.cli.conftest import Hisearch


def test_a_table_for_people(hisearch: Hisearch, here: Path) -> None:
    ran = hisearch("simulate", "pair.yaml", "--trace", "visits.yaml", "--slo", "interactive-chat")
    assert ran.code == 0
    for expected in ("TTFT", "TPOT", "E2E", "p99", "goodput", "prefix cache hits", "per hour", "watts", "120 finished"):
        assert expected in ran.out


def test_json_is_the_librarys_result(hisearch: Hisearch, here: Path) -> None:
    arguments = ("--trace", "visits.yaml", "--slo", "interactive-chat", "--json", "--seed", 3, "--load", 2)
    data = hisearch("simulate", "pair.yaml", *arguments).json
    simulated = package.simulate_deployment(
        here / "pair.yaml", here / "visits.yaml", slo="interactive-chat", seed=3, load=2.0
    )
    assert data["metrics"] == simulated.metrics
    assert data["trace"]["digest"] == simulated.trace.digest
    assert data["requests"] == {"in_flight": 0, "finished": 120, "too_large": 0, "unreached": 0}
    assert data["slo"]["feasible"] is simulated.feasible is True
    assert data["horizon_s"] is None
    assert data["cost"]["usd_per_hour"] == simulated.metrics["usd_per_hour"]
    workers = data["workers"]
    assert [worker["worker"] for worker in workers] == [0, 1]
    assert sum(worker["requests"] for worker in workers) == 120
    requests = simulated.result.requests
    assert sum(worker["hit_tokens"] for worker in workers) == int(requests.hit_tokens.sum()) > 0
    assert sum(worker["prefill_tokens"] + worker["hit_tokens"] for worker in workers) == int(
        requests.input_tokens.sum()
    )
    mean = np.mean([worker["utilisation"] for worker in workers])
    assert mean == pytest.approx(simulated.metrics["utilisation"])
    assert all(worker["mean_w"] > simulated.result.idle_w for worker in workers)


def test_without_an_slo_nothing_is_said_of_goodput(hisearch: Hisearch, here: Path) -> None:
    data = hisearch("simulate", "pair.yaml", "--trace", "visits.yaml", "--json").json
    assert data["slo"] is None
    assert "goodput_rps" not in data["metrics"]
    assert data["metrics"]["throughput_rps"] > 0
    assert package.simulate_deployment("pair.yaml", "visits.yaml").feasible is None


def test_a_horizon_leaves_requests_in_flight(hisearch: Hisearch, here: Path) -> None:
    data = hisearch("simulate", "pair.yaml", "--trace", "visits.yaml", "--json", "--horizon-s", 2).json
    assert data["horizon_reached"] is True
    assert data["requests"]["unreached"] > 0
    assert sum(data["requests"].values()) == 120


def test_settings_and_limits(hisearch: Hisearch, here: Path) -> None:
    setting = "spec.pools.0.replicas=3"
    arguments = ("--trace", "visits.yaml", "--set", setting, "--limit", 50, "--json")
    data = hisearch("simulate", "pair.yaml", *arguments).json
    assert len(data["workers"]) == 3
    assert data["trace"]["requests"] == 50


@pytest.mark.parametrize("name", ["requests.parquet", "requests.csv", "requests.csv.gz"])
def test_a_row_per_request(hisearch: Hisearch, here: Path, name: str) -> None:
    assert hisearch("simulate", "pair.yaml", "--trace", "visits.yaml", "--requests", name, "-q").code == 0
    frame = pd.read_parquet(name) if name.endswith("parquet") else pd.read_csv(name)
    assert len(frame) == 120
    assert (frame["outcome"] == "finished").all()
    np.testing.assert_allclose(frame["ttft_s"], frame["first_token_s"] - frame["arrival_s"])
    assert sorted(path.name for path in here.iterdir()) == ["pair.yaml", name, "small.yaml", "visits.yaml"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--set", "spec.model=deepseek-v3"), "GiB short on each rank"),
        (("--set", "spec.pools.0.tensor_parallel=3"), "tensor_parallel"),
        (("--set", "spec.pools.0.replicas=0"), "must be at least 1"),
        (("--set", "spec.model=lama"), "no Model named 'lama'"),
        (("--load", "0"), "load must be a positive number"),
        (("--trace", "nowhere.jsonl"), "no file at nowhere.jsonl"),
        (("--trace", "vists"), "no Workload named 'vists'"),
        (("--format", "azure"), "which says its own"),
        (("--slo", "chat"), "no SLO named 'chat'"),
    ],
)
def test_what_cannot_be_simulated_is_an_error(
    hisearch: Hisearch, here: Path, arguments: tuple[str, ...], expected: str
) -> None:
    ran = hisearch("simulate", "pair.yaml", "--trace", "visits.yaml", *arguments)
    assert (ran.code, ran.out) == (1, "")
    assert expected in ran.err


def test_a_table_of_unknown_form_is_a_usage_error(hisearch: Hisearch, here: Path) -> None:
    assert hisearch("simulate", "pair.yaml", "--trace", "visits.yaml", "--requests", "r.txt").code == 2


def test_overrides_are_for_documents(here: Path) -> None:
    resolved = load_deployment(here / "pair.yaml")
    with pytest.raises(ValueError, match="resolved already"):
        package.simulate_deployment(resolved, "visits.yaml", overrides=["spec.pools.0.replicas=1"])
