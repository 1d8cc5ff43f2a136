"""Cache tiers and their movement: refusals with their keys, and defaults."""

from __future__ import annotations

from pathlib import Path

import pytest

from hisearch.specs.checks.doctor import load_any
from hisearch.specs.checks.setting_notes import setting_notes
from hisearch.specs.deployments.deployment import EngineSpec, PoolSpec
from hisearch.specs.deployments.tiers import KV_CONNECTORS, MovementSpec
from hisearch.specs.documents.catalogue import shipped_root
from hisearch.specs.documents.resolve import load_deployment
from hisearch.specs.errors import SpecError

SHIPPED = shipped_root() / "studies/deployments/qwen3-32b-h100-tp2.yaml"
DRAM = "{medium: ddr5, gib: 256}"
DISK = "{medium: nvme-gen5, gib: 3500}"
PRIVATE_DISK = "{medium: nvme-gen5, gib: 500, scope: worker}"
SHARED = "{medium: ddr5, gib: 1024, scope: node}"
REMOTE = "{medium: rdma-pool, gib: 4000}"


def deployment(engine: str = "sglang", tiers: str = DRAM, movement: str = "{}", host: str = "hgx-h100-8") -> list[str]:
    """Settings that make the shipped deployment another one."""
    return [
        f"spec.pools.0.host={host}",
        f"spec.pools.0.engine={{name: {engine}}}",
        f"spec.pools.0.tiers=[{tiers}]",
        f"spec.pools.0.movement={movement}",
    ]


@pytest.mark.parametrize(
    ("engine", "tiers", "movement", "key", "message"),
    [
        ("sglang", "{medium: ddr5, gib: 0}", "{}", "tiers.0.gib", "must be greater than 0, got 0"),
        ("sglang", f"{DRAM}, {{medium: nvme-gen5, gib: 9, ttl_s: 0}}", "{}", "tiers.1.ttl_s", "must be greater than 0"),
        ("sglang", "{medium: ddr5, gib: 9, ttl_s: -1}", "{}", "tiers.0.ttl_s", "must be greater than 0, got -1"),
        (
            "sglang",
            "{medium: ddr5, gib: 9, ttl_s: 60}",
            "{}",
            "tiers.0.ttl_s",
            "nothing expires in HiCache's host tier",
        ),
        ("sglang", "{medium: ddr5, gib: 9, reclaim: pressure}", "{}", "tiers.0.reclaim", "pressure needs ttl_s"),
        (
            "sglang",
            "{medium: ddr5, gib: 9, ttl_s: 60, reclaim_period_s: 5}",
            "{}",
            "tiers.0.reclaim_period_s",
            "needs reclaim: periodic",
        ),
        ("sglang", "{medium: ddr5, gib: 9, eviction: best}", "{}", "tiers.0.eviction", "expected 'lru', 'arc'"),
        ("sglang", "{medium: ddr5, gib: 9, scope: rack}", "{}", "tiers.0.scope", "expected 'worker', 'node' or"),
        (
            "sglang",
            "{medium: ddr5, gib: 9, scope: node}",
            "{}",
            "tiers.0.scope",
            "HiCache's nearest tier is each worker",
        ),
        (
            "sglang",
            f"{DRAM}, {REMOTE}, {DISK}",
            "{}",
            "tiers.2.scope",
            "node: narrower than that of the tier before",
        ),
        (
            "sglang",
            f"{DRAM}, {DISK}",
            "{hierarchy: exclusive}",
            "movement.hierarchy",
            "is about two stores behind the host's memory: add them as second and third",
        ),
        ("vllm", DRAM, "{hierarchy: exclusive}", "movement.hierarchy", "has no such setting; leave it at inclusive"),
        ("sglang", ", ".join([DRAM] * 4), "{}", "tiers", "may have 3 entries at most, got 4"),
        ("sglang", DISK, "{}", "tiers.0.medium", "HiCache needs host memory (dram or cxl) here, nvme-gen5 is nvme"),
        (
            "sglang",
            "{medium: cxl-dram, gib: 300}",
            "{}",
            "tiers.0.scope",
            "node: HiCache's nearest tier is each worker's",
        ),
        (
            "sglang",
            DRAM,
            "{kv_connector: offload}",
            "movement.kv_connector",
            "SGLang has no offload; known: hicache, lmcache",
        ),
        (
            "sglang",
            DRAM,
            "{chunk_tokens: 512}",
            "movement.chunk_tokens",
            "HiCache has no such setting; leave it at 256",
        ),
        ("sglang", DRAM, "{save_decode: true}", "movement.save_decode", "has no such setting; leave it at false"),
        ("sglang", DRAM, "{prefetch: timeout}", "movement.prefetch", "add one as the second entry of tiers"),
        (
            "sglang",
            DRAM,
            "{prefetch_threshold_tokens: 9}",
            "movement.prefetch_threshold_tokens",
            "is about a disk or pool behind the host's memory",
        ),
        ("vllm", f"{DRAM}, {DISK}", "{}", "tiers", "vLLM's native offloading has 1 at most, got 2"),
        ("vllm", "{medium: ddr5, gib: 9, eviction: lfu}", "{}", "tiers.0.eviction", "no lfu; known: lru, arc"),
        ("vllm", DRAM, "{write_policy: write_back}", "movement.write_policy", "vLLM's native offloading has no such"),
        ("trtllm", "{medium: ddr5, gib: 9, eviction: arc}", "{}", "tiers.0.eviction", "has no arc; known: lru"),
        (
            "trtllm",
            DRAM,
            "{store_threshold: 2}",
            "movement.store_threshold",
            "TensorRT-LLM's native offloading has no such",
        ),
        (
            "trtllm",
            DRAM,
            "{kv_connector: lmcache}",
            "movement.kv_connector",
            "TensorRT-LLM has no lmcache; known: offload",
        ),
        (
            "vllm",
            "{medium: ddr5, gib: 9, eviction: arc}",
            "{kv_connector: lmcache}",
            "tiers.0.eviction",
            "LMCache has no arc; known: lru, lfu, fifo, mru",
        ),
        (
            "vllm",
            DRAM,
            "{kv_connector: lmcache, chunk_tokens: 100}",
            "movement.chunk_tokens",
            "no multiple of the engine's pages",
        ),
        (
            "vllm",
            f"{DRAM}, {{medium: nvme-gen5, gib: 9, scope: worker, eviction: lfu}}",
            "{kv_connector: lmcache}",
            "tiers.1.eviction",
            "one cache_policy for all tiers of a worker, here lru",
        ),
        (
            "vllm",
            f"{DRAM}, {DRAM}",
            "{kv_connector: lmcache}",
            "tiers.1.medium",
            "one memory and one disk (nvme) of a worker's own",
        ),
        (
            "vllm",
            f"{DRAM}, {PRIVATE_DISK}, {PRIVATE_DISK}",
            "{kv_connector: lmcache}",
            "tiers.2.medium",
            "one disk (nvme)",
        ),
        (
            "vllm",
            f"{SHARED}, {PRIVATE_DISK}",
            "{kv_connector: lmcache}",
            "tiers.1.scope",
            "behind ddr5, which is of scope node",
        ),
        (
            "vllm",
            f"{DRAM}, {REMOTE}, {DISK}",
            "{kv_connector: lmcache}",
            "tiers.2.scope",
            "node: nvme-gen5 lies behind",
        ),
        (
            "sglang",
            SHARED,
            "{kv_connector: lmcache}",
            "tiers.0.scope",
            "node: LMCache's nearest tier is each worker's own",
        ),
        ("vllm", SHARED, "{}", "tiers.0.scope", "node: vLLM's native offloading's nearest tier is each worker's own"),
        (
            "sglang",
            f"{DRAM}, {{medium: rdma-pool, gib: 9, scope: node}}",
            "{}",
            "tiers.1.scope",
            "node: rdma-pool is outside every node; its scope is cluster",
        ),
    ],
)
def test_what_is_refused(engine: str, tiers: str, movement: str, key: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        load_deployment("qwen3-32b-h100-tp2", deployment(engine, tiers, movement))
    assert caught.value.key == f"spec.pools.0.{key}"
    assert message in caught.value.message


@pytest.mark.parametrize(
    ("engine", "tiers", "movement"),
    [
        ("sglang", "", "{}"),
        ("sglang", "", "{prefetch: timeout}"),  # of no effect without tiers
        ("sglang", f"{DRAM}, {DISK}", "{prefetch: timeout, write_policy: write_back, prefetch_timeout_base_s: 0}"),
        ("sglang", "{medium: cxl-dram, gib: 300, scope: worker}, {medium: ddr5, gib: 900, scope: node}", "{}"),
        ("sglang", f"{DRAM}, {DISK}", "{kv_connector: lmcache}"),
        ("vllm", "{medium: ddr5, gib: 256, eviction: arc}", "{store_threshold: 2}"),
        ("vllm", f"{DRAM}, {PRIVATE_DISK}, {REMOTE}", "{kv_connector: lmcache, save_decode: true, chunk_tokens: 512}"),
        ("vllm", f"{DRAM}, {REMOTE}", "{kv_connector: lmcache}"),
        ("vllm", f"{SHARED}, {DISK}, {REMOTE}", "{kv_connector: lmcache}"),
        (
            "vllm",
            "{medium: cxl-dram, gib: 300}, {medium: ddr5, gib: 900, scope: cluster, eviction: lfu}",
            "{kv_connector: lmcache}",
        ),
        ("trtllm", DRAM, "{}"),
        (
            "sglang",
            f"{DRAM}, {DISK[:-1]}, eviction: belady, ttl_s: 60, reclaim: periodic, reclaim_period_s: 9}}",
            "{}",
        ),
    ],
)
def test_what_is_taken(engine: str, tiers: str, movement: str) -> None:
    pool = load_deployment("qwen3-32b-h100-tp2", deployment(engine, tiers, movement)).deployment.pool
    assert PoolSpec.model_validate(pool.model_dump()) == pool


def test_scopes_are_written_out() -> None:
    pool = load_deployment("qwen3-32b-h100-tp2", deployment(tiers=f"{DRAM}, {DISK}")).deployment.pool
    assert [tier.scope for tier in pool.tiers] == ["worker", "node"]


@pytest.mark.parametrize("engine", KV_CONNECTORS)
def test_the_engine_s_own_kv_connector_is_the_default(engine: str) -> None:
    spec = EngineSpec.model_validate({"name": engine})
    assert PoolSpec(accelerator="h100-sxm", engine=spec).kv_connector == KV_CONNECTORS[spec.name][0]
    assert PoolSpec(accelerator="h100-sxm", engine=spec, movement=MovementSpec()).movement.kv_connector is None


OLD = """\
apiVersion: hisearch/v1
kind: Deployment
metadata: {name: old}
spec:
  model: qwen3-8b
  pools:
    - accelerator: h100-sxm
      engine: {name: sglang}
      host_tier: {medium: ddr5, gib_per_worker: 128}
"""


def test_what_replaced_the_host_tier_is_said(tmp_path: Path) -> None:
    path = tmp_path / "old.yaml"
    path.write_text(OLD)
    with pytest.raises(SpecError) as caught:
        load_deployment(path)
    assert (caught.value.line, caught.value.key) == (9, "spec.pools.0.host_tier")
    assert caught.value.message == "replaced by tiers; write tiers: [{medium: ddr5, gib: 128}]"
    with pytest.raises(SpecError, match="replaced by tiers"):
        load_deployment("qwen3-32b-h100-tp2", ["spec.pools.0.host_tier.gib_per_worker=64"])


def test_a_refused_key_has_its_line(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        OLD.replace("host_tier: {medium: ddr5, gib_per_worker: 128}", "movement:\n        save_decode: true")
    )
    with pytest.raises(SpecError) as caught:
        load_deployment(path)
    assert (caught.value.line, caught.value.key) == (10, "spec.pools.0.movement.save_decode")


def _host(folder: Path, *left_out: str) -> str:
    """A host of its own that lacks what ``left_out`` names."""
    import yaml

    document = yaml.safe_load((shipped_root() / "profiles/hosts/hgx-h100-8.yaml").read_text())
    document["metadata"]["name"] = "mine"
    for key in left_out:
        del document["spec"][key]
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump(document))
    return str(path)


@pytest.mark.parametrize(
    ("left_out", "tier", "message"),
    [
        (("nvme", "nvme_bytes"), DISK, "node: {host} has no disks"),
        (("nvme_bytes",), PRIVATE_DISK, "worker: {host} has no disks"),
        (("network",), REMOTE, "cluster: {host} has no network to a shared store"),
        (("network",), "{medium: nvme-gen5, gib: 9, scope: cluster}", "cluster: {host} has no network"),
    ],
)
def test_a_scope_that_no_node_has(tmp_path: Path, left_out: tuple[str, ...], tier: str, message: str) -> None:
    host = _host(tmp_path, *left_out)
    with pytest.raises(SpecError) as caught:
        load_deployment("qwen3-32b-h100-tp2", deployment(tiers=f"{DRAM}, {tier}", host=host))
    assert caught.value.key == "spec.pools.0.tiers.1.scope"
    assert message.format(host=host) in caught.value.message


def test_nothing_is_shared_by_a_node_that_is_not_known(tmp_path: Path) -> None:
    text = (shipped_root() / "profiles/accelerators/h100-sxm.yaml").read_text()
    card = tmp_path / "card.yaml"
    card.write_text(text.replace("  host: hgx-h100-8\n", "").replace("name: h100-sxm", "name: card"))
    settings = [f"spec.pools.0.accelerator={card}", f"spec.pools.0.tiers=[{DRAM}, {DISK}]"]
    with pytest.raises(SpecError, match="nothing says what a node is; give the pool a host"):
        load_deployment("qwen3-32b-h100-tp2", settings)
    settings.append("spec.pools.0.host=hgx-h100-8")
    assert load_deployment("qwen3-32b-h100-tp2", settings).deployment.pool.host == "hgx-h100-8"


@pytest.mark.parametrize(
    ("tiers", "key", "warning"),
    [
        (
            "{medium: ddr5, gib: 900}",
            "tiers.0.gib",
            "4 workers of tensor_parallel 2 with 900 GiB each need 3600 GiB of host memory; hgx-h100-8 has 2048 GiB",
        ),
        (
            "{medium: ddr5, gib: 300}, {medium: ddr5, gib: 900, scope: node}",
            "tiers.1.gib",
            "4 workers of tensor_parallel 2 with 300 GiB each and 900 GiB of the node need 2100 GiB of host memory",
        ),
        (f"{DRAM}, {{medium: nvme-gen4, gib: 30000}}", "tiers.1.gib", "30000 GiB of the node need 30000 GiB of disk"),
        (
            f"{DRAM}, {{medium: nvme-gen4, gib: 8000, scope: worker}}",
            "tiers.1.gib",
            "4 workers of tensor_parallel 2 with 8000 GiB each need 32000 GiB of disk",
        ),
        (
            "{medium: ddr5, gib: 256, eviction: slru}",
            "tiers.0.eviction",
            "SGLang evicts its host tier by engine.eviction, here lru: no flag sets this one",
        ),
    ],
)
def test_what_doctor_warns_of(tiers: str, key: str, warning: str) -> None:
    checkup = load_any(SHIPPED, deployment(tiers=tiers))
    assert checkup.problems == ()
    assert [issue.key for issue in checkup.warnings if warning in issue.message] == [f"spec.pools.0.{key}"]
    # What simulate says is the same.
    notes = setting_notes(load_deployment(SHIPPED, deployment(tiers=tiers)))
    assert [note.key for note in notes if warning in note.message] == [f"spec.pools.0.{key}"]
    assert set(notes) <= set(checkup.warnings)


def test_a_store_that_write_back_leaves_empty_is_warned_of() -> None:
    settings = deployment(tiers=f"{DRAM}, {DISK}, {REMOTE}", movement="{write_policy: write_back}")
    assert [(note.key, note.message) for note in setting_notes(load_deployment(SHIPPED, settings))] == [
        (
            "spec.pools.0.movement.write_policy",
            "write_back: SGLang writes nothing to storage then; nothing will ever be in nvme-gen5 and rdma-pool, "
            "at full price",
        )
    ]
    assert setting_notes(load_deployment(SHIPPED, deployment(tiers=f"{DRAM}, {DISK}"))) == []
    assert setting_notes(load_deployment(SHIPPED, deployment(movement="{write_policy: write_back}"))) == []


def test_windows_behind_tiers_are_noted() -> None:
    def noted(engine: str, tiers: str = DRAM) -> bool:
        given = [*deployment(engine, tiers=tiers), "spec.model=gpt-oss-120b"]
        return any("sliding window" in note.message for note in setting_notes(load_deployment(SHIPPED, given)))

    assert noted("vllm")
    assert not noted("sglang")
    assert not noted("vllm", tiers="")


def test_a_store_of_the_cluster_takes_nothing_of_a_host() -> None:
    tiers = f"{DRAM}, {{medium: nvme-gen4, gib: 1e6, scope: cluster}}"
    checkup = load_any(SHIPPED, deployment(tiers=tiers))
    assert not any("GiB of disk" in issue.message for issue in checkup.warnings)


def test_memory_that_the_host_does_not_have_is_warned_of() -> None:
    grace = ["spec.pools.0.accelerator=gb200", *deployment(tiers=DRAM, host="gb200-nvl72-tray")]
    notes = {note.message: note.key for note in setting_notes(load_deployment(SHIPPED, grace))}
    assert notes["ddr5: the main memory of gb200-nvl72-tray is lpddr5x"] == "spec.pools.0.tiers.0.medium"
    matching = [
        "spec.pools.0.accelerator=gb200",
        *deployment(tiers=DRAM.replace("ddr5", "lpddr5x"), host="gb200-nvl72-tray"),
    ]
    assert not any("main memory" in note.message for note in setting_notes(load_deployment(SHIPPED, matching)))


def test_what_one_rank_of_a_worker_in_two_hosts_stores_must_fit_in_one() -> None:
    """MLA under LMCache: the first rank's host has all of it."""
    tiers = "{medium: lpddr5x, gib: 1500}"
    wide = deployment("vllm", tiers, "{kv_connector: lmcache}", host="gb200-nvl72-tray")
    wide += ["spec.pools.0.accelerator=gb200", "spec.pools.0.tensor_parallel=8"]

    def warnings_of(model: str) -> list[str]:
        checkup = load_any(SHIPPED, [*wide, f"spec.model={model}"])
        return [warning.message for warning in checkup.warnings if "GiB of host memory" in warning.message]

    (message,) = warnings_of("deepseek-v3")
    assert message.endswith("with 1500 GiB needs 1500 GiB of host memory; gb200-nvl72-tray has 894.07 GiB")
    assert warnings_of("qwen3-32b") == []
