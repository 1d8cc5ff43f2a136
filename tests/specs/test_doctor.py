from __future__ import annotations

from pathlib import Path

import pytest

from hisearch.specs.checks.doctor import load_any
from hisearch.specs.documents.catalogue import shipped_root
from tests.specs.files import SLO, write

ROOT = shipped_root()


def _warnings(ref: str | Path, *settings: str) -> str:
    checkup = load_any(ref, settings)
    assert checkup.problems == ()
    return "\n".join(map(str, checkup.warnings))


def _space(changes: str) -> str:
    return f"spec.space={{execution: {{accelerators: [h100-sxm], engines: [sglang, vllm], {changes}}}}}"


def _cache(choices: str) -> str:
    return f"spec.space={{execution: {{accelerators: [l40s], engines: [vllm]}}, cache: {{{choices}}}}}"


def test_a_good_study_only_reminds_of_its_prices(project: Path) -> None:
    checkup = load_any("studies/mine.yaml", [_space("tensor_parallel: [8]")])
    assert (checkup.kind, checkup.name, checkup.ok) == ("Study", "mine", True)
    assert [str(warning) for warning in checkup.warnings] == [
        f"studies/mine.yaml (--set {_space('tensor_parallel: [8]')}): spec.space: "
        "prices of h100-sxm are assumptions of 2026-11-01 or later; edit the accelerators' profiles"
    ]


@pytest.mark.parametrize(
    ("settings", "warning"),
    [
        (["spec.model=qwen2.5-7b"], "tensor_parallel 8 does not divide attention_heads 28 of qwen2.5-7b"),
        (
            ["spec.model=gpt-oss-120b", _space("tensor_parallel: [64, 1]")],
            "exceeds the 8 accelerator slots of hgx-h100-8",
        ),
        ([_space("weight_dtypes: [int4]")], "h100-sxm has no int4 rate; known: fp32, bf16, fp16, fp8, int8"),
        (["spec.model=gpt-oss-120b", _space("weight_dtypes: [fp4]")], "h100-sxm has no fp4 rate"),
        (
            ["spec.space={execution: {accelerators: [a100-80gb], engines: [trtllm], weight_dtypes: [bf16, fp8]}}"],
            "left out: TensorRT-LLM has no kernels that multiply fp8 weights on a100-80gb",
        ),
        ([_space("chunk_tokens: [128]")], "128 is less than max_running_requests 256: left out for vLLM"),
        (
            [_cache("tiers: [{media: [ddr5], gib: [0, 256]}]")],
            "8 workers of tensor_parallel 1 with 256 GiB each need 2048 GiB of host memory; l40s-8 has 1024 GiB",
        ),
        (
            [_cache("tiers: [{media: [ddr5], gib: [64]}, {media: [nvme-gen4], gib: {low: 500, high: 20000}}]")],
            "spec.space.cache.tiers.1.gib: 20000 GiB of the node need 20000 GiB of disk; l40s-8 has 14305.1 GiB",
        ),
        (
            [_cache("tiers: [{media: [lpddr5x], gib: [0, 16]}]")],
            "lpddr5x: the main memory of l40s-8 is ddr5",
        ),
        (
            [
                _cache("tiers: [{media: [ddr5], gib: [0, 16]}]"),
                "spec.space.execution.accelerators=[l40s, gb200]",
            ],
            "ddr5: the main memory of gb200-nvl72-tray is lpddr5x: left out there",
        ),
    ],
)
def test_what_a_study_is_unlikely_to_mean(project: Path, settings: list[str], warning: str) -> None:
    assert warning in _warnings("studies/mine.yaml", *settings)


@pytest.mark.parametrize("model", ["qwen2.5-7b", "gpt-oss-120b", "glm-5"])
@pytest.mark.parametrize("accelerator", sorted(path.stem for path in (ROOT / "profiles/accelerators").glob("*.yaml")))
def test_what_a_space_does_not_state_is_no_cause_for_warnings(project: Path, model: str, accelerator: str) -> None:
    space = f"spec.space={{execution: {{accelerators: [{accelerator}], engines: [sglang, vllm, trtllm]}}}}"
    checkup = load_any("studies/mine.yaml", [f"spec.model={model}", space])
    assert checkup.problems == ()
    assert [str(warning) for warning in checkup.warnings if "are assumptions of" not in str(warning)] == []


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (["spec.slo=foo"], "spec.slo: no SLO named 'foo'"),
        ([_space("tensor_parallel: [3]")], "tensor_parallel 3 does not divide attention_heads 32 of qwen3-8b"),
        (
            ["spec.space={execution: {accelerators: [h200], engines: [vllm]}, cache: {eviction: [lfu]}}"],
            "spec.space.cache.eviction: vLLM evicts by lru alone",
        ),
        (
            [_cache("movement: {kv_connectors: [lmcache, hicache]}")],
            "spec.space.cache.movement.kv_connectors.1: no engine of the space has hicache",
        ),
        (
            [
                "spec.space={execution: {accelerators: [h200], engines: [sglang]}, "
                "cache: {movement: {kv_connectors: [lmcache]}}}"
            ],
            "spec.space.cache.movement.kv_connectors.0: "
            "lmcache is exported, not simulated, with the engines of the space",
        ),
    ],
)
def test_what_makes_a_study_unusable(project: Path, settings: list[str], problem: str) -> None:
    checkup = load_any("studies/mine.yaml", settings)
    assert not checkup.ok
    assert problem in str(checkup.problems[0])


@pytest.mark.parametrize(
    ("degree", "problem"),
    [
        (3, "tensor_parallel 3 does not divide attention_heads 64 of qwen3-32b"),
        (16, "tensor_parallel 16 exceeds the 8 accelerator slots of hgx-h100-8"),
    ],
)
def test_what_makes_a_deployment_unusable(project: Path, degree: int, problem: str) -> None:
    text = (ROOT / "studies/deployments/qwen3-32b-h100-tp2.yaml").read_text()
    line = text.splitlines().index("      tensor_parallel: 2") + 1
    write(project / "mine.yaml", text.replace("tensor_parallel: 2", f"tensor_parallel: {degree}"))
    assert str(load_any("mine.yaml").problems[0]) == f"mine.yaml:{line}: spec.pools.0.tensor_parallel: {problem}"


def test_a_deployments_warnings() -> None:
    path = ROOT / "studies/deployments/qwen3-32b-h100-tp2.yaml"
    assert "4 workers of tensor_parallel 2 with 900 GiB each need 3600 GiB" in _warnings(
        path, "spec.pools.0.tiers.0.gib=900"
    )
    assert "h100-sxm has no fp4 rate" in _warnings(path, "spec.pools.0.weight_dtype=fp4")
    under_trtllm = ["spec.pools.0.engine.name=trtllm", "spec.pools.0.weight_dtype=nvfp4"]
    assert [f"{problem.key}: {problem.message}" for problem in load_any(path, under_trtllm).problems] == [
        "spec.pools.0.weight_dtype: TensorRT-LLM has no kernels that multiply nvfp4 weights on h100-sxm; Marlin, which "
        "unpacks them where it is asked to, is not simulated"
    ]


def test_terms_that_say_nothing(project: Path) -> None:
    terms = (
        "        - {metric: ttft_s, percentile: 50, at_most_s: 2.0}\n"
        "        - {metric: e2e_s, percentile: 50, at_most_s: 1.0}\n"
    )
    write(project / "a.yaml", SLO.replace("NAME", "a") + terms)
    warnings = _warnings("a.yaml").splitlines()
    assert warnings == [
        "a.yaml:5: spec.terms: ttft_p50 <= 2 s says nothing: ttft_p99 <= 1.5 s is stricter",
        "a.yaml:5: spec.terms: ttft_p50 <= 2 s says nothing: the whole answer must be there by then",
    ]


def test_any_file_gets_an_answer(project: Path) -> None:
    assert str(load_any("none.yaml").problems[0]) == "no file at none.yaml"
    write(project / "a.yaml", "kind: Nothing\n")
    assert "no kind 'Nothing'" in str(load_any("a.yaml").problems[0])
    write(project / "a.json", "{}")
    assert "architecture '' is not known" in str(load_any("a.json").problems[0])
    checkup = load_any(ROOT / "profiles/accelerators/h100-sxm.yaml")
    assert (checkup.kind, checkup.name, checkup.ok, checkup.warnings) == ("Accelerator", "h100-sxm", True, ())
