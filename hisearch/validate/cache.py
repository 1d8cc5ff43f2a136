"""The prefix cache alone: what every policy hits of a trace whose schedule is fixed.

Requests are taken one after another, in the trace's order (earliest arrival, then position in the file), whatever their
think times. Each looks up its prompt, then its pages are stored at once and whole; there is no scheduler, and no time.

A cache of C tokens holds C // page_tokens pages. A page is found by all tokens up to its end, and is resident only with
all pages before it. A prompt's hit is the tokens of its leading resident pages; it may be the whole prompt, for its
partial last page is a page as well. (An engine computes at least one token, and stores whole pages alone.)

A request uses all pages of its prompt, those that it hit and those that it stores, from the last to the first: the tail
counts as used before the head, and goes first. While it is served its pages stay; others' are evicted for them, leaves
alone, that is pages that no resident page stands behind. Of a prompt longer than the cache the first pages are stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hisearch.specs.wording import unknown
from hisearch.traces.compiled import CompiledTrace
from hisearch.traces.stats import default_block_tokens, lru_hit_curve

#: Distinct pages up to which the policies that look at single pages are run: about 2 GB of their state.
MAX_PAGES = 40_000_000


@dataclass(frozen=True)
class Policy:
    """How a cache chooses the leaf to evict. oracle: it knows the future, and bounds what others can reach."""

    meaning: str
    oracle: bool = False


#: By name. "Stored" and "used" are counted in requests; ties do not occur among leaves.
POLICIES: dict[str, Policy] = {
    "lru": Policy("least recently used, as vLLM and SGLang do by default"),
    "lfu": Policy("least often used since it was stored, then least recently used"),
    "fifo": Policy("stored first"),
    "mru": Policy("most recently used"),
    "filo": Policy("stored last"),
    "slru": Policy("least recently used of those never used again since they were stored, then of the others"),
    "clock": Policy("stored first, but one that was used again goes back to the end of the line, once for each pass"),
    "arc": Policy("adaptive replacement: lists of once and of often used pages, sized by what was evicted too early"),
    "belady": Policy("next looked up last; what was just stored may go at once", oracle=True),
}


@dataclass(frozen=True)
class PolicyPoint:
    """What a cache of ``capacity_tokens`` hits under a policy; ``hit_rate`` is of all ``prompt_tokens``."""

    capacity_tokens: int
    policy: str
    oracle: bool
    hit_tokens: int
    prompt_tokens: int
    hit_rate: float


def cache_points(
    trace: CompiledTrace,
    capacities_tokens: Sequence[int],
    policies: Sequence[str] = ("lru",),
    *,
    page_tokens: int | None = None,
    include_outputs: bool = False,
) -> list[PolicyPoint]:
    """Hits of every policy at every capacity, in the order asked for; all capacities of lru in one pass.

    Args:
        trace: the trace.
        capacities_tokens: cache sizes, at least a page.
        policies: names of ``POLICIES``.
        page_tokens: tokens per page; where None the trace's own blocks, or 16 where it shares by the token.
        include_outputs: outputs are stored behind their prompts, and, as in an engine, whole pages alone.

    Raises:
        ValueError: a policy that there is not, a page of less than 1 token, a capacity of less than a page, or more
            than ``MAX_PAGES`` distinct pages under another policy than lru.
    """
    page = default_block_tokens(trace) if page_tokens is None else page_tokens
    check_policies(policies)
    if page < 1:
        raise ValueError(f"page_tokens must be at least 1, not {page}")
    for capacity in capacities_tokens:
        if capacity < page:
            raise ValueError(f"capacity_tokens: expected at least one page of {page} tokens, got {capacity}")
    points = []
    for name in policies:
        if name == "lru":
            curve = lru_hit_curve(trace, capacities_tokens, block_tokens=page, include_outputs=include_outputs)
            hits = [point.hit_tokens for point in curve]
        else:
            _check_pages(trace, page)
            # No cache holds more pages than there are tokens, and the kernels' numbers have 64 bits.
            sizes = [min(capacity // page, _tokens(trace)) for capacity in capacities_tokens]
            hits = [_hits(trace, name, size, page, include_outputs) for size in sizes]
        total, oracle = trace.prompt_tokens, POLICIES[name].oracle
        points += [
            PolicyPoint(int(capacity), name, oracle, hit, total, hit / total)
            for capacity, hit in zip(capacities_tokens, hits, strict=True)
        ]
    return points


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
    from hisearch.kernels.jit import CACHE_FOLDER

    kernels = {_KERNELS.get(name, "page_cache.policy_hits") for name in policies}
    return all(any(CACHE_FOLDER.rglob(f"{kernel}-*.nbi")) for kernel in kernels)


#: Entry points of policies that have their own.
_KERNELS = {"lru": "stack.reuse_distances", "arc": "arc.arc_hits"}


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


def _hits(trace: CompiledTrace, policy: str, capacity_pages: int, page_tokens: int, include_outputs: bool) -> int:
    """Hit tokens of one cache under a policy that is no stack."""
    from hisearch.kernels import arc, page_cache

    arrays = trace.arrays
    tree = (arrays.parent, arrays.start_tokens, arrays.end_tokens, arrays.prompt_node, arrays.output_node)
    if policy == "arc":
        hits, _ = arc.arc_hits(capacity_pages, *tree, page_tokens, include_outputs)
    else:
        code = getattr(page_cache, policy.upper())
        hits, _ = page_cache.policy_hits(code, capacity_pages, *tree, page_tokens, include_outputs)
    return int(hits.sum())
