"""What ``invariants`` must know of SGLang's state: who holds KV, how much of it, and what admission has summed up."""

from __future__ import annotations

from hisearch.base.policies import EVICTIONS
from hisearch.kernels.cache import foresight
from hisearch.kernels.layout import sim as la

CLIP_OUTPUT_TOKENS = 4096


def unjoined(sim: la.Sim, w: int) -> list[int]:
    """Live requests of the last prefill, which join the running ones on the next pass."""
    worker = sim.workers[w]
    if worker.last not in (la.PREFILL_STEP, la.MIXED_STEP):
        assert worker.chunked == -1
        return []
    row = 2 * w + (int(worker.launched_step) & 1)
    entries = sim.prompts[row, : sim.launches[row].chunks].tolist()
    assert worker.chunked == sim.launches[row].partial
    assert worker.chunked in (-1, *entries)
    return [r for r in entries if sim.requests[r].outcome == la.IN_FLIGHT]


def running(sim: la.Sim, w: int) -> list[int]:
    """The running list."""
    requests, r = [], int(sim.workers[w].running_head)
    while r >= 0:
        requests.append(r)
        r = int(sim.requests[r].next)
    return requests


def decoding(sim: la.Sim, w: int) -> list[int]:
    """The running list without finished requests that are pending."""
    return [r for r in running(sim, w) if sim.requests[r].outcome == la.IN_FLIGHT]


def draining(sim: la.Sim, w: int) -> list[int]:
    """Requests that have left the batch with their last token in flight; those of a prefill are in no list."""
    requests = [r for r in range(len(sim.requests)) if sim.requests[r].worker == w and sim.requests[r].draining]
    assert len(requests) == sim.workers[w].draining
    listed, r = [], int(sim.workers[w].draining_head)
    while r >= 0:
        listed.append(r)
        r = int(sim.requests[r].next_aside)
    assert set(listed) <= set(requests)
    assert not requests or (sim.config.skips_last_decode and sim.config.overlap)
    assert all(sim.requests[r].outcome == la.IN_FLIGHT for r in requests)
    assert all(sim.requests[r].generated == sim.trace.output_tokens[r] for r in requests)
    return requests


def committed_tokens(sim: la.Sim, w: int, r: int) -> int:
    """Tokens of ``r`` with a slot: a fast-forward's first step has taken its slots, but is not on the clock yet."""
    if r in unjoined(sim, w) or sim.requests[r].draining:
        return int(sim.requests[r].computed)
    left = int(sim.requests[r].finish_clock - sim.workers[w].clock)
    made = int(sim.trace.input_tokens[r] + sim.trace.output_tokens[r]) - left
    return made - 1 + int(sim.workers[w].phase == la.FAST_FORWARDING)


def check_reserves(sim: la.Sim, w: int) -> None:
    """The sums over running requests are what walking over them gives; fully reserved ones have their own."""
    worker = sim.workers[w]
    longest = int(sim.config.capacity_pages * sim.config.page_tokens) - 1
    longest -= int(sim.config.page_tokens) if sim.pinned.any() and not sim.config.prefix_caching else 1

    def unused(r: int) -> int:
        most = min(int(sim.trace.max_output_tokens[r]), longest - int(sim.trace.input_tokens[r]))
        return most - int(sim.trace.output_tokens[r])

    horizons = {r: unused(r) + int(sim.requests[r].finish_clock) for r in decoding(sim, w)}
    sure = [r for r in horizons if sim.config.reserves_pinned and sim.pinned[r]]
    capped = [r for r in horizons if sim.requests[r].capped]
    assert len(capped) == worker.capped
    assert (len(sure), len({*sure} & {*capped})) == (worker.sure, worker.sure_capped)
    assert worker.horizon_tokens == sum(horizons[r] for r in horizons if r not in capped and r not in sure)
    assert worker.sure_horizon_tokens == sum(horizons[r] for r in sure if r not in capped)
    assert all(worker.next_uncapped <= horizons[r] - CLIP_OUTPUT_TOKENS for r in capped)
    finished_pending = [r for r in running(sim, w) if r not in horizons]
    assert worker.finished_pending == len(finished_pending)
    estimated = [r for r in finished_pending if not (sim.config.reserves_pinned and sim.pinned[r])]
    assert worker.finished_pending_tokens == sum(min(unused(r), CLIP_OUTPUT_TOKENS) for r in estimated)


def eviction_key(sim: la.Sim, d: int, policy: int) -> tuple[float, ...]:
    """Leaves, or runs of a store, with the least key go first."""
    node = sim.nodes[d]
    tick, serial = int(node.tick), int(node.serial)
    name = list(EVICTIONS)[policy]
    if name == "priority":
        return (int(sim.node_ranks[d].priority), tick, serial)
    if name == "tlru":
        return (int(node.end - sim.config.page_tokens < sim.hosted[d].dispensable_from), tick, serial)
    if name == "gdsf":
        return (float(sim.hosted[d].value), tick, serial)
    if name == "belady":
        following = int(foresight.next_use(sim, node.trace_node))
        return (-following, -int(node.begin) if following < la.NEVER else 0, tick, serial)
    return {
        "lru": (tick, serial),
        "arc": (tick, serial),
        "clock": (serial,),
        "s3fifo": (serial,),
        "lfu": (int(node.hits), tick, serial),
        "fifo": (serial,),
        "mru": (-tick, -serial),
        "filo": (-serial,),
        "slru": (int(node.hits >= 2), tick, serial),
    }[name]
