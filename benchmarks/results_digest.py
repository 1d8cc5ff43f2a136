"""Digests of results: every time stamp, step and count of many random deployments, and fronts of studies.

A change that is to change no result is held against them::

    python -m benchmarks.results_digest write digests.json      # on the tree before the change
    python -m benchmarks.results_digest compare digests.json    # on the tree after it; says what differs

Deployments are drawn over engines, routers, tiers, disaggregated prefill and decode, attention groups, pipelines,
agents and devices, and are given as documents: nothing here depends on how the package is laid out, beside its public
functions.
One that the specs refuse is a result too: the kind of its error.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import yaml

import hisearch

DEPLOYMENTS, SEED = 200, 20261123
STUDIES = ("quickstart", "agent-society", "pim-cxl-or-gpu")
WORKLOADS = {"chat-multiturn": 500, "coding-agent": 150, "mooncake-like": 250, "sharegpt-closed-loop": 400}
ROUTERS = (
    "random", "round_robin", "power_of_two", "cache_aware", "bucket", "least_outstanding_tokens", "consistent_hash",
    "kv_aware", "weighted", "cost_aware",
)  # fmt: skip
SCHEDULES = {
    "vllm": ("fcfs", "priority"), "sglang": ("fcfs", "priority", "lpm", "lof", "dfs-weight", "random"),
    "trtllm": ("fcfs",),
}  # fmt: skip
#: Releases whose rules are simulated; "": the newest known one's.
RELEASES = {"vllm": ("", "", "0.19.1", "0.23.0"), "sglang": ("", "", "0.5.9"), "trtllm": ("",)}
#: Workloads that have no arrival rate.
CLOSED_LOOPS = ("sharegpt-closed-loop", "agent-society")
EVICTIONS = ("lru", "lfu", "fifo", "mru", "filo", "slru", "priority")
STORE_EVICTIONS = (*EVICTIONS, "clock", "tlru", "arc", "gdsf")
MOVERS = {"sglang": ("hicache",), "vllm": ("offload", "lmcache"), "trtllm": ("offload",)}


def engine(rng: random.Random, name: str) -> dict[str, Any]:
    """Settings of an engine."""
    chosen: dict[str, Any] = {
        "name": name,
        "version": rng.choice(RELEASES[name]),
        "chunk_tokens": rng.choice([512, 2048, 8192]),
        "max_running_requests": rng.choice([16, 64, 256]),
        "memory_fraction": rng.choice([0.4, 0.6, 0.9]),
        "schedule": rng.choice(SCHEDULES[name]),
        "overlap": rng.random() < 0.7,
        "prefix_caching": rng.random() < 0.9,
        "chunked_prefill": rng.random() < 0.9,
    }
    if name == "sglang":
        chosen["eviction"] = rng.choice(EVICTIONS)
    if name == "trtllm":
        chosen["capacity_policy"] = rng.choice(["guaranteed_no_evict", "max_utilization"])
    return chosen


def tiers(rng: random.Random, name: str) -> dict[str, Any]:
    """Tiers of a pool and what moves KV between them."""
    mover = rng.choice(MOVERS[name])
    # HiCache's host pool must exceed the device's.
    sizes = [400, 900] if mover == "hicache" else [8, 32, 128]
    host: dict[str, Any] = {"medium": "ddr5", "gib": rng.choice(sizes)}
    if mover == "offload":
        host["eviction"] = rng.choice(["lru", "arc"] if name == "vllm" else ["lru"])
        return {"tiers": [host], "movement": {"kv_connector": mover}}
    found = [host]
    if rng.random() < 0.6:
        disk: dict[str, Any] = {"medium": rng.choice(["nvme-gen4", "rdma-pool"]), "gib": rng.choice([50, 500])}
        disk["eviction"] = rng.choice(STORE_EVICTIONS if mover == "hicache" else ("lru", "lfu", "fifo", "mru"))
        if mover == "hicache" and rng.random() < 0.3:
            disk["ttl_s"] = 60
        found.append(disk)
    if mover == "lmcache":
        for tier in found:
            tier["eviction"] = found[-1].get("eviction", "lru")
        return {"tiers": found, "movement": {"kv_connector": mover}}
    movement = {
        "kv_connector": mover,
        "write_policy": rng.choice(["write_through", "write_through_selective", "write_back"]),
    }
    if len(found) > 1:
        movement["prefetch"] = rng.choice(["best_effort", "wait_complete", "timeout"])
    return {"tiers": found, "movement": movement}


def split(rng: random.Random, model: str, name: str) -> dict[str, int]:
    """Degrees of parallelism of a worker."""
    if name != "trtllm" and model == "qwen3-30b-a3b" and rng.random() < 0.6:
        groups = rng.choice([2, 4])
        return {"attention_data_parallel": groups, "expert_parallel": groups}
    if name != "trtllm" and rng.random() < 0.25:
        return {"tensor_parallel": 2, "pipeline_parallel": 2}
    return {"tensor_parallel": rng.choice([1, 2, 4])}


def deployment(rng: random.Random) -> tuple[dict[str, Any], str]:
    """A Deployment's spec and the workload that it serves."""
    name, model = rng.choice(["vllm", "sglang", "trtllm"]), rng.choice(["llama-3.1-8b", "qwen3-32b", "qwen3-30b-a3b"])
    kind = rng.choice(["plain"] * 5 + ["tiers"] * 4 + ["apart"] * 3 + ["several"] * 2 + ["devices", "agents", "agents"])
    card = rng.choice(["h100-sxm", "h200", "b200", "a100-80gb"])
    pool: dict[str, Any] = {"name": "main", "accelerator": card, "replicas": rng.choice([1, 2, 4])}
    pool |= {"engine": engine(rng, name)} | split(rng, model, name)
    spec: dict[str, Any] = {"model": model, "pools": [pool], "router": {"policy": rng.choice(ROUTERS)}}
    workload = rng.choice(list(WORKLOADS))
    if kind == "tiers":
        pool |= tiers(rng, name)
        pool.pop("pipeline_parallel", None)
    elif kind == "apart":
        pool |= {"name": "prefill", "role": "prefill"}
        decode = {**pool, "name": "decode", "role": "decode", "replicas": rng.choice([1, 2])}
        spec |= {"pools": [pool, decode], "transfer": {"fabric": rng.choice(["ib-ndr-400", "roce-200"])}}
        spec["decode_router"] = {"policy": rng.choice(["power_of_two", "round_robin", "least_outstanding_tokens"])}
        if rng.random() < 0.4:
            pool |= tiers(rng, name)
            pool.pop("pipeline_parallel", None)
    elif kind == "several":
        other = rng.choice(["vllm", "sglang", "trtllm"])
        more: dict[str, Any] = {"name": "more", "accelerator": "l40s", "engine": engine(rng, other)}
        more |= {"tensor_parallel": 4, "replicas": 1}
        if rng.random() < 0.5:
            more["autoscale"] = {"target": 8, "max_replicas": 3, "startup_s": 20}
        spec["pools"] = [pool, more]
    elif kind == "devices":
        devices = {"attached": {"pim": {"device": "hbm2-pim"}}, "operators": {"decode_attention": "pim"}}
        pool |= {"accelerator": "a6000", "devices": devices | {"schedule": rng.choice(["serial", "interleaved"])}}
        pool |= {"tensor_parallel": 1, "engine": {"name": "vllm", "max_running_requests": 64}}
        spec |= {"model": "llama-3.1-8b", "profile": "roofline"}
    elif kind == "agents":
        policy = rng.choice(["lru", "queued", "duration", "steps", "distance"])
        pool = {"name": "main", "accelerator": card, "tensor_parallel": 1, "replicas": rng.choice([1, 2])}
        pool |= {"engine": engine(rng, "sglang") | {"eviction": "lru", "prefix_caching": True}}
        spec |= {"model": "llama-3.1-8b", "pools": [pool]}
        pool |= {"agents": {"policy": policy, "slots": rng.choice([16, 64]), "adapters": {"rank": 64}}}
        if rng.random() < 0.5:
            pool |= tiers(rng, "sglang")
        workload = "agent-society"
    return spec, workload


def digest(value: Any) -> str:
    """Of all arrays and numbers in a dataclass, in the order of its fields: what they are called does not matter."""
    state = hashlib.sha256()
    for name, part in sorted(_parts("", value)):
        state.update(name.encode())
        state.update(part)
    return state.hexdigest()


def _parts(name: str, value: Any) -> Iterator[tuple[str, bytes]]:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        for index, field in enumerate(dataclasses.fields(value)):
            yield from _parts(f"{name}.{index:03d}", getattr(value, field.name))
    elif isinstance(value, np.ndarray) and value.dtype.names is not None:
        for index, field_name in enumerate(value.dtype.names):
            yield from _parts(f"{name}.{index:03d}", np.ascontiguousarray(value[field_name]))
    elif isinstance(value, np.ndarray):
        yield name, str(value.shape).encode() + value.tobytes()
    elif isinstance(value, tuple | list):
        for index, part in enumerate(value):
            yield from _parts(f"{name}[{index}]", part)
    else:
        yield name, repr(value).encode()


def simulated(spec: dict[str, Any], workload: str, seed: int) -> str:
    """Digest of a deployment's result, or the kind of error that refuses it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "deployment.yaml"
        document = {"apiVersion": "hisearch/v1", "kind": "Deployment", "metadata": {"name": "drawn"}, "spec": spec}
        path.write_text(yaml.safe_dump(document), encoding="utf-8")
        trace = workload
        if workload in WORKLOADS:
            trace = hisearch.load_trace(workload, limit=WORKLOADS[workload])  # type: ignore[assignment]
        load = 1.0 if workload in CLOSED_LOOPS else 2.0
        try:
            # Not carried on until a steady state shows: a thousand short runs say more than a long one.
            found = hisearch.simulate_deployment(path, trace, seed=seed, load=load, log=True, carry_on=False)
        except (ValueError, OSError) as error:
            return f"refused: {type(error).__name__} {str(error).replace(folder, '')[:160]}"
    return digest(found.result)


def front_of(name: str) -> str:
    """Digest of a study's front and recommendation."""
    with tempfile.TemporaryDirectory() as folder:
        options = ["--out", folder, "--json", "--quiet"]
        command = [sys.executable, "-m", "hisearch", "run", f"studies/{name}.yaml", *options]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found = json.loads(done.stdout)
    kept = {key: found[key] for key in ("front", "recommendation") if key in found}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()


def digests(studies: bool, deployments: int = DEPLOYMENTS, note: bool = True) -> dict[str, str]:
    """All of them, by name."""
    found = {}
    rng = random.Random(SEED)
    for index in range(deployments):
        spec, workload = deployment(rng)
        engines = "+".join(pool["engine"]["name"] for pool in spec["pools"])
        title = f"{index:03d} {spec['model']} {engines} {spec['router']['policy']} {workload}"
        found[title] = simulated(spec, workload, index)
        if note:
            print(title, found[title][:30], file=sys.stderr, flush=True)
    if studies:
        for name in STUDIES:
            found[f"study {name}"] = front_of(name)
            print(name, found[f"study {name}"][:30], file=sys.stderr, flush=True)
    return found


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["write", "compare"])
    parser.add_argument("file", type=Path)
    parser.add_argument("--studies", action="store_true", help="fronts of three studies too (some minutes)")
    parser.add_argument("--deployments", type=int, default=DEPLOYMENTS, help="how many are drawn (%(default)s)")
    given = parser.parse_args()
    if given.action == "write":
        given.file.write_text(json.dumps(digests(given.studies, given.deployments), indent=1), encoding="utf-8")
        return 0
    known = json.loads(given.file.read_text(encoding="utf-8"))
    found = digests(given.studies, given.deployments)
    differing = [name for name in found if found[name] != known.get(name)]
    for name in differing:
        print(f"differs: {name}: {known.get(name)} -> {found[name]}")
    print(f"{len(found) - len(differing)} of {len(found)} equal")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
