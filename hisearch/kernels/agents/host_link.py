"""A worker's link from host memory, as loads of objects and of KV use it: one at a time."""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.cache import objects
from hisearch.kernels.layout import agents as al
from hisearch.kernels.traffic import heaps


@kernel
def transfer(sim, w, o, a, seconds, now):
    """Begin the transfer of object ``o``, or of KV, over the link for agent ``a``."""
    loader = sim.agents.loaders[w]
    loader.object = o
    loader.agent = a
    link = sim.links[2 * w + 1]
    loader.begun_s = max(now, link.free_s)
    link.free_s = loader.begun_s + seconds
    k = objects.server(sim, w, al.LOADER)
    sim.servers[k].end_s = link.free_s
    heaps.server_set(sim, k)


@kernel
def kv_s(sim, w, tokens):
    """Seconds that the KV of ``tokens`` tokens takes over the idle link."""
    link = sim.links[2 * w + 1]
    return link.base_s + tokens * link.s_per_token


@kernel
def note_loaded(sim, w, o, seconds):
    """Account for a load of object ``o`` that took ``seconds``."""
    loader = sim.agents.loaders[w]
    pages = sim.agents.things[o].pages
    link = sim.links[2 * w + 1]
    link.busy_s += seconds
    link.tokens += pages * sim.config.page_tokens
    link.transfers += 1
    loader.loads += 1
    loader.loaded_pages += pages
    loader.load_s += seconds
