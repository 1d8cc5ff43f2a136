"""Usage of stores, links, agents' objects and pools in a simulation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from hisearch.hardware.power import PowerPlan

#: Power plan of a worker with no known draw besides its steps.
NO_POWER = PowerPlan()


@dataclass(frozen=True)
class StoreUse:
    """One store of a tier, or one worker's HBM.

    Attributes:
        tier: 0 for HBM, then as ``WorkerPlan.tiers`` from 1 on.
        first_worker, workers: the workers that share it.
        capacity_tokens: its size.
        peak_tokens: most in use at once. HBM: held by requests; the rest may all be cached. Host memory: including
            copies under way to it. Stores behind it: findable tokens. With DP ranks, like all fields, the sum over
            them.
        stored_tokens: written into it by the end of the run; LMCache rewrites and counts tokens already stored.
            read_tokens: read out of it, towards HBM. LMCache and HiCache read from behind host memory through host
            memory, which counts once in each tier. Both are 0 for HBM, which the steps read and write. coming_tokens:
            on their way into it then, under vLLM's offloading.
        evicted_tokens, expired_tokens: dropped for want of space, and after their time to live. For a decode worker's
            host pool, which passes everything on to storage (``read_tokens``): not accepted for want of space.
        demoted_tokens: also read out of it, and moved to the tier behind it (an exclusive hierarchy).
        hit_tokens: LMCache: tokens that hit in it at the first admission of their requests.
        pool: index of its pool.
    """

    tier: int
    first_worker: int
    workers: int
    capacity_tokens: int
    peak_tokens: int
    stored_tokens: int
    read_tokens: int
    evicted_tokens: int
    expired_tokens: int
    demoted_tokens: int = 0
    hit_tokens: int = 0
    pool: int = 0
    coming_tokens: int = 0


@dataclass(frozen=True)
class LinkUse:
    """One direction of a link, or of a store itself.

    Attributes:
        tier: that it leads to, as in ``StoreUse``. path: "medium" for a store's own bandwidth, including the worker's
            link to private host memory; "host" for a worker's link to shared host memory; "network" for a node's
            network, which leads to all tiers of the cluster; "memory" for host memory bandwidth that DP ranks of a
            worker share, in addition to their own links; "shared" for what slots of a host share on the way there.
        index: of the worker (for "medium" and "host", of its DP rank), store or node. write: towards the tier.
        busy_s: seconds in use, by the end of the run. tokens, transfers: sent, including those waiting or under way at
            the end. pool: index of its pool.
    """

    tier: int
    path: str
    index: int
    write: bool
    busy_s: float
    tokens: int
    transfers: int
    pool: int = 0


@dataclass(frozen=True)
class KvTransferUse:
    """KV transfers that a worker sent to decode workers, or received as a decode worker.

    Attributes:
        worker: its number. busy_s: seconds of use of its network. tokens, transfers: totals.
    """

    worker: int
    busy_s: float
    tokens: int
    transfers: int


class TierEnergy(NamedTuple):
    """Moving a token's KV in a tier: the medium's joules, the bytes on links, the medium's kind."""

    joules: float
    bytes: float
    kind: str = "dram"


@dataclass(frozen=True)
class ObjectUse:
    """Usage of agents' objects at one worker.

    Attributes:
        calls: that reached it. object_calls: of these, calls that need an object. resident_calls: of these, calls
            with all their objects resident.
        loads: completed. loads_ahead: of these, begun before their call. used_ahead: of these, used by a call
            afterwards. preempted: preempted loads. evicted: objects dropped for want of space.
        load_s: link time of the completed loads. stall_s: of it, time that steps waited. wasted_s: link time of the
            preempted loads.
        peak_tokens: most that the objects' pool held at once, in KV tokens.
        kv_tokens_ahead: tokens whose KV was loaded from host memory ahead of a call. kv_tokens_used: of these, still
            resident at the call. kv_load_s: link time of these loads.
        kv_tokens_fetched: tokens whose KV was fetched from storage into host memory ahead of a call.
        loaded_bytes: of objects, by completed loads. lost_bytes: of objects and KV, by preempted loads. Both over the
            host links of all ranks.
        host_bytes: of agents' objects in the worker's host memory, wherever they call: all of them, outside or inside
            the first tier; or their limit there, if the second tier holds all: on_disk_bytes.
        disk_reads: completed reads of objects from the second tier into host memory. disk_reads_ahead: of these, begun
            before their call. disk_preempted: preempted reads. host_evicted: host copies dropped for want of space.
        disk_s: unloaded time of the completed reads over the store's link. disk_wasted_s: likewise of the preempted.
        disk_bytes: of objects, by completed reads. disk_lost_bytes: by preempted reads.
    """

    calls: int
    object_calls: int
    resident_calls: int
    loads: int
    loads_ahead: int
    used_ahead: int
    preempted: int
    evicted: int
    load_s: float
    stall_s: float
    wasted_s: float
    peak_tokens: int
    kv_tokens_ahead: int = 0
    kv_tokens_used: int = 0
    kv_load_s: float = 0.0
    kv_tokens_fetched: int = 0
    loaded_bytes: float = 0.0
    lost_bytes: float = 0.0
    host_bytes: float = 0.0
    on_disk_bytes: float = 0.0
    disk_reads: int = 0
    disk_reads_ahead: int = 0
    disk_preempted: int = 0
    host_evicted: int = 0
    disk_s: float = 0.0
    disk_wasted_s: float = 0.0
    disk_bytes: float = 0.0
    disk_lost_bytes: float = 0.0


@dataclass(frozen=True)
class AdapterUse:
    """What a worker did with LoRA adapters.

    Attributes:
        slots: in device memory. slot_bytes: of all of them, over all ranks.
        requests: of the worker's own that ask for an adapter. adapters: that they ask for.
        host_adapters: that host memory holds; under SGLang all that the workload names.
        loads: copies into slots. evicted: adapters that lost theirs, SGLang's base model too, which
            takes a slot without a load. load_s: time of the copies.
        reads: from the host's disk. read_s: time of these.
        passed_over: times that a pass of the scheduler left a waiting request for want of a place for its adapter.
        steps: with adapters. step_adapters, step_tokens: sums over them of adapters, and of tokens with one.
        step_s: that adapters added to steps, without copies and reads.
    """

    slots: int
    slot_bytes: float
    requests: int
    adapters: int
    host_adapters: int
    loads: int
    evicted: int
    load_s: float
    reads: int
    read_s: float
    passed_over: int
    steps: int
    step_adapters: int
    step_tokens: int
    step_s: float


@dataclass(frozen=True)
class GrammarUse:
    """What a worker did with grammars of structured output.

    Attributes:
        requests: with a grammar, of the worker's own. grammars: of theirs.
        compilations: of grammars that it had not compiled. compile_s: time of these.
        waited: requests that waited for their grammar. wait_s: for how long, from their arrival at the engine until it
            would admit them.
        steps: with such requests. sequences: sum over them of sequences with a grammar. host_s: what the host took for
            these, beside the device or not.
        polled_s: SGLang: that passes of the scheduler waited for grammars.
    """

    requests: int
    grammars: int
    compilations: int
    compile_s: float
    waited: int
    wait_s: float
    steps: int
    sequences: int
    host_s: float
    polled_s: float


#: Fields of ``HintQuality`` that a run counts.
HINT_COUNTS = (
    "compared", "ordered", "ordered_by_use", "predicted_calls", "in_time", "lead_s", "samples", "said_near",
    "came_near", "near_as_said", "said", "came",
)  # fmt: skip


@dataclass(frozen=True)
class HintQuality:
    """What predictions of agents' next calls turned out to be worth in a run; see ``kernels.agents.worth``.

    Attributes:
        source: of the predictions, as in ``AgentMemorySpec.distance``.
        unit: of ``near``, ``said`` and ``came``: "frames" or "s".
        near: predicted times to a call up to which objects are loaded ahead.
        load_s: that loading an agent's objects takes over the idle link.
        compared: pairs of idle agents, one of which called. ordered: of these, with the caller predicted to call first.
            ordered_by_use: with the caller having called last.
        predicted_calls: with a prediction before them. in_time: predicted at least ``load_s`` before. lead_s: sum of
            the seconds from an agent's newest prediction to its call.
        samples: predictions sampled over time whose call came. said_near: of these, predicted within ``near``;
            came_near: that came within it; near_as_said: both. said, came: sums of predicted and of true times.
    """

    source: str
    unit: str
    near: float
    load_s: float
    compared: int
    ordered: int
    ordered_by_use: int
    predicted_calls: int
    in_time: int
    lead_s: float
    samples: int
    said_near: int
    came_near: int
    near_as_said: int
    said: float
    came: float


@dataclass(frozen=True)
class PoolUse:
    """A pool's workers among those of the fleet.

    Attributes:
        name, role: as in the deployment.
        first_worker, workers: index of the first one, and their number.
        kv_capacity_tokens: of a worker, or of each of its DP ranks. idle_w: idle power of a worker's accelerators,
            watts. power: its other draw; both on average where workers that share hardware come and go. model: that it
            serves. tier_energy: of moving a token's KV, by tier, nearest first. far_hit_tokens, fetches_ahead: of its
            workers, as in ``Result``. attached_idle_w: of idle_w, that of attached devices.
    """

    name: str
    role: str
    first_worker: int
    workers: int
    kv_capacity_tokens: int
    idle_w: float
    power: PowerPlan = NO_POWER
    model: str = ""
    tier_energy: tuple[TierEnergy, ...] = ()
    far_hit_tokens: int = 0
    fetches_ahead: bool = False
    attached_idle_w: float = 0.0
