"""Tiers of decode workers: what they need of the prefill pool, refused by key with what is expected."""

from __future__ import annotations

import pytest

from hisearch.specs.documents.catalogue import shipped_root
from hisearch.specs.documents.resolve import load_deployment
from hisearch.specs.errors import SpecError

SHIPPED = shipped_root() / "studies/deployments/qwen3-32b-h100-prefill-decode.yaml"
FRONT = "spec.pools.0.tiers=[{medium: ddr5, gib: 128}, {medium: rdma-pool, gib: 4096}]"
BACK = "spec.pools.1.tiers=[{medium: ddr5, gib: 128}]"


def test_a_host_pool_before_the_prefill_pools_storage() -> None:
    front, back = load_deployment(str(SHIPPED), [FRONT, BACK]).deployment.pools
    assert back.writes_back_output
    assert not front.writes_back_output


@pytest.mark.parametrize(
    ("settings", "key", "message"),
    [
        ([], "tiers", "pool prefill has none: give it one of scope cluster"),
        (
            ["spec.pools.0.tiers=[{medium: ddr5, gib: 128}, {medium: nvme-gen5, gib: 400}]"],
            "tiers",
            "reads from nvme-gen5 of scope node",
        ),
        ([FRONT, "spec.pools.0.movement.write_policy=write_back"], "tiers", "writes no prompt to storage"),
        (
            [
                "spec.pools.0.tiers=[{medium: ddr5, gib: 9}, {medium: nvme-gen5, gib: 9}, {medium: rdma-pool, gib: 9}]",
                "spec.pools.0.movement.hierarchy=exclusive",
            ],
            "tiers",
            "in one of two stores",
        ),
        ([FRONT, "spec.pools.0.engine.page_tokens=64"], "engine.page_tokens", "looks for pages of 64 tokens"),
        ([FRONT, "spec.pools.0.tensor_parallel=4"], "tensor_parallel", "pool prefill has 4"),
        ([FRONT, "spec.pools.1.tiers=[{medium: ddr5, gib: 9}, {medium: rdma-pool, gib: 9}]"], "tiers.1", "pool alone"),
        ([FRONT, "spec.pools.1.tiers.0.eviction=lfu"], "tiers.0.eviction", "nothing is evicted"),
        ([FRONT, "spec.pools.1.movement.prefetch=timeout"], "movement.prefetch", "when that has finished"),
        (
            [FRONT, "spec.pools.1.movement.kv_connector=lmcache"],
            "movement.kv_connector",
            "LMCache is not simulated there",
        ),
        ([FRONT, "spec.pools.1.pipeline_parallel=2"], "pipeline_parallel", "2 is not simulated with tiers on decode"),
        ([FRONT, "spec.pools.1.engine={name: vllm}"], "tiers", "MultiConnector"),
        ([FRONT, "spec.pools.1.engine={name: trtllm}"], "tiers", "are SGLang's"),
    ],
)
def test_refused_by_key(settings: list[str], key: str, message: str) -> None:
    with pytest.raises(SpecError) as refused:
        load_deployment(str(SHIPPED), [*settings[:1], BACK, *settings[1:]])
    assert f"spec.pools.1.{key}: " in str(refused.value)
    assert message in str(refused.value)


def test_two_prefill_pools_have_no_storage_in_common() -> None:
    other = "spec.pools=[{name: a, role: prefill, accelerator: h100-sxm, tensor_parallel: 2, engine: {name: sglang}}, "
    other += "{name: b, role: prefill, accelerator: h100-sxm, tensor_parallel: 2, engine: {name: sglang}}, "
    other += "{name: c, role: decode, accelerator: h100-sxm, tensor_parallel: 2, engine: {name: sglang}, "
    other += "tiers: [{medium: ddr5, gib: 128}]}]"
    with pytest.raises(SpecError, match=r"pools\.2\.tiers: needs one prefill pool .*; there are a, b"):
        load_deployment(str(SHIPPED), [other])
