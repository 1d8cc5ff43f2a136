"""Serving runs replayed end to end: made-up ones against the closed form, measured ones within the stated errors."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from hisearch.cli.main import app
from hisearch.latency.step_cost import step_seconds
from hisearch.specs.documents.catalogue import Catalogue, shipped_root
from hisearch.validate.e2e import estimator_of, prepare, validate_cases
from hisearch.validate.e2e_case import CaseError, read_case
from tests.latency.operator_folder import write_tables
from tests.latency.test_tables import compiled, profile
from tests.reference.recorded import shared_directory

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
    "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "vocab_size": 128256,
    "max_position_embeddings": 131072, "torch_dtype": "bfloat16",
}  # fmt: skip
META = {
    "model": "meta-llama/Llama-3.1-8B",
    "vllm_version": "0.19.0",
    "engine_kwargs": {"max_num_seqs": 64, "max_num_batched_tokens": 2048, "dtype": "bfloat16"},
}
MOE_CONFIG = {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144,
    "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8, "num_attention_heads": 32,
    "num_hidden_layers": 48, "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 151936,
    "max_position_embeddings": 262144, "torch_dtype": "bfloat16",
}  # fmt: skip
MOE_META = META | {
    "model": "Qwen/Qwen3-30B-A3B",
    "engine_kwargs": META["engine_kwargs"] | {"data_parallel_size": 2, "enable_expert_parallel": True},  # type: ignore[operator]
}
PEER = "Metric  vLLM  Sim  Diff%\nTTFT Mean   100.0   90.0   -10.0%\nTPOT Median  10.0  10.2  +2.0%\n"


def request(index: int, arrival_s: float, outputs: int = 5) -> dict[str, Any]:
    times = {"queued_s": arrival_s, "first_token_s": arrival_s + 1.0, "last_token_s": arrival_s + 1.0 + outputs - 1}
    return {"id": f"r{index}", "arrival_s": arrival_s, "input_tokens": 256, "output_tokens": outputs, "measured": times}


def write_case(folder: Path, requests: list[dict[str, Any]], meta: dict[str, Any] = META) -> Path:
    write_tables(folder / "operators")
    (folder / "model_config.json").write_text(json.dumps(CONFIG))
    (folder / "vllm_meta.json").write_text(json.dumps(meta))
    (folder / "requests.jsonl").write_text("\n".join(json.dumps(row) for row in requests))
    (folder / "peer_summary.txt").write_text(PEER)
    return folder


def write_constants(path: Path) -> Path:
    """A profile without any constant: steps take what the tables say."""
    spec = profile(path.parent / "nowhere").model_dump(mode="json", exclude_none=True)
    document = {"apiVersion": "hisearch/v1", "kind": "LatencyProfile", "metadata": {"name": "bare"}, "spec": spec}
    path.write_text(json.dumps(document))
    return path


@pytest.fixture
def constants(tmp_path: Path) -> str:
    return str(write_constants(tmp_path / "bare.yaml"))


def test_requests_alone_take_the_closed_form(tmp_path: Path, constants: str) -> None:
    folder = write_case(tmp_path / "case", [request(0, 0.0), request(1, 100.0)])
    (row,) = validate_cases([folder], constants)
    assert row.capacity == "predicted"
    costs = compiled(profile(folder / "operators"))
    first = step_seconds(costs, [(256, 0)], [])
    rest = [step_seconds(costs, [], [257 + k]) for k in range(4)]
    ttft, tpot = row.metrics["ttft_s"]["mean"], row.metrics["tpot_s"]["p99"]
    assert ttft.simulated == pytest.approx(first, rel=1e-9)
    assert tpot.simulated == pytest.approx(sum(rest) / 4, rel=1e-9)
    assert (ttft.measured, tpot.measured) == (1.0, 1.0)
    assert ttft.error == pytest.approx(first - 1.0)
    assert row.makespan_s.simulated == pytest.approx(100.0 + first + sum(rest))
    errors = [abs(figure.error) for figures in row.metrics.values() for figure in figures.values()]
    assert len(errors) == 15
    assert row.mean_abs_error == pytest.approx(sum(errors) / 15)
    assert ttft.peer_error == pytest.approx(-0.1)
    assert row.peer_mean_abs_error == pytest.approx(0.06)


def test_a_request_waits_for_the_pass_that_takes_it_in(tmp_path: Path, constants: str) -> None:
    """Engines count from then on: what waits for a step to end is not in the TTFT."""
    late = request(1, 1e-4)
    folder = write_case(tmp_path / "case", [request(0, 0.0), late], META)
    (row,) = validate_cases([folder], constants)
    costs = compiled(profile(folder / "operators"))
    first = step_seconds(costs, [(256, 0)], [])
    # While the first prompt runs, its decode is formed ahead; then a mixed step of the second prompt and a decode.
    decode, both = step_seconds(costs, [], [257]), step_seconds(costs, [(256, 0)], [258])
    assert row.metrics["ttft_s"]["p99"].simulated == pytest.approx(0.99 * (decode + both) + 0.01 * first, rel=1e-6)


@pytest.mark.parametrize(("schedule_s", "binds"), [(1e-3, False), (1.0, True)])
def test_a_host_that_is_slower_than_all_engines_together_sets_the_pace(
    tmp_path: Path, schedule_s: float, binds: bool
) -> None:
    """Of engines that step together: the host hides behind attention and experts, not behind attention alone."""
    folder = write_case(tmp_path / "case", [request(0, 0.0)], MOE_META)
    (folder / "model_config.json").write_text(json.dumps(MOE_CONFIG))
    shutil.rmtree(folder / "operators")
    write_tables(folder / "operators", moe=True)
    case, catalogue = read_case(folder, ["rtx-pro-6000"]), Catalogue(shipped_root())
    card = catalogue.get("Accelerator", "rtx-pro-6000").spec
    bare = profile(folder).engines["vllm"]
    ready = [
        prepare(case, card, estimator_of(case, catalogue, overhead=overhead), 100_000)
        for overhead in (bare, bare.model_copy(update={"schedule_s": schedule_s}))
    ]
    free, held = (of.simulated(of.costs) for of in ready)
    host_s = ready[0].worker.own_s(np.array([256.0]))[0]
    assert host_s < free.first_s[0] - free.queued_s[0]  # there are experts behind it
    if binds:
        assert held.first_s - held.queued_s == pytest.approx(schedule_s)
    else:
        assert held.first_s == pytest.approx(free.first_s, rel=1e-12)
        assert held.last_s == pytest.approx(free.last_s, rel=1e-12)


def test_measured_capacity_makes_a_row_of_its_own(tmp_path: Path, constants: str) -> None:
    folder = write_case(tmp_path / "case", [request(0, 0.0)], META | {"num_gpu_blocks": 1001})
    measured, predicted = validate_cases([folder], constants)
    assert (measured.capacity, measured.kv_capacity_tokens) == ("measured", 16000)
    assert predicted.kv_capacity_error == predicted.kv_capacity_tokens / 16000 - 1
    assert predicted.metrics == measured.metrics


@pytest.mark.parametrize(
    "known",
    [
        {"kv_cache": {"num_gpu_blocks": 1001, "block_size": 16}},
        {"kv_cache": {"num_gpu_blocks": 1001}, "num_gpu_blocks": 1001},
    ],
)
def test_blocks_are_read_among_the_facts_of_the_cache(tmp_path: Path, known: dict[str, Any]) -> None:
    arguments = META["engine_kwargs"] | {"data_parallel_size": 2}
    folder = write_case(tmp_path / "case", [request(0, 0.0)], META | {"engine_kwargs": arguments} | known)
    assert read_case(folder, ["h100-sxm", "rtx-pro-6000"]).kv_capacity_tokens == 16000  # of one engine, not of two


def test_a_cache_without_blocks_says_nothing(tmp_path: Path) -> None:
    folder = write_case(tmp_path / "case", [request(0, 0.0)], META | {"kv_cache": {"dtype": "auto"}})
    assert read_case(folder, ["h100-sxm", "rtx-pro-6000"]).kv_capacity_tokens is None


@pytest.mark.parametrize(
    ("file", "text", "expected"),
    [
        ("vllm_meta.json", "{}", "engine_kwargs: expected an object"),
        ("vllm_meta.json", "{", "not JSON"),
        ("vllm_meta.json", json.dumps(META | {"num_gpu_blocks": "many"}), "num_gpu_blocks: expected a whole number"),
        ("vllm_meta.json", json.dumps(META | {"kv_cache": 7}), "kv_cache: expected an object, not 7"),
        (
            "vllm_meta.json",
            json.dumps(META | {"kv_cache": {"num_gpu_blocks": 1.5}}),
            "kv_cache.num_gpu_blocks: expected a whole number from 2, not 1.5",
        ),
        (
            "vllm_meta.json",
            json.dumps(META | {"kv_cache": {"num_gpu_blocks": 9}, "num_gpu_blocks": 8}),
            "kv_cache.num_gpu_blocks: 9 is not num_gpu_blocks, 8",
        ),
        ("requests.jsonl", '{"id": 1}', "requests.jsonl:1: arrival_s: required, and missing"),
        ("requests.jsonl", "", "has no requests"),
        (
            "vllm_meta.json",
            json.dumps(META | {"engine_kwargs": {"max_num_seqs": 0}}),
            "engine_kwargs: max_num_seqs: must be at least 1, got 0",
        ),
        ("operators/meta.yaml", "hardware: Abacus", "hardware: 'Abacus' is no accelerator of the catalogue"),
    ],
)
def test_bad_cases_are_refused_by_file_and_key(tmp_path: Path, file: str, text: str, expected: str) -> None:
    folder = write_case(tmp_path / "case", [request(0, 0.0)])
    (folder / file).write_text(text)
    with pytest.raises(CaseError) as caught:
        read_case(folder, ["rtx-pro-6000", "h100-sxm"])
    assert expected in str(caught.value)


def test_settings_that_are_not_simulated_are_said(tmp_path: Path, constants: str) -> None:
    given = META["engine_kwargs"] | {"seed": 7, "enforce_eager": True, "quantization": None}
    folder = write_case(tmp_path / "case", [request(0, 0.0)], META | {"engine_kwargs": given})
    (case,) = validate_cases([folder], constants)
    assert not [warning for warning in case.warnings if "engine_kwargs" in warning]
    given["swap_space"] = 4
    folder = write_case(tmp_path / "other", [request(0, 0.0)], META | {"engine_kwargs": given})
    (case,) = validate_cases([folder], constants)
    assert "engine_kwargs.swap_space is not simulated, and left out" in case.warnings


def test_constants_of_another_law_are_refused(tmp_path: Path) -> None:
    folder = write_case(tmp_path / "case", [request(0, 0.0)])
    with pytest.raises(ValueError, match="profile roofline: expected estimator tables"):
        list(validate_cases([folder], "roofline"))


def test_json_has_the_documented_keys(tmp_path: Path, constants: str) -> None:
    folder = write_case(tmp_path / "case", [request(0, 0.0)])
    result = CliRunner().invoke(app, ["validate", "e2e", str(folder), "--profile", constants, "--json", "--quiet"])
    assert result.exit_code == 0, result.output
    (case,) = json.loads(result.stdout)["cases"]
    assert {"case", "capacity", "kv_capacity_tokens", "metrics", "output_tokens_per_s", "makespan_s"} <= case.keys()
    assert set(case["metrics"]) == {"ttft_s", "tpot_s", "latency_s"}
    assert set(case["metrics"]["ttft_s"]) == {"mean", "p50", "p90", "p95", "p99"}
    assert {"measured", "simulated", "error"} <= case["metrics"]["ttft_s"]["p90"].keys()


@pytest.mark.parametrize(
    ("name", "limit"),
    [
        ("rtxpro6000-llama-3.1-8b-tp1", 0.015),
        ("rtxpro6000-qwen3-32b-tp2", 0.015),
        ("rtxpro6000-qwen3-30b-a3b-dp2-ep2", 0.03),
    ],
)
def test_measured_runs_within_their_errors(name: str, limit: float) -> None:
    shared = shared_directory()
    folder = None if shared is None else shared / "validation" / "vllm_e2e" / name
    if folder is None or not folder.is_dir():
        pytest.skip(f"no measured run {name}: set HISEARCH_SHARED to the folder with the validation data")
    for row in validate_cases([folder]):
        assert row.mean_abs_error <= limit
        assert row.peer_mean_abs_error is not None
        assert row.mean_abs_error < row.peer_mean_abs_error
