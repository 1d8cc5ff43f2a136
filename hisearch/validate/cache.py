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
from typing import NamedTuple

from hisearch.base.dtypes import I8
from hisearch.specs.wording import unknown
from hisearch.traces.compiled import CompiledTrace
from hisearch.traces.stats import default_block_tokens, lru_hit_curve
from hisearch.validate.cache_settings import RECLAIMS, CacheSettings, complete_settings, earliest_arrivals_s

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
    "lru": Policy("least recently used, as vLLM and SGLang do by default"),
    "lfu": Policy("least often used since it was stored, then least recently used"),
    "fifo": Policy("stored first"),
    "mru": Policy("most recently used"),
    "filo": Policy("stored last"),
    "slru": Policy("least recently used of those never used again since they were stored, then of the others"),
    "clock": Policy("stored first, but one that was used again goes back to the end of the line, once for each pass"),
    "arc": Policy("adaptive replacement: lists of once and of often used pages, sized by what was evicted too early"),
    "tlru": Policy(
        "tail-optimised lru: first a page without which the next prompt of every sequence that used it since it was "
        "stored still leaves no more than tail_tokens to compute, turn_tokens of them new; then least recently used"
    ),
    "gdsf": Policy(
        "greedy dual by frequency and cost: least clock + uses * cost, the clock being the greatest such value evicted "
        "before the last use, the cost that of computing the page's tokens again; then least recently used"
    ),
    "ttl": Policy("least recently used; a page expires ttl_s after its last use and is not hit from then on"),
    "priority": Policy("lowest of the greatest priority values of those that used it, then least recently used"),
    "belady": Policy("next looked up last; what was just stored may go at once", oracle=True),
}


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

    shared = ("hisearch.kernels.cachesim.page_cache", "policy_hits")
    return all(is_cached(*_KERNELS.get(name, shared)) for name in policies)


#: Entry points of policies that have their own.
_KERNELS = {
    "lru": ("hisearch.traces._reuse", "reuse_distances"),
    "arc": ("hisearch.kernels.cachesim.arc", "arc_hits"),
    "ttl": ("hisearch.kernels.cachesim.page_ttl", "ttl_hits"),
    "tlru": ("hisearch.kernels.cachesim.page_value", "value_hits"),
    "gdsf": ("hisearch.kernels.cachesim.page_value", "value_hits"),
    "priority": ("hisearch.kernels.cachesim.page_value", "value_hits"),
}  # fmt: skip


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
    from hisearch.kernels.cachesim import arc, page_cache, page_ttl, page_value

    arrays = trace.arrays
    tree = (arrays.parent, arrays.start_tokens, arrays.end_tokens, arrays.prompt_node, arrays.output_node)
    if policy == "ttl":
        expiry = page_ttl.Expiry(
            earliest_arrivals_s(trace),
            float(settings.ttl_s or 0.0),
            RECLAIMS.index(settings.reclaim or RECLAIMS[0]),
            float(settings.reclaim_period_s or math.inf),
        )
        hits, peak, expired = page_ttl.ttl_hits(expiry, capacity_pages, *tree, page_tokens, include_outputs)
        return CacheRun(hits, int(peak), int(expired))
    if policy == "arc":
        hits, peak = arc.arc_hits(capacity_pages, *tree, page_tokens, include_outputs)
    elif hasattr(page_value, policy.upper()):
        # All slacks from the trace's tokens on are one, and so are all below 0, while settings may be any integers.
        slack = min(max((settings.tail_tokens or 0) - (settings.turn_tokens or 0), -1), _tokens(trace))
        rule = page_value.Rule(
            getattr(page_value, policy.upper()), capacity_pages, page_tokens, slack,
            float(settings.attention_tokens or 0.0),
        )  # fmt: skip
        hits, peak = page_value.value_hits(rule, arrays.priority, *tree, include_outputs)
    else:
        code = getattr(page_cache, policy.upper())
        hits, peak = page_cache.policy_hits(code, capacity_pages, *tree, page_tokens, include_outputs)
    return CacheRun(hits, int(peak), None)
