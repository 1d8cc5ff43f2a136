"""The prefix cache alone: what every policy hits of a trace whose schedule is fixed.

Requests are taken one after another, in the trace's order (earliest arrival, then position in the file), whatever their
think times. Each looks up its prompt, then its pages are stored at once and whole; there is no scheduler, and no time
but that of the arrivals, which ttl alone looks at.

A cache of C tokens holds C // page_tokens pages. A page is found by all tokens up to its end, and is resident only with
all pages before it. A prompt's hit is the tokens of its leading resident pages; it may be the whole prompt, for its
partial last page is a page as well. (An engine computes at least one token, and stores whole pages alone.)

A request uses all pages of its prompt, those that it hit and those that it stores, from the last to the first: the tail
counts as used before the head, and goes first. While it is served its pages stay; others' are evicted for them, leaves
alone, that is pages that no resident page stands behind. Of a prompt longer than the cache the first pages are stored.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hisearch.base.dtypes import I4, I8
from hisearch.base.policies import EVICTIONS
from hisearch.specs.wording import unknown
from hisearch.traces.compiled import CompiledTrace
from hisearch.traces.stats import default_block_tokens, lru_hit_curve
from hisearch.validate.cache_settings import RECLAIMS, CacheSettings, complete_settings, earliest_arrivals_s

if TYPE_CHECKING:
    from hisearch.kernels.layout.pages import PageSim

#: Distinct pages up to which the policies that look at single pages are run: about 2 GB of their state.
MAX_PAGES = 40_000_000


@dataclass(frozen=True)
class Policy:
    """How a cache chooses the leaf to evict. oracle: it knows the future, and bounds what others can reach."""

    meaning: str
    oracle: bool = False


#: By name. "Stored" and "used" are counted in requests; ties do not occur among leaves, but under belady, where they do
#: not matter. Settings are those of ``CacheSettings``.
POLICIES: dict[str, Policy] = {
    name: Policy(policy.pages, oracle=policy.next_use) for name, policy in EVICTIONS.items() if policy.pages
} | {"ttl": Policy("least recently used; a page expires ttl_s after its last use and is not hit from then on")}


@dataclass(frozen=True)
class PolicyPoint:
    """What a cache of ``capacity_tokens`` hits under a policy; ``hit_rate`` is of all ``prompt_tokens``.

    tail_requests: prompts that leave more than the setting ``tail_tokens`` uncached; None without that.
    Of ttl alone, else None: expired_tokens: tokens of pages that had expired when they went or were stored anew;
    peak_tokens: room of the most pages held between two requests.
    """

    capacity_tokens: int
    policy: str
    oracle: bool
    hit_tokens: int
    prompt_tokens: int
    hit_rate: float
    tail_requests: int | None = None
    expired_tokens: int | None = None
    peak_tokens: int | None = None


class CacheRun(NamedTuple):
    """One cache under a policy: tokens that each request hits, int64 (N,); most pages held; tokens expired (ttl)."""

    hits: I8
    peak_pages: int
    expired_tokens: int | None


def cache_points(
    trace: CompiledTrace,
    capacities_tokens: Sequence[int],
    policies: Sequence[str] = ("lru",),
    *,
    page_tokens: int | None = None,
    include_outputs: bool = False,
    settings: CacheSettings | None = None,
) -> list[PolicyPoint]:
    """Hits of every policy at every capacity, in the order asked for; all capacities of lru in one pass.

    Args:
        trace: the trace.
        capacities_tokens: cache sizes, at least a page.
        policies: names of ``POLICIES``.
        page_tokens: tokens per page; where None the trace's own blocks, or 16 where it shares by the token.
        include_outputs: outputs are stored behind their prompts, and, as in an engine, whole pages alone.
        settings: of the policies that have any; tlru and ttl need theirs.

    Raises:
        SettingError: see ``complete_settings``.
        ValueError: a policy that there is not, a page of less than 1 token, a capacity of less than a page, or more
            than ``MAX_PAGES`` distinct pages under another policy than lru, or where tail requests are counted.
    """
    page = default_block_tokens(trace) if page_tokens is None else page_tokens
    check_policies(policies)
    settings = complete_settings(trace, policies, settings or CacheSettings(), include_outputs=include_outputs)
    if page < 1:
        raise ValueError(f"page_tokens must be at least 1, not {page}")
    for capacity in capacities_tokens:
        if capacity < page:
            raise ValueError(f"capacity_tokens: expected at least one page of {page} tokens, got {capacity}")
    points = []
    for name in policies:
        if name == "lru" and settings.tail_tokens is None:
            curve = lru_hit_curve(trace, capacities_tokens, block_tokens=page, include_outputs=include_outputs)
            points += [_point(trace, name, point.capacity_tokens, point.hit_tokens) for point in curve]
            continue
        _check_pages(trace, page)
        for capacity in capacities_tokens:
            # No cache holds more pages than there are tokens, and the kernels' numbers have 64 bits.
            run = run_cache(trace, name, min(capacity // page, _tokens(trace)), page, include_outputs, settings)
            point = _point(trace, name, capacity, int(run.hits.sum()))
            if settings.tail_tokens is not None:
                uncached = trace.arrays.input_tokens - run.hits
                point = replace(point, tail_requests=int((uncached > settings.tail_tokens).sum()))
            if run.expired_tokens is not None:
                point = replace(point, expired_tokens=run.expired_tokens, peak_tokens=run.peak_pages * page)
            points.append(point)
    return points


def _point(trace: CompiledTrace, name: str, capacity: int, hits: int) -> PolicyPoint:
    total = trace.prompt_tokens
    return PolicyPoint(int(capacity), name, POLICIES[name].oracle, hits, total, hits / total)


def check_policies(names: Sequence[str]) -> None:
    """Refuse a policy that there is not.

    Raises:
        ValueError: with what is known.
    """
    for name in names:
        if name not in POLICIES:
            raise ValueError(f"no cache policy '{name}'{unknown(name, tuple(POLICIES))}")


def kernels_compiled(policies: Sequence[str]) -> bool:
    """True where the kernels of these policies are in the on-disk cache."""
    from hisearch.base.kernel_cache import is_cached

    kernels = {_REUSE if name == "lru" else _REPLAY for name in policies}
    return all(is_cached(*kernel) for kernel in kernels)


#: Entry points, of lru's hits in total, and of all others.
_REUSE, _REPLAY = ("hisearch.traces._reuse", "reuse_distances"), ("hisearch.kernels.cachesim.replay", "replay")


def _tokens(trace: CompiledTrace) -> int:
    return int(trace.arrays.input_tokens.sum() + trace.arrays.output_tokens.sum())


def _check_pages(trace: CompiledTrace, page_tokens: int) -> None:
    # Every node has at most one page more than its tokens fill: its partial last one.
    arrays = trace.arrays
    pages = int((arrays.end_tokens // page_tokens - arrays.start_tokens // page_tokens + 1).sum())
    if pages > MAX_PAGES:
        raise ValueError(
            f"pages of {page_tokens} tokens make {pages:,} of this trace, and this policy takes {MAX_PAGES:,} at most: "
            "use larger pages, or lru"
        )


def run_cache(
    trace: CompiledTrace,
    policy: str,
    capacity_pages: int,
    page_tokens: int,
    include_outputs: bool,
    settings: CacheSettings,
) -> CacheRun:
    """One cache under any policy, request by request; settings as ``complete_settings`` returns them."""
    from hisearch.kernels.cachesim import chains, replay

    arrays = trace.arrays
    partial = not include_outputs
    stored = arrays.output_node if include_outputs else arrays.prompt_node
    tree = (arrays.parent, arrays.start_tokens, arrays.end_tokens)
    above, item, last, tail = chains.page_chains(*tree, stored, page_tokens, partial)
    lookups = _lookups(trace, page_tokens, partial) if POLICIES[policy].oracle else None
    sim = _page_sim(trace, policy, capacity_pages, page_tokens, settings, above, item, lookups)
    room = np.empty(chains.longest_chain(arrays.end_tokens, stored, page_tokens), np.int32)
    hits = np.zeros(len(trace), np.int64)
    peak = replay.replay(sim, *tree, arrays.prompt_node, stored, partial, (above, last, tail), room, hits)
    return CacheRun(hits, int(peak), int(sim.trees[0].expired_tokens) if policy == "ttl" else None)


def _page_sim(
    trace: CompiledTrace,
    policy: str,
    capacity_pages: int,
    page_tokens: int,
    settings: CacheSettings,
    above: I4,
    item: I4,
    lookups: tuple[I4, I8, I8] | None,
) -> PageSim:
    """An empty cache of the pages ``above``, ``item`` (see ``page_chains``)."""
    from hisearch.kernels.cachesim import pages
    from hisearch.kernels.layout import pages as layout

    count = len(above)
    nodes = np.zeros(count, layout.PAGE).view(np.recarray)
    nodes.above, nodes.trace_node = above, item
    links = np.zeros(count, layout.PAGE_LINK).view(np.recarray)
    links.behind = -1
    config = np.zeros(1, layout.PAGE_CONFIG).view(np.recarray)
    config.page_tokens, config.attention_tokens = page_tokens, settings.attention_tokens or 0.0
    # All slacks from the trace's tokens on are one, and so are all below 0, while settings may be any integers.
    config.slack_tokens = min(max((settings.tail_tokens or 0) - (settings.turn_tokens or 0), -1), _tokens(trace))
    config.ttl_s = (settings.ttl_s or 0.0) if policy == "ttl" else math.inf
    config.reclaim = RECLAIMS.index(settings.reclaim or RECLAIMS[0])
    config.period_s = settings.reclaim_period_s or math.inf
    cache = np.zeros(1, layout.PAGE_TREE).view(np.recarray)
    cache.capacity_pages = cache.free_pages = capacity_pages
    cache.eviction = pages.POLICIES.code("lru" if policy == "ttl" else policy)
    ghosts = np.zeros(3, layout.GHOSTS).view(np.recarray)
    ghosts.head = ghosts.tail = -1
    users, users_next, users_end = lookups or (np.empty(0, np.int32), np.empty(0, np.int64), np.empty(0, np.int64))
    return layout.PageSim(
        config=config,
        nodes=nodes,
        hosted=np.zeros(count, layout.PAGE_HOSTED).view(np.recarray),
        node_ranks=np.zeros(count, layout.PAGE_RANK).view(np.recarray),
        links=links,
        trees=cache,
        ghosts=ghosts,
        leaves=np.empty((2, len(trace) + 1), np.int32),
        leaf_count=np.zeros(2, np.int64),
        users=users,
        users_next=users_next,
        users_end=users_end,
        time_s=earliest_arrivals_s(trace) if policy == "ttl" else np.empty(0),
        priority=np.ascontiguousarray(trace.arrays.priority, np.int32),
    )


def _lookups(trace: CompiledTrace, page_tokens: int, partial: bool) -> tuple[I4, I8, I8]:
    """The requests that look up each item, in order, and where those of each begin and end."""
    from hisearch.kernels.cachesim import replay

    arrays = trace.arrays
    prompts = (arrays.parent, arrays.start_tokens, arrays.end_tokens, arrays.prompt_node, page_tokens, partial)
    counts = np.zeros(2 * len(arrays.parent), np.int64)
    replay.count_lookups(*prompts, counts)
    ends = np.cumsum(counts)
    users = np.empty(int(counts.sum()), np.int32)
    replay.list_lookups(*prompts, users, ends - counts)
    return users, ends - counts, ends
