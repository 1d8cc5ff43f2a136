"""Transfers between tiers still under way at the end of a run: counted when sent, and not arrived yet."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hisearch.kernels.layout import hicache as hl
from hisearch.kernels.layout import sim as la
from hisearch.kernels.layout import tiers as tl
from hisearch.kernels.vllm.output_write_back import COPIER


def _copies(sim: la.Sim, first: int) -> Iterator[int]:
    """Nodes of one of HiCache's streams of copies, in order."""
    d = first
    while d >= 0:
        yield d
        d = int(sim.hosted[d].next_copy)


def _write_backs(sim: la.Sim, k: int) -> Iterator[Any]:
    """Output write-backs in server ``k``'s queue, in order."""
    r = int(sim.servers[k].head)
    while r >= 0:
        yield sim.fleet.output_write_back[r]
        r = int(sim.fleet.output_write_back[r].next)


def copies(sim: la.Sim, w: int, end_s: float) -> tuple[int, int]:
    """Tokens on their way to worker ``w``'s host memory, and back, at ``end_s``: of SGLang or TensorRT-LLM.

    Steps wait for all copies back, and TensorRT-LLM's also for copies to the host, so that only the horizon cuts
    these. Of a node split during its copy, only the lower half is known to be under way.
    """
    to_host, back = (int(link.beyond_tokens) for link in sim.links[2 * w : 2 * w + 2])
    if sim.config.store_pool >= 0:
        late = [write_back for write_back in _write_backs(sim, hl.SERVERS * w + COPIER) if write_back.copied_s > end_s]
        return sum(int(write_back.end - write_back.begin) for write_back in late), back
    if sim.config.hicache and end_s != sim.fleet.config.horizon_s:
        late = [d for d in _copies(sim, int(sim.hosts[w].to_host_head)) if sim.hosted[d].at_s > end_s]
        to_host = sum(int(sim.nodes[d].end - sim.nodes[d].begin) for d in late)
    return to_host, back


def offload_transfers(sim: la.Sim, w: int, end_s: float) -> tuple[int, int]:
    """Under vLLM's offloading: tokens that worker ``w`` is sending to the host at ``end_s``, and has yet to send."""
    connector = sim.connectors[w]
    under_way, to_come, t, begun = 0, 0, int(connector.transfers_head), True
    while t >= 0:
        begun = begun and t != connector.prepared
        transfer = sim.transfers[t]
        if not begun or transfer.begun_s >= end_s:
            to_come += int(transfer.tokens)
        elif transfer.end_s > end_s:
            under_way += int(transfer.tokens)
        t = int(transfer.next)
    return under_way, to_come


def chunk_writes(sim: la.Sim, v: int, end_s: float) -> tuple[int, int]:
    """LMCache: unnoted chunks written to block table ``v`` by ``end_s``, and how many of them are new in it."""
    table, ring = sim.block_tables[v], sim.writes[v - int(sim.offloading.stores)]
    done = [ring[(int(table.writes_head) + k) % len(ring)] for k in range(int(table.writes))]
    done = [write for write in done if write.end_s <= end_s]
    return len(done), sum(int(sim.blocks[v, int(write.slot)].list) < 0 for write in done)


def chunks_held(sim: la.Sim, v: int) -> int:
    """LMCache: findable chunks of block table ``v``."""
    return int(sim.block_table_rows[v, 3 * tl.RECENT + tl.SIZE])
