"""Deployments whose pools serve different models."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from hisearch.api.deployments.deployment import plan_deployment
from hisearch.specs.checks.doctor import load_any
from hisearch.specs.deployments.deployment import DeploymentSpec
from hisearch.specs.documents.resolve import load_deployment
from hisearch.specs.documents.resolved import ResolvedDeployment
from hisearch.specs.errors import SpecError

VLLM = {"name": "vllm", "chunk_tokens": 2048, "max_running_requests": 64}
LARGE = {"name": "large", "accelerator": "h100-sxm", "tensor_parallel": 2, "engine": VLLM}
SMALL = {"name": "small", "accelerator": "l40s", "engine": VLLM, "model": "llama-3.1-8b"}


def write(tmp_path: Path, pools: list[dict[str, object]], **keys: object) -> Path:
    path = tmp_path / "two.yaml"
    spec = {"model": "qwen3-32b", "pools": pools} | keys
    document = {"apiVersion": "hisearch/v1", "kind": "Deployment", "metadata": {"name": "two"}, "spec": spec}
    path.write_text(yaml.safe_dump(document))
    return path


def load(tmp_path: Path, pools: list[dict[str, object]], **keys: object) -> ResolvedDeployment:
    return load_deployment(write(tmp_path, pools, **keys))


def test_each_pool_is_planned_for_its_model(tmp_path: Path) -> None:
    resolved = load(tmp_path, [LARGE, SMALL], served_names={"qwen3-32b": ["gpt"]})
    assert [model.name for model in resolved.models] == ["qwen3-32b", "llama-3.1-8b"]
    fleet = plan_deployment(resolved)
    assert [model.name for model in fleet.models] == ["qwen3-32b", "llama-3.1-8b"]
    assert [model.aliases for model in fleet.models] == [
        ("Qwen/Qwen3-32B", "gpt"),
        ("meta-llama/Llama-3.1-8B-Instruct",),
    ]
    alone = plan_deployment(load(tmp_path, [SMALL | {"name": "main"}], model="llama-3.1-8b"))
    assert fleet.pools[1].plan.kv_capacity_tokens == alone.pools[0].plan.kv_capacity_tokens
    assert fleet.pools[1].plan.max_request_tokens == alone.pools[0].plan.max_request_tokens


def test_a_deployment_of_one_model_is_written_as_before() -> None:
    """Old files and what is derived from them say nothing of models of pools."""
    data = DeploymentSpec.model_validate({"model": "qwen3-32b", "pools": [LARGE]}).model_dump(mode="json")
    assert "served_names" not in data
    assert "model" not in data["pools"][0]
    several = DeploymentSpec.model_validate({"model": "qwen3-32b", "pools": [LARGE, SMALL]})
    assert DeploymentSpec.model_validate(several.model_dump(mode="json")) == several


@pytest.mark.parametrize(
    ("pools", "keys", "message"),
    [
        ([SMALL], {}, "spec.model: every pool names another model: llama-3.1-8b"),
        ([LARGE, SMALL | {"model": "no-such"}], {}, "spec.pools.1.model: no Model named 'no-such'"),
        ([LARGE, SMALL], {"served_names": {"qwen3-8b": ["a"]}}, "spec.served_names.qwen3-8b: no pool serves it"),
        (
            [LARGE, SMALL],
            {"served_names": {"qwen3-32b": ["a"], "llama-3.1-8b": ["b", "a"]}},
            "a is a name of llama-3.1-8b already",
        ),
        (
            [LARGE, SMALL],
            {"served_names": {"qwen3-32b": ["meta-llama/Llama-3.1-8B-Instruct"]}},
            "are both called meta-llama/Llama-3.1-8B-Instruct",
        ),
        ([LARGE, SMALL | {"role": "prefill"}], {}, "a pool of role decode is needed beside those of role prefill"),
        (
            [LARGE, LARGE | {"name": "more", "role": "decode"}, SMALL],
            {},
            "unified pools do not go with prefill and decode ones of one model",
        ),
    ],
)
def test_refused_with_the_key(
    tmp_path: Path, pools: list[dict[str, object]], keys: dict[str, object], message: str
) -> None:
    with pytest.raises(SpecError) as caught:
        load(tmp_path, pools, **keys)
    assert message in str(caught.value)


def test_one_model_may_be_unified_and_the_other_disaggregated(tmp_path: Path) -> None:
    disaggregated = [SMALL | {"name": role, "role": role, "kv_dtype": "fp8"} for role in ("prefill", "decode")]
    fleet = plan_deployment(load(tmp_path, [LARGE, *disaggregated], transfer={"fabric": "ib-ndr-400"}))
    large, prefill, decode = fleet.pools
    assert large.kv_bytes_per_token is None
    assert prefill.kv_bytes_per_token == decode.kv_bytes_per_token == 32 * 2 * 8 * 128
    assert fleet.transfer.bytes_per_token == 0.0


def test_kv_formats_must_agree_within_a_model(tmp_path: Path) -> None:
    disaggregated = [SMALL | {"name": role, "role": role} for role in ("prefill", "decode")]
    disaggregated[1]["kv_dtype"] = "fp8"
    with pytest.raises(SpecError, match=r"pools.2.kv_dtype: fp8, but pool prefill has bf16"):
        load(tmp_path, [LARGE | {"kv_dtype": "fp8"}, *disaggregated], transfer={"fabric": "ib-ndr-400"})


def test_doctor_judges_a_pool_by_its_own_model(tmp_path: Path) -> None:
    checkup = load_any(write(tmp_path, [LARGE, SMALL | {"tensor_parallel": 3}]))
    assert any("pools.1.tensor_parallel" in str(p) and "llama-3.1-8b" in str(p) for p in checkup.problems)
