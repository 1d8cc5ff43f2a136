"""Digests of results: every time stamp, step and count of many random deployments, and fronts of studies.

A change that is to change no result is held against them::

    python -m benchmarks.results_digest write digests.json      # on the tree before the change
    python -m benchmarks.results_digest compare digests.json    # on the tree after it; says what differs

Deployments are drawn over engines, tiers, disaggregated prefill and decode, attention groups, pipelines, drafted
tokens, windows, states, agents and devices, and are given as documents: nothing here depends on how the package is laid
out, beside its public functions and the registries of policies. Policies are dealt from these, each as often as any
other. A deployment that the specs refuse is a result too: the kind of its error. Policies that no simulated deployment
has are named at the end. A file holds for the policies that there are: a new one changes what is drawn.
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
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml

import hisearch
from hisearch.base.policies import (
    ADMISSIONS,
    EVICTIONS,
    PREFETCHES,
    QUEUE_ORDERS,
    ROUTERS,
    WRITE_POLICIES,
    Policy,
    Registry,
)
from hisearch.cli.errors import NOTHING_FEASIBLE

DEPLOYMENTS, SEED = 300, 20261129
STUDIES = ("quickstart", "agent-society", "pim-cxl-or-gpu")
WORKLOADS = {"chat-multiturn": 500, "coding-agent": 150, "mooncake-like": 250, "sharegpt-closed-loop": 400}
#: Releases whose rules are simulated; "": the newest known one's.
RELEASES = {"vllm": ("", "", "0.19.1", "0.23.0"), "sglang": ("", "", "0.5.9"), "trtllm": ("",)}
#: Workloads that have no arrival rate.
CLOSED_LOOPS = ("sharegpt-closed-loop", "agent-society")
KV_CONNECTORS = {"sglang": ("hicache",), "vllm": ("offload", "lmcache"), "trtllm": ("offload",)}
#: Eviction policies of tiers that a KV connector's own code has; HiCache's stores have all.
TIER_EVICTIONS = {"lmcache": ("lru", "lfu", "fifo", "mru"), "vllm": ("lru", "arc"), "trtllm": ("lru",)}


class Dealer:
    """Draws, and of policies each as often as any other."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self._decks: dict[tuple[str, ...], list[str]] = {}

    def choose(self, values: Iterable[Any]) -> Any:
        """Any of ``values``."""
        return self.rng.choice(list(values))

    def chance(self, probability: float) -> bool:
        """True with ``probability``."""
        return self.rng.random() < probability

    def deal(self, names: Iterable[str]) -> str:
        """The next of ``names`` of a shuffled deck, which begins anew where it ends."""
        key = tuple(names)
        deck = self._decks.setdefault(key, [])
        if not deck:
            deck += self.rng.sample(key, len(key))
        return deck.pop()

    def policy(self, registry: Registry[Any]) -> dict[str, Any]:
        """The next policy of ``registry``, half of the time with values that a search tries of its parameters."""
        name = self.deal(registry)
        settings: dict[str, Any] = {"policy": name}
        if self.chance(0.5):
            settings |= {p.name: self.choose(p.search) for p in registry[name].parameters if p.search}
            values = {p.name: settings.get(p.name, p.default) for p in registry[name].parameters}
            silent = {p.name for p in registry[name].parameters if not p.has_effect(values)}
            settings = {key: value for key, value in settings.items() if key not in silent}
        return settings


def engine(draw: Dealer, name: str) -> dict[str, Any]:
    """Settings of an engine."""
    chosen: dict[str, Any] = {
        "name": name,
        "version": draw.choose(RELEASES[name]),
        "chunk_tokens": draw.choose([512, 2048, 8192]),
        "max_running_requests": draw.choose([16, 64, 256]),
        "memory_fraction": draw.choose([0.4, 0.6, 0.9]),
        "schedule": draw.deal(order for order, policy in QUEUE_ORDERS.items() if name in policy.engines),
        "overlap": draw.chance(0.7),
        "prefix_caching": draw.chance(0.9),
        "chunked_prefill": draw.chance(0.9),
    }
    if chosen["schedule"] == "edf":
        chosen["ttft_targets_s"] = [1.0, None]
    if name == "sglang":
        chosen["eviction"] = draw.deal(eviction for eviction, policy in EVICTIONS.items() if policy.engine)
    if name == "trtllm":
        chosen["capacity_policy"] = draw.choose(["guaranteed_no_evict", "max_utilization"])
    return chosen


def tiers(draw: Dealer, name: str) -> dict[str, Any]:
    """Tiers of a pool and what moves KV between them."""
    kv_connector = draw.choose(KV_CONNECTORS[name])
    # HiCache's host pool must exceed the device's.
    sizes = [400, 900] if kv_connector == "hicache" else [8, 32, 128]
    host: dict[str, Any] = {"medium": "ddr5", "gib": draw.choose(sizes)}
    if kv_connector == "offload":
        host["eviction"] = draw.deal(TIER_EVICTIONS[name])
        return {"tiers": [host], "movement": {"kv_connector": kv_connector}}
    tiers = [host]
    if draw.chance(0.6):
        disk: dict[str, Any] = {"medium": draw.choose(["nvme-gen4", "rdma-pool"]), "gib": draw.choose([50, 500])}
        if kv_connector == "hicache":
            disk["eviction"] = draw.deal(eviction for eviction, policy in EVICTIONS.items() if policy.stores)
            if draw.chance(0.3):
                disk["ttl_s"] = 60
        else:
            disk["eviction"] = draw.deal(TIER_EVICTIONS[kv_connector])
        tiers.append(disk)
    movement: dict[str, Any] = {"kv_connector": kv_connector}
    if kv_connector == "lmcache":
        for tier in tiers:
            tier["eviction"] = tiers[-1].get("eviction", "lru")
        return {"tiers": tiers, "movement": movement}
    movement["write_policy"] = draw.deal(WRITE_POLICIES)
    if len(tiers) > 1:
        movement["prefetch"] = draw.deal(PREFETCHES)
    return {"tiers": tiers, "movement": movement}


def split(draw: Dealer, model: str, name: str) -> dict[str, Any]:
    """Degrees of parallelism of a worker."""
    if model == "qwen3.5-397b-a17b":
        return {"tensor_parallel": 8}
    if name != "trtllm" and model in ("qwen3-30b-a3b", "gpt-oss-120b") and draw.chance(0.4):
        groups = draw.choose([2, 4])
        return {"attention_data_parallel": groups, "expert_parallel": groups}
    if name != "trtllm" and draw.chance(0.25):
        return {"tensor_parallel": 2, "pipeline_parallel": 2}
    return {"tensor_parallel": draw.choose([1, 2, 4])}


def drafts(draw: Dealer) -> dict[str, Any]:
    """Speculative decoding with stated acceptance, so that every model has it."""
    method = draw.choose(["eagle3", "eagle3", "ngram"])
    return {"method": method, "draft_tokens": draw.choose([1, 3]), "acceptance": [0.8, 0.7, 0.5], "seed": 7}


#: Kinds of deployments, as often as they stand here.
KINDS = (
    *["plain"] * 5, *["tiers"] * 4, *["disaggregated"] * 3, *["several"] * 2, "devices", *["agents"] * 2,
    *["windows"] * 2, *["states"] * 2, *["drafts"] * 3,
)  # fmt: skip


def deployment(draw: Dealer) -> tuple[dict[str, Any], str]:
    """A Deployment's spec and the workload that it serves."""
    kind = draw.deal(f"{index:02d} {kind}" for index, kind in enumerate(KINDS))[3:]
    name = draw.choose(["vllm", "sglang", "trtllm"] if kind in ("plain", "disaggregated") else ["vllm", "sglang"])
    if kind == "tiers":
        name = draw.choose(KV_CONNECTORS)
    model = draw.choose(["llama-3.1-8b", "qwen3-32b", "qwen3-30b-a3b"])
    card = draw.choose(["h100-sxm", "h200", "b200", "a100-80gb"])
    if kind in ("windows", "states"):
        model, card = {"windows": "gpt-oss-120b", "states": "qwen3.5-397b-a17b"}[kind], draw.choose(["h200", "b200"])
    pool: dict[str, Any] = {"name": "main", "accelerator": card, "replicas": draw.choose([1, 2, 4])}
    pool |= {"engine": engine(draw, name)} | split(draw, model, name)
    spec: dict[str, Any] = {"model": model, "pools": [pool], "router": draw.policy(ROUTERS)}
    if draw.chance(0.4):
        spec["admission"] = draw.policy(ADMISSIONS)
    workload = draw.choose(WORKLOADS)
    if kind in ("windows", "states"):
        # By the newest rules, which alone keep windows and states apart.
        pool["engine"] |= {"version": "", "memory_fraction": 0.9, "chunked_prefill": True}
        pool |= {"weight_dtype": "fp8"} if kind == "states" else {}
        if draw.chance(0.25):
            pool |= tiers(draw, name)
            pool.pop("pipeline_parallel", None)
    elif kind == "drafts":
        pool["engine"] |= {"version": "", "speculation": drafts(draw), "overlap": draw.chance(0.5)}
        pool.pop("pipeline_parallel", None)
        if name == "sglang":
            pool["engine"] |= {"schedule": draw.choose(["fcfs", "lpm", "lof"]), "ttft_targets_s": []}
    elif kind == "tiers":
        pool |= tiers(draw, name)
        pool.pop("pipeline_parallel", None)
    elif kind == "disaggregated":
        pool |= {"name": "prefill", "role": "prefill"}
        decode = {**pool, "name": "decode", "role": "decode", "replicas": draw.choose([1, 2])}
        spec |= {"pools": [pool, decode], "transfer": {"fabric": draw.choose(["ib-ndr-400", "roce-200"])}}
        spec["decode_router"] = {"policy": draw.choose(["power_of_two", "round_robin", "least_outstanding_tokens"])}
        if draw.chance(0.4):
            pool |= tiers(draw, name)
            pool.pop("pipeline_parallel", None)
    elif kind == "several":
        other = draw.choose(["vllm", "sglang", "trtllm"])
        more: dict[str, Any] = {"name": "more", "accelerator": "l40s", "engine": engine(draw, other)}
        more |= {"tensor_parallel": 4, "replicas": 1}
        if draw.chance(0.5):
            more["autoscale"] = {"target": 8, "max_replicas": 3, "startup_s": 20}
        spec["pools"] = [pool, more]
    elif kind == "devices":
        devices = {"attached": {"pim": {"device": "hbm2-pim"}}, "operators": {"decode_attention": "pim"}}
        pool |= {"accelerator": "a6000", "devices": devices | {"schedule": draw.choose(["serial", "interleaved"])}}
        pool |= {"tensor_parallel": 1, "engine": {"name": "vllm", "max_running_requests": 64}}
        spec |= {"model": "llama-3.1-8b", "profile": "roofline"}
    elif kind == "agents":
        policy = draw.choose(["lru", "queued", "duration", "steps", "distance"])
        pool = {"name": "main", "accelerator": card, "tensor_parallel": 1, "replicas": draw.choose([1, 2])}
        pool |= {"engine": engine(draw, "sglang") | {"eviction": "lru", "prefix_caching": True}}
        spec |= {"model": "llama-3.1-8b", "pools": [pool]}
        pool |= {"agents": {"policy": policy, "slots": draw.choose([16, 64]), "adapters": {"rank": 64}}}
        if draw.chance(0.5):
            pool |= tiers(draw, "sglang")
        workload = "agent-society"
    return spec, workload


def policies_of(spec: Mapping[str, Any]) -> set[str]:
    """Policies of a deployment, each behind its kind: ``router kv_aware``."""
    names = {f"router {spec['router']['policy']}", f"admission {spec.get('admission', {}).get('policy', 'none')}"}
    for pool in spec["pools"]:
        movement = pool.get("movement", {})
        names |= {
            f"order {pool['engine'].get('schedule', 'fcfs')}",
            f"eviction {pool['engine'].get('eviction', 'lru')}",
        }
        names |= {f"eviction {tier.get('eviction', 'lru')}" for tier in pool.get("tiers", ())}
        names |= {f"write_policy {movement.get('write_policy', '')}", f"prefetch {movement.get('prefetch', '')}"}
        if "agents" in pool:
            names.add(f"eviction {pool['agents']['policy']}")
    return names


def all_policies() -> set[str]:
    """Policies that there are, as ``policies_of`` has them."""
    kinds: dict[str, Mapping[str, Policy]] = {
        "router": ROUTERS,
        "admission": ADMISSIONS,
        "order": QUEUE_ORDERS,
        "eviction": EVICTIONS,
        "write_policy": WRITE_POLICIES,
        "prefetch": PREFETCHES,
    }
    return {f"{kind} {name}" for kind, registry in kinds.items() for name in registry}


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
            # What a result does not have counts as what no version had: a new optional field changes no digest.
            if getattr(value, field.name) is not None:
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
            run = hisearch.simulate_deployment(path, trace, seed=seed, load=load, log=True, carry_on=False)
        except (ValueError, OSError) as error:
            text = str(error).replace(folder, "").replace(Path(folder).name, "")
            return f"refused: {type(error).__name__} {text[:160]}"
    return digest(run.result)


def front_of(name: str) -> str:
    """Digest of a study's front and recommendation."""
    with tempfile.TemporaryDirectory() as folder:
        options = ["--out", folder, "--json", "--quiet"]
        command = [sys.executable, "-m", "hisearch", "run", f"studies/{name}.yaml", *options]
        done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
    if done.returncode not in (0, NOTHING_FEASIBLE):
        raise subprocess.CalledProcessError(done.returncode, command)
    answer = json.loads(done.stdout)
    kept = {key: answer[key] for key in ("front", "recommendation") if key in answer}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()


def digests(studies: bool, deployments: int = DEPLOYMENTS, note: bool = True) -> dict[str, str]:
    """All of them, by name."""
    results = {}
    draw, missing = Dealer(SEED), all_policies()
    for index in range(deployments):
        spec, workload = deployment(draw)
        engines = "+".join(pool["engine"]["name"] for pool in spec["pools"])
        title = f"{index:03d} {spec['model']} {engines} {spec['router']['policy']} {workload}"
        results[title] = simulated(spec, workload, index)
        if not results[title].startswith("refused"):
            missing -= policies_of(spec)
        if note:
            print(title, results[title][: 160 if results[title].startswith("r") else 12], file=sys.stderr, flush=True)
    if note:
        refused = sum(value.startswith("refused") for value in results.values())
        print(f"{deployments} deployments, {refused} of them refused", file=sys.stderr)
        print(f"policies that none of the others has: {', '.join(sorted(missing)) or 'none'}", file=sys.stderr)
    if studies:
        for name in STUDIES:
            results[f"study {name}"] = front_of(name)
            print(name, results[f"study {name}"][:30], file=sys.stderr, flush=True)
    return results


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
    results = digests(given.studies, given.deployments)
    differing = [name for name in results if results[name] != known.get(name)]
    for name in differing:
        print(f"differs: {name}: {known.get(name)} -> {results[name]}")
    print(f"{len(results) - len(differing)} of {len(results)} equal")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
