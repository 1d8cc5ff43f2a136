"""Compiled tiers: capacities, laws of transfers, and what is not simulated yet."""

from __future__ import annotations

import math
from typing import Any

import pytest

from hisearch.latency.device_memory.plan import plan_memory
from hisearch.latency.sharding import InvalidParallelism
from hisearch.simulate.arrays import tiers as tier_arrays
from hisearch.simulate.plans.plan import WorkerPlan, plan_worker
from hisearch.simulate.plans.tier_plan import TransferLaw
from hisearch.simulate.plans.tiers import TierRefused, Tiers, link_law, medium_law, plan_tiers
from hisearch.specs.deployments.deployment import PoolSpec
from hisearch.specs.deployments.tiers import MovementSpec
from hisearch.specs.documents.catalogue import Catalogue
from hisearch.specs.machines.hardware import MediumSpec

CATALOGUE = Catalogue()
ACCELERATOR = CATALOGUE.get("Accelerator", "h100-sxm").spec
HOST = CATALOGUE.get("Host", "hgx-h100-8").spec
MEDIA = {name: CATALOGUE.get("Medium", name).spec for name in CATALOGUE.names("Medium")}
GIB = 2**30
DRAM = {"medium": "ddr5", "gib": 256}
LMCACHE = {"movement": {"kv_connector": "lmcache"}}


def pool(**fields: Any) -> PoolSpec:
    engine = {"name": fields.pop("engine", "sglang")}
    return PoolSpec.model_validate(
        {"accelerator": "h100-sxm", "engine": engine, "tensor_parallel": 2, "tiers": [DRAM], **fields}
    )


def tiers(of: PoolSpec, model: str = "qwen3-32b", **changes: Any) -> Tiers:
    spec, card = CATALOGUE.get("Model", model).spec, CATALOGUE.get("Accelerator", of.accelerator).spec
    memory = plan_memory(
        spec,
        card,
        tensor_parallel=of.tensor_parallel,
        weight_dtype=of.weight_dtype,
        kv_dtype=of.kv_dtype,
        engine=of.engine,
        accelerator_name=of.accelerator,
    )
    known = {"host": HOST, "media": MEDIA, **changes}
    return plan_tiers(of, model=spec, memory=memory, accelerator=card, **known)


def worker(of: PoolSpec) -> WorkerPlan:
    return plan_worker(
        of,
        model=CATALOGUE.get("Model", "qwen3-32b").spec,
        accelerator=ACCELERATOR,
        host=HOST,
        media=MEDIA,
        profile=CATALOGUE.get("LatencyProfile", "roofline").spec,
    )


def medium(**fields: Any) -> MediumSpec:
    """10 GB/s read, 4 GB/s written, 100 us an operation."""
    facts = {"read_bytes_per_s": 10e9, "write_bytes_per_s": 4e9, "latency_s": 100e-6, **fields}
    return MEDIA["nvme-gen4"].model_copy(update=facts)


@pytest.mark.parametrize(
    ("page_bytes", "queue_depth", "devices", "bytes_per_token", "operation_bytes", "us_per_token"),
    [
        (4096, 64, 1, 100_000, 100_000, 10.0),  # bandwidth: an operation of 100 kB in 1.56 us is more than 10 GB/s
        (4096, 1, 1, 100_000, 100_000, 100.0),  # one operation at a time
        (4096, 4, 1, 100_000, 100_000, 25.0),
        (4096, 4, 1, 100_000, 1_600_000, 10.0),  # operations of 16 tokens: queue 1.56 us a token
        (400_000, 4, 1, 100_000, 100_000, 10.0),  # the smallest transfer holds four tokens: queue 6.25 us a token
        (400_000, 1, 1, 100_000, 100_000, 25.0),
        (4096, 1, 4, 100_000, 100_000, 25.0),  # four queues
        (4096, 64, 4, 100_000, 100_000, 2.5),  # four bandwidths
        (4096, 4, 1, 200_000, 100_000, 50.0),  # two ranks, an operation each
    ],
)
def test_the_law_of_a_medium(
    page_bytes: int, queue_depth: int, devices: int, bytes_per_token: int, operation_bytes: int, us_per_token: float
) -> None:
    law = medium_law(
        medium(page_bytes=page_bytes, queue_depth=queue_depth),
        10e9,
        devices=devices,
        bytes_per_token=bytes_per_token,
        operation_bytes=operation_bytes,
    )
    assert law.base_s == 100e-6
    assert law.s_per_token == pytest.approx(us_per_token * 1e-6)


def test_the_law_of_a_link() -> None:
    assert link_law(HOST.network.model_copy(update={"bandwidth_bytes_per_s": 50e9}), 100_000) == TransferLaw(3e-6, 2e-6)


def test_a_worker_without_tiers_has_none() -> None:
    plan = worker(pool(tiers=[]))
    assert (plan.tiers, plan.movement, plan.workers_per_node) == ((), None, 4)
    assert plan.host_capacity_tokens == 0


def test_three_tiers_of_lmcache() -> None:
    of = pool(
        engine="vllm",
        tiers=[
            DRAM,
            {"medium": "nvme-gen4", "gib": 500, "scope": "worker", "ttl_s": 3600, "reclaim": "periodic"},
            {"medium": "rdma-pool", "gib": 4000, "eviction": "fifo"},
        ],
        movement={"kv_connector": "lmcache", "save_decode": True},
    )
    resolved = tiers(of)
    per_token = 2 * 64 * 8 * 128 * 2  # K and V of 64 layers, 8 heads of 128, two bytes
    assert [plan.bytes_per_token for plan in resolved.plans] == [per_token] * 3
    assert [plan.page_tokens for plan in resolved.plans] == [256] * 3
    assert [plan.capacity_tokens for plan in resolved.plans] == [
        gib * GIB // (256 * per_token) * 256 for gib in (256, 500, 4000)
    ]
    assert [plan.scope for plan in resolved.plans] == ["worker", "worker", "cluster"]
    assert [plan.eviction for plan in resolved.plans] == ["lru", "lru", "fifo"]
    assert [plan.ttl_s for plan in resolved.plans] == [math.inf, 3600.0, math.inf]
    assert [plan.reclaim for plan in resolved.plans] == ["lazy", "periodic", "lazy"]
    disk = resolved.plans[1]
    assert disk.read == TransferLaw(90e-6, pytest.approx(per_token / 6.8e9))
    assert disk.write == TransferLaw(90e-6, pytest.approx(per_token / 4e9))
    assert disk.energy_j_per_token == pytest.approx(per_token * 200e-12)
    assert disk.usd_per_hour_per_store == pytest.approx(500 * 0.0001)
    movement = resolved.movement
    assert movement is not None
    assert (movement.kv_connector, movement.save_decode, movement.chunk_tokens, movement.layers) == (
        "lmcache",
        True,
        256,
        64,
    )
    assert movement.host_read == movement.host_write == TransferLaw(10e-6, pytest.approx(per_token / 2 / 55e9))
    assert movement.network_read == movement.network_write == TransferLaw(3e-6, pytest.approx(per_token / 90e9))
    assert resolved.workers_per_node == 4


def test_a_store_takes_as_many_disks_as_hold_it() -> None:
    sizes = (3000, 3576, 3577, 14000)  # drives of 3,840,000,000,000 bytes: 3,576.28 GiB
    laws = [tiers(pool(tiers=[DRAM, {"medium": "nvme-gen4", "gib": gib}])).plans[1].read for gib in sizes]
    assert [laws[0].s_per_token / law.s_per_token for law in laws] == pytest.approx([1, 1, 2, 4])


def test_the_same_kv_of_all_ranks_is_stored_once() -> None:
    """DeepSeek's ranks hold equal KV: each has it in its host pool, storage has it once; LMCache has it once at all."""
    stores = [{"medium": "ddr5", "gib": 1024}, {"medium": "nvme-gen4", "gib": 900}]
    of = pool(accelerator="b200", tensor_parallel=8, weight_dtype="fp8", tiers=stores)
    resolved = tiers(of, "deepseek-v3")
    host, disk = resolved.plans
    assert host.bytes_per_token == 8 * disk.bytes_per_token
    assert resolved.workers_per_node == 1
    card = CATALOGUE.get("Accelerator", "b200").spec
    assert resolved.movement is not None
    assert resolved.movement.host_read == link_law(card.host_link, disk.bytes_per_token)
    under_lmcache = tiers(of.model_copy(update={"movement": MovementSpec(kv_connector="lmcache")}), "deepseek-v3").plans
    assert [plan.bytes_per_token for plan in under_lmcache] == [disk.bytes_per_token] * 2


def test_hicache_sizes_its_host_pool_in_whole_gigabytes_a_rank() -> None:
    per_rank = 64 * 8 * 128 * 2  # half of K and V of 64 layers, 8 heads of 128, two bytes
    assert tiers(pool()).plans[0].capacity_tokens == 137 * 10**9 // per_rank  # 128 GiB are 137.4 GB
    assert tiers(pool(engine="vllm")).plans[0].capacity_tokens == 128 * GIB // (16 * per_rank) * 16


@pytest.mark.parametrize(
    ("fields", "key", "message"),
    [
        (
            {"tiers": [{"medium": "ddr5", "gib": 16}]},
            "tiers.0.gib",
            "SGLang's host pool must exceed its device pool of",
        ),
        (
            {"tiers": [{"medium": "ddr5", "gib": 16}], "movement": {"write_policy": "write_back"}},
            "tiers.0.gib",
            "whatever the write policy",
        ),
        (
            {"engine": "vllm", "tiers": [{"medium": "ddr5", "gib": 0.001}]},
            "tiers.0.gib",
            "0.001 GiB are less than one page of 16 tokens (0.003906 GiB)",
        ),
        (
            {"engine": "vllm", "tiers": [{"medium": "ddr5", "gib": 0.05}], "movement": {"kv_connector": "lmcache"}},
            "tiers.0.gib",
            "less than one chunk of 256 tokens",
        ),
        ({"tiers": [DRAM, {"medium": "nvme-gen4", "gib": 1e-5}]}, "tiers.1.gib", "less than one page of 1 tokens"),
        ({"tiers": [{"medium": "nvme-gen4", "gib": 900}]}, "tiers.0.medium", "HiCache needs host memory"),
    ],
)
def test_what_cannot_be_built(fields: dict[str, Any], key: str, message: str) -> None:
    with pytest.raises(TierRefused) as caught:
        tiers(pool(**fields))
    assert caught.value.problem.key == key
    assert message in caught.value.problem.message
    assert str(caught.value).startswith(f"pool main: {key}: ")


def test_scopes_need_a_host() -> None:
    with pytest.raises(TierRefused, match="nothing says what a node is"):
        tiers(pool(tiers=[DRAM, {"medium": "nvme-gen4", "gib": 900}]), host=None)
    assert tiers(pool(), host=None).workers_per_node == 1
    without_network = HOST.model_copy(update={"network": None})
    with pytest.raises(TierRefused, match="has no network"):
        tiers(pool(tiers=[DRAM, {"medium": "rdma-pool", "gib": 900}]), host=without_network)


def test_a_medium_must_be_known() -> None:
    with pytest.raises(ValueError, match="no medium named 'ddr5'; known: none"):
        tiers(pool(), media={})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"engine": "vllm", "tiers": [{**DRAM, "ttl_s": 60}]},
            "tiers.0.ttl_s: times to live are not simulated under vLLM's native offloading; leave it out",
        ),
        (
            {"engine": "vllm", "tiers": [DRAM, {"medium": "rdma-pool", "gib": 900, "ttl_s": 60}], **LMCACHE},
            "tiers.1.ttl_s: times to live are not simulated under LMCache; leave it out",
        ),
        (
            LMCACHE,
            "movement.kv_connector: LMCache under SGLang can be exported, not simulated; .* not built yet",
        ),
        (
            {"tiers": [DRAM, {"medium": "rdma-pool", "gib": 900}], **LMCACHE},
            "movement.kv_connector: LMCache under SGLang can be exported, not simulated; .* not built yet",
        ),
    ],
)
def test_what_the_kernels_do_not_know_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(TierRefused, match=f"^pool main: {message}$"):
        worker(pool(**fields))


def test_the_size_that_a_refusal_names_is_taken() -> None:
    """And none a rank's gigabyte below it."""
    with pytest.raises(TierRefused, match=r": \d+ GiB do$") as caught:
        tiers(pool(tiers=[{"medium": "ddr5", "gib": 16}]))
    enough = int(str(caught.value).split()[-3])
    assert tiers(pool(tiers=[{"medium": "ddr5", "gib": enough}])).plans[0].capacity_tokens > 0
    with pytest.raises(TierRefused, match="must exceed its device pool"):
        tiers(pool(tiers=[{"medium": "ddr5", "gib": enough - 2}]))


@pytest.mark.parametrize(
    "fields",
    [
        {"movement": {"write_policy": "write_back", "load_back_tokens": 1}},
        {"tiers": [{**DRAM, "eviction": "slru"}]},
        {"tiers": [DRAM, {"medium": "nvme-gen4", "gib": 900, "ttl_s": 60, "reclaim": "pressure"}]},
        {"tiers": [DRAM, {"medium": "rdma-pool", "gib": 900, "eviction": "lfu"}], "movement": {"prefetch": "timeout"}},
        {"tiers": [DRAM, {"medium": "nvme-gen4", "gib": 900, "eviction": "tlru", "tail_tokens": 4096}]},
        {"tiers": [DRAM, {"medium": "nvme-gen4", "gib": 900, "eviction": "arc"}]},
        {"tiers": [DRAM, {"medium": "nvme-gen4", "gib": 900, "eviction": "priority"}]},
        {"tiers": [DRAM, {"medium": "nvme-gen4", "gib": 900, "eviction": "belady"}]},
        {"tiers": [DRAM, {"medium": "ddr5", "gib": 300, "scope": "node"}]},
        {"tiers": [DRAM, {"medium": "cxl-dram", "gib": 300}, {"medium": "rdma-pool", "gib": 900}]},
        {
            "tiers": [DRAM, {"medium": "nvme-gen4", "gib": 900}, {"medium": "rdma-pool", "gib": 900}],
            "movement": {"hierarchy": "exclusive"},
        },
    ],
)
def test_hicache_is_simulated_whole(fields: dict[str, Any]) -> None:
    plan = worker(pool(**fields))
    assert len(plan.tiers) == len(fields.get("tiers", [DRAM]))
    assert plan.movement is not None
    assert plan.movement.kv_connector == "hicache"


def test_the_path_to_the_nearest_tier_is_what_the_kernels_read() -> None:
    plan = worker(pool())
    (nearest,) = plan.tiers
    assert plan.movement is not None
    assert plan.host_capacity_tokens == nearest.capacity_tokens
    for link in tier_arrays.link_array(plan, 1):
        assert link.base_s == pytest.approx(10e-6 + 0.15e-6)
        assert link.s_per_token == plan.movement.host_read.s_per_token > nearest.read.s_per_token


def grouped(tensor: int, groups: int, **fields: Any) -> PoolSpec:
    """A worker of eight accelerators in attention groups."""
    return pool(
        accelerator="h200", tensor_parallel=tensor, attention_data_parallel=groups, expert_parallel=tensor * groups,
        **fields,
    )  # fmt: skip


def moe_worker(of: PoolSpec) -> WorkerPlan:
    return plan_worker(
        of,
        model=CATALOGUE.get("Model", "qwen3-235b-a22b").spec,
        accelerator=CATALOGUE.get("Accelerator", "h200").spec,
        host=HOST,
        media=MEDIA,
        profile=CATALOGUE.get("LatencyProfile", "roofline").spec,
    )


def test_attention_groups_have_equal_parts_of_a_workers_host_memory_and_share_its_store() -> None:
    """SGLang sizes a host pool for each rank; groups write and find the same pages in a store."""
    two = [{"medium": "ddr5", "gib": 1600}, {"medium": "nvme-gen4", "gib": 1000, "scope": "worker"}]
    plan = moe_worker(grouped(2, 4, tiers=two))
    host, store = plan.tiers
    gigabytes = int(1600 * 2**30 / 8 / 1e9)
    assert host.capacity_tokens == int(gigabytes * 1e9 / (host.bytes_per_token / 2 * host.page_tokens)) * (
        host.page_tokens
    )
    assert store.capacity_tokens == int(1000 * 2**30 / (store.bytes_per_token * store.page_tokens)) * store.page_tokens
    assert (plan.schedulers_sharing(store, 8), plan.schedulers_per_node) == (4, 4)


@pytest.mark.parametrize(
    ("engine", "degrees", "key", "message"),
    [
        ("vllm", {"attention_data_parallel": 8, "tensor_parallel": 1}, "attention_data_parallel", "that LMCache fills"),
        ("sglang", {"pipeline_parallel": 2, "tensor_parallel": 4}, "pipeline_parallel", "with cache tiers"),
    ],
)
def test_schedulers_with_tiers_that_are_not_simulated_are_refused_by_key(
    engine: str, degrees: dict[str, int], key: str, message: str
) -> None:
    movement = LMCACHE if engine == "vllm" else {}
    of = pool(accelerator="h200", engine=engine, **degrees, **movement)
    with pytest.raises(InvalidParallelism, match=message) as caught:
        moe_worker(of)
    assert caught.value.key == key


def test_todays_offloading_of_attention_groups_is_refused() -> None:
    """The connector of 0.23 and later, which has no rules for engines that step together."""
    degrees = {"attention_data_parallel": 8, "tensor_parallel": 1, "expert_parallel": 8}

    def worker_of(version: str) -> WorkerPlan:
        of = pool(accelerator="h200", engine="vllm", **degrees)
        return moe_worker(of.model_copy(update={"engine": of.engine.model_copy(update={"version": version})}))

    with pytest.raises(InvalidParallelism, match=r"since 0\.23; leave tiers out, or set engine\.version") as caught:
        worker_of("0.23.0")
    assert caught.value.key == "attention_data_parallel"
    with pytest.raises(InvalidParallelism, match=r"since 0\.23"):
        worker_of("")
    assert worker_of("0.22.0").schedulers == 8


def test_a_worker_in_two_hosts_has_the_memory_and_the_networks_of_both() -> None:
    """Where all of its ranks store something: what is kept once is in one host, over its network."""
    tray = CATALOGUE.get("Host", "gb200-nvl72-tray").spec
    stores = [{"medium": "lpddr5x", "gib": 800}, {"medium": "rdma-pool", "gib": 900}]

    def plans(ranks: int, model: str, **fields: Any) -> Any:
        of = pool(accelerator="gb200", tensor_parallel=ranks, weight_dtype="fp8", tiers=stores, **fields)
        return tiers(of, model, host=tray)

    # LMCache's workers take no host pool larger than the device's.
    in_single_host, in_two_hosts = (
        plans(ranks, "qwen3-32b", engine="vllm", movement={"kv_connector": "lmcache"}) for ranks in (4, 8)
    )
    assert in_single_host.plans[0].read.s_per_token == pytest.approx(2 * in_two_hosts.plans[0].read.s_per_token)
    assert in_single_host.movement.network_read.s_per_token == pytest.approx(
        2 * in_two_hosts.movement.network_read.s_per_token
    )
    per_rank, kept_once = plans(8, "deepseek-v3"), plans(8, "deepseek-v3", movement={"kv_connector": "lmcache"})
    per_token = kept_once.plans[0].bytes_per_token
    assert per_rank.plans[0].read.s_per_token == pytest.approx(8 * per_token / (2 * 680e9))
    assert kept_once.plans[0].read.s_per_token == pytest.approx(per_token / 680e9)
    assert per_rank.movement.network_read.s_per_token == pytest.approx(per_token / 90e9)
    shared = pool(accelerator="gb200", tensor_parallel=8, tiers=[stores[0], stores[0] | {"scope": "node"}])
    with pytest.raises(TierRefused, match="node: a worker lies in 2 hosts"):
        tiers(shared, host=tray)
