"""From an observation to advice, and whether a later observation still agrees."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hisearch.api.advise import advise
from hisearch.api.observe import observe_servers
from hisearch.api.verify import verify_deployment
from tests.cli.conftest import Hisearch, hisearch
from tests.observe.mock_server import recorded, served, vllm

__all__ = ["hisearch"]

METRICS = [recorded(f"vllm-0.32.0-{name}.txt") for name in ("before", "before", "after")]
SHORT = ("spec.budget.simulations=12", "spec.confidence.draws=0", "spec.workload.limit=300", "spec.budget.seconds=3600")


@pytest.fixture
def observed(tmp_path: Path) -> Path:
    """A folder of an observation: a tenth of the recorded rate, as the recorded window is short here."""
    with served(vllm(*METRICS)) as server:
        seen = observe_servers([server.url], seconds=0.4, interval_s=0.2, model="llama-3.1-8b", accelerator="h100-sxm")
    seen.write(tmp_path / "observed")
    workload = tmp_path / "observed/workload.yaml"
    rate = f"rate_rps: {seen.generator['arrivals']['rate_rps']}"  # type: ignore[index]
    assert rate in workload.read_text()
    workload.write_text(workload.read_text().replace(rate, "rate_rps: 5.0"))
    return tmp_path / "observed"


def test_settings_that_cost_something_are_advised_against(observed: Path, tmp_path: Path) -> None:
    advice = advise(observed, "ttft p95 < 1s, tpot p95 < 50ms", overrides=SHORT, workers=1, run_dir=tmp_path / "run")
    assert advice.recommended is not None
    assert advice.changes is not None
    changed = {change.flag: change for change in advice.changes}
    # The recorded server schedules synchronously, which no study does.
    assert changed["--async-scheduling"] == ("--async-scheduling", "off", "")
    assert not {"--block-size", "--num-gpu-blocks-override", "--max-model-len"} & set(changed)
    # One accelerator is the least there is.
    assert advice.current.cost.total == pytest.approx(advice.to_dict()["recommended"]["usd_per_hour"])
    assert "--async-scheduling" in advice.facts()["flags"]


def test_an_observation_without_load_is_refused(observed: Path) -> None:
    (observed / "workload.yaml").unlink()
    with pytest.raises(FileNotFoundError, match=r"expected trace\.jsonl or workload\.yaml"):
        advise(observed, "ttft p95 < 1s")


def test_an_observation_is_a_measurement(observed: Path) -> None:
    trace = observed / "workload.yaml"
    verification = verify_deployment(observed / "deployment.yaml", [observed / "observation.json"], trace=trace)
    (compared,) = verification.measurements
    assert (compared.tool, compared.requests, compared.failed) == ("hisearch observe", 30, 0)
    figures = json.loads((observed / "observation.json").read_text())["figures"]
    assert {row.figure: row.measured for row in compared.rows}["ttft_mean_s"] == figures["ttft_mean_s"]
    # A core of a CPU is no H100.
    assert not verification.agrees


def test_the_command_prints_and_writes(hisearch: Hisearch, tmp_path: Path) -> None:
    with served(vllm(*METRICS)) as server:
        ran = hisearch(
            "observe", server.url, "--seconds", "1", "--interval", "0.3", "--model", "llama-3.1-8b", "--accelerator",
            "h100-sxm", "-o", str(tmp_path / "seen"),
        )  # fmt: skip
        again = hisearch("observe", server.url, "-o", str(tmp_path / "seen"))
    assert ran.code == 0, ran.err
    assert "requests/s ended" in ran.out
    assert "watching, seconds" in ran.err
    assert (tmp_path / "seen/workload.yaml").is_file()
    assert again.code == 1
    assert "not overwritten" in again.err
