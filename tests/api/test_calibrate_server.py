"""A server's profile from its step log: with the time that its steps lost, as they will lose it again."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from hisearch.api.deployments.deployment import simulate_deployment
from hisearch.api.drive import calibrate_server, client_of
from hisearch.api.observe import DEPLOYMENT, OBSERVATION, STEPS
from hisearch.calibrate.served.front_end import ClientSample
from hisearch.calibrate.step_log import read_step_logs
from tests.calibrate.step_logs import drawn_steps, timed, write_jsonl
from tests.calibrate.test_steps import SCALED

_DEPLOYMENT = """\
apiVersion: hisearch/v1
kind: Deployment
metadata: {name: observed}
spec:
  model: llama-3.1-8b
  profile: roofline
  pools: [{accelerator: h100-sxm, engine: {name: vllm, version: 0.19.1}}]
"""


def observed(folder: Path, slower: float) -> Path:
    """An observation of which four steps in ten without prompts take ``slower`` longer."""
    steps = drawn_steps(600)
    pauses = np.where(np.arange(len(steps)) % 3 == 1, 1.0 + slower, 1.0)
    write_jsonl(folder / STEPS, steps, timed(SCALED, steps) * pauses)
    (folder / DEPLOYMENT).write_text(_DEPLOYMENT)
    return folder


def test_pauses_stay_beside_the_law(tmp_path: Path) -> None:
    server = calibrate_server(observed(tmp_path, 0.6))
    (law,) = server.calibrated.profile.regressions
    assert server.facts()["beyond the law"].startswith(f"{law.excess.share:+.1%} of each step")
    assert law.excess.share == pytest.approx(0.4 * 0.6, abs=0.02)


def _observation(folder: Path, requests: int) -> Path:
    """A folder of ``observed`` that says so many requests had a mean TTFT of 45 ms."""
    observed(folder, 0.0)
    figures = {"ttft_mean_s": 0.045, "tpot_mean_s": 0.01}
    counters = {"requests": requests, "prompt_tokens": 100}
    data = {"version": 1, "complete": True, "window_s": 60.0, "figures": figures, "counters": counters}
    (folder / OBSERVATION).write_text(json.dumps({"format": "hisearch-observation", **data}))
    return folder


def _benchmark(folder: Path) -> Path:
    """Results of ``vllm bench serve``: 60 requests, a mean TTFT of 50 ms."""
    path = folder / "bench.json"
    figures = {"mean_ttft_ms": 50.0, "mean_tpot_ms": 10.0, "mean_e2el_ms": 500.0}
    counts = {"num_prompts": 60, "completed": 60, "total_input_tokens": 6000, "total_output_tokens": 3000}
    about = {"endpoint_type": "openai", "tokenizer_id": "m", "duration": 60.0, "request_rate": 1.0}
    path.write_text(json.dumps(about | {"request_throughput": 1.0, "output_throughput": 50.0} | figures | counts))
    return path


def test_a_benchmark_s_client_is_held_against_the_server_s_own_ttft(tmp_path: Path) -> None:
    log = read_step_logs([observed(tmp_path, 0.0) / STEPS])
    sample = client_of(_observation(tmp_path, 61), _benchmark(tmp_path), log)
    assert sample[:3] == (60, 0.05, 0.045)
    chunks = [step for step, decode in zip(log.step.tolist(), log.decode.tolist(), strict=True) if not decode]
    decodes = [np.count_nonzero(log.decode[log.step == step]) for step in chunks]
    assert sample.concurrent == pytest.approx(np.mean(decodes))
    with pytest.raises(ValueError, match="name a server with drive"):
        calibrate_server(tmp_path, benchmark=tmp_path / "bench.json")


def test_a_benchmark_needs_the_server_for_itself_and_its_steps(tmp_path: Path) -> None:
    log = read_step_logs([observed(tmp_path, 0.0) / STEPS])
    with pytest.raises(ValueError, match=r"ended 90 requests while it was observed, .*bench.json has 60: observe from"):
        client_of(_observation(tmp_path, 90), _benchmark(tmp_path), log)
    with pytest.raises(ValueError, match=r"no steps.jsonl: they tell how many others wrote"):
        client_of(tmp_path, _benchmark(tmp_path), None)


def test_a_client_needs_the_one_that_it_is_held_against(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="name a server with drive"):
        calibrate_server(observed(tmp_path, 0.0), clients=[ClientSample(60, 0.05, 0.045, 2.0)])


def test_what_it_did_for_the_probability_of_an_slo(tmp_path: Path) -> None:
    """Steps of one and a half times the law's length: a bound between both holds before, and does not any more."""
    folder = observed(tmp_path, 0.0)
    write_jsonl(folder / STEPS, drawn_steps(600), 1.5 * timed(SCALED, drawn_steps(600)))
    deployment = folder / DEPLOYMENT
    deployment.write_text(deployment.read_text().replace("profile: roofline", "profile: vllm-h100-sxm"))
    with pytest.raises(FileNotFoundError, match=r"expected trace.jsonl or workload.yaml"):
        calibrate_server(folder, slo="tpot p95 < 1s")
    (folder / "workload.yaml").write_text(
        "apiVersion: hisearch/v1\nkind: Workload\nmetadata: {name: w}\nspec:\n  generator:\n    requests: 80\n"
        "    arrivals: {process: poisson, rate_rps: 4}\n"
        "    first_input: {distribution: constant, scale_tokens: 500}\n"
        "    output: {distribution: constant, scale_tokens: 60}\n"
    )
    plain = simulate_deployment(deployment, folder / "workload.yaml").metrics["tpot_p95_s"]
    server = calibrate_server(folder, slo=f"tpot p95 < {1.25 * plain:.6f}s")
    assert server.chances is not None
    assert server.chances.before > 0.8
    assert server.chances.now < 0.1
    assert server.facts()["the SLO holds"].startswith(f"with {100 * server.chances.now:.0f} % on the observed load")
    assert calibrate_server(folder, slo="tpot p95 < 1s").chances == (1.0, 1.0)
