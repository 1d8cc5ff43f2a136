"""Slow, obvious prefix caches, a page being the tuple of all tokens up to its end."""

from __future__ import annotations

import itertools
from typing import NamedTuple

from hypothesis import strategies as st

from hisearch.traces.compiler import compile_trace
from hisearch.traces.trace import make_trace
from hisearch.validate.cache_settings import RECLAIMS, CacheSettings


@st.composite
def workloads(draw, requests=12, longest=14):
    """(prompts, prompts with outputs) as lists of tokens; they share prefixes often."""
    tokens = st.lists(st.integers(0, 1), min_size=1, max_size=longest)
    prompts, wholes = [], []
    for _ in range(draw(st.integers(1, requests))):
        head = []
        if wholes and draw(st.booleans()):
            earlier = draw(st.sampled_from(wholes))
            head = earlier[: draw(st.integers(0, min(len(earlier), longest)))]
        prompts.append((head + draw(tokens))[: longest + 1])
        wholes.append(prompts[-1] + draw(st.lists(st.integers(0, 1), min_size=1, max_size=4)))
    return prompts, wholes


@st.composite
def circumstances(draw, requests=12):
    """Arrivals, priorities and settings of every policy that has any, all of them exact in floating point."""
    gaps = draw(st.lists(st.integers(0, 4), min_size=requests, max_size=requests))
    reclaim = draw(st.sampled_from(RECLAIMS))
    settings = CacheSettings(
        tail_tokens=draw(st.integers(0, 8)),
        turn_tokens=draw(st.integers(0, 3)),
        attention_tokens=2.0 ** draw(st.integers(-3, 6)),
        ttl_s=draw(st.integers(1, 12)) / 2,
        reclaim=reclaim,
        reclaim_period_s=draw(st.integers(1, 10)) / 2 if reclaim == "periodic" else None,
    )
    priorities = draw(st.lists(st.integers(0, 2), min_size=requests, max_size=requests))
    return Circumstances([float(time) for time in itertools.accumulate(gaps)], priorities, settings)


class Circumstances(NamedTuple):
    """Of requests, of which a workload may have fewer: arrivals in seconds, priorities; settings of all policies."""

    arrivals: list[float]
    priorities: list[int]
    settings: CacheSettings

    def settings_of(self, policy):
        """Those that go with one policy."""
        keys = {
            "tlru": ("tail_tokens", "turn_tokens"),
            "gdsf": ("attention_tokens",),
            "ttl": ("ttl_s", "reclaim", "reclaim_period_s"),
        }.get(policy, ())
        return CacheSettings(**{key: getattr(self.settings, key) for key in keys})


#: Where a test is not about them: a second between requests, equal priorities.
PLAIN = Circumstances(
    [float(i) for i in range(100)],
    [0] * 100,
    CacheSettings(tail_tokens=3, turn_tokens=1, attention_tokens=8.0, ttl_s=1000.0, reclaim="lazy"),
)


def compiled(prompts, wholes, circumstances=PLAIN):
    """The compiled trace of such a workload."""
    shares_with, shared = [], []
    for i, sequence in enumerate(wholes):
        common = [
            len(list(itertools.takewhile(bool, map(_equal, zip(sequence, other, strict=False)))))
            for other in wholes[:i]
        ]
        shared.append(max(common, default=0))
        shares_with.append(common.index(shared[-1]) if shared[-1] else -1)
    lengths = [len(prompt) for prompt in prompts]
    trace = make_trace(
        arrival_s=circumstances.arrivals[: len(prompts)],
        priority=circumstances.priorities[: len(prompts)],
        input_tokens=lengths,
        output_tokens=[len(sequence) - length for sequence, length in zip(wholes, lengths, strict=True)],
        shares_with=shares_with,
        shared_tokens=shared,
    )
    return compile_trace(trace, "random")


def _equal(pair):
    return pair[0] == pair[1]


def pages_of(tokens, page_tokens, partial):
    """A sequence's pages, first to last."""
    ends = list(range(page_tokens, len(tokens) + 1, page_tokens))
    if partial and len(tokens) % page_tokens:
        ends.append(len(tokens))
    return [tuple(tokens[:end]) for end in ends]


def before(page, page_tokens):
    """The page before ``page``; empty for a first one."""
    return page[: (len(page) - 1) // page_tokens * page_tokens]


def next_lookup(prompts, i, page, page_tokens, partial):
    """Number of the first request after ``i`` whose prompt has ``page``; that of no request where there is none."""
    for later in range(i + 1, len(prompts)):
        if page in pages_of(prompts[later], page_tokens, partial):
            return later
    return len(prompts)


class SlowCache:
    """Every policy but arc and ttl; ``serve`` takes requests one after another and says how many tokens each hits."""

    def __init__(self, policy, capacity, page_tokens, prompts, wholes, include_outputs, circumstances=PLAIN):
        self.policy, self.capacity, self.page_tokens = policy, capacity, page_tokens
        self.prompts, self.partial = prompts, not include_outputs
        self.stored = wholes if include_outputs else prompts
        self.arrivals, self.priorities, self.settings = circumstances
        self.clock = 0  # of gdsf
        self.resident = {}  # page -> facts about it
        self.order = itertools.count()
        self.peak = 0

    def leaves(self, locked):
        inner = {before(page, self.page_tokens) for page in self.resident}
        return [page for page in self.resident if page not in inner and page not in locked]

    def leading(self, pages):
        return list(itertools.takewhile(lambda page: page in self.resident, pages))

    def victim(self, i, locked):
        facts = self.resident
        leaves = self.leaves(locked)
        if self.policy == "clock":
            while True:
                first = min(leaves, key=lambda page: facts[page]["stored"])
                if not facts[first]["spared"]:
                    return first
                facts[first] |= {"spared": False, "stored": next(self.order)}
        choose = {
            "lru": lambda page: facts[page]["used"],
            "lfu": lambda page: (len(facts[page]["users"]), facts[page]["used"]),
            "fifo": lambda page: facts[page]["stored"],
            "mru": lambda page: [-use for use in facts[page]["used"]],
            "filo": lambda page: -facts[page]["stored"],
            "slru": lambda page: (len(facts[page]["users"]) > 1, facts[page]["used"]),
            "priority": lambda page: (max(self.priorities[user] for user in facts[page]["users"]), facts[page]["used"]),
            "tlru": lambda page: (not self.may_go(page), facts[page]["used"]),
            "gdsf": lambda page: (facts[page]["value"], facts[page]["used"]),
            "belady": lambda page: -next_lookup(self.prompts, i, page, self.page_tokens, self.partial),
        }[self.policy]
        return min(leaves, key=choose)

    def may_go(self, page):
        """Without the page no next prompt of those who used it would leave more than the tail uncached."""
        remains = len(before(page, self.page_tokens))
        nexts = [len(self.stored[user]) + self.settings.turn_tokens for user in self.resident[page]["users"]]
        return all(following - remains <= self.settings.tail_tokens for following in nexts)

    def use(self, page, i):
        """Request ``i`` uses a resident page."""
        facts = self.resident[page]
        facts["users"].append(i)
        facts["used"] = (i, -len(page))
        depths = range(len(before(page, self.page_tokens)), len(page))
        cost = sum(1 + depth / self.settings.attention_tokens for depth in depths)
        facts["value"] = self.clock + len(facts["users"]) * cost

    def evict(self, page):
        self.clock = max(self.clock, self.resident[page]["value"])
        del self.resident[page]

    def serve(self, i):
        looked_up = pages_of(self.prompts[i], self.page_tokens, self.partial)
        hit = self.leading(looked_up)
        chain = pages_of(self.stored[i], self.page_tokens, self.partial)
        bypass = self.policy == "belady"
        kept = chain if bypass else chain[: self.capacity]
        for page in self.leading(chain):
            self.use(page, i)
            self.resident[page]["spared"] = True
        missing = [page for page in kept if page not in self.resident]
        while not bypass and len(self.resident) + len(missing) > self.capacity:
            self.evict(self.victim(i, chain))
        for page in reversed(missing):
            self.resident[page] = {"users": [], "spared": False, "stored": next(self.order)}
            self.use(page, i)
        while len(self.resident) > self.capacity:
            self.evict(self.victim(i, []))
        self.check()
        return len(hit[-1]) if hit else 0

    def check(self):
        """Laws of every cache: as many pages as fit, none without those before it."""
        assert len(self.resident) <= self.capacity
        assert all(before(page, self.page_tokens) in {(), *self.resident} for page in self.resident)
        self.peak = max(self.peak, len(self.resident))


class SlowArc(SlowCache):
    """The paper's four lists, oldest first, with this project's rules on leaves and locks."""

    def __init__(self, *arguments):
        super().__init__("arc", *arguments)
        self.t1, self.t2, self.b1, self.b2, self.target = [], [], [], [], 0.0

    def evict(self, preferred, locked, remember=True):
        other = self.t2 if preferred is self.t1 else self.t1
        leaves = self.leaves(locked)
        page = next(page for page in [*preferred, *other] if page in leaves)
        chosen, ghosts = (self.t1, self.b1) if page in self.t1 else (self.t2, self.b2)
        chosen.remove(page)
        if remember:
            ghosts.append(page)
        del self.resident[page]

    def replace(self, in_b2, locked):
        once = len(self.t1)
        self.evict(self.t1 if once and (once > self.target or (in_b2 and once == self.target)) else self.t2, locked)

    def admit(self, page, locked):
        if page in self.b1:
            self.target = min(self.capacity, self.target + max(1.0, len(self.b2) / len(self.b1)))
            self.replace(False, locked)
            self.b1.remove(page)
            self.t2.append(page)
        elif page in self.b2:
            self.target = max(0.0, self.target - max(1.0, len(self.b1) / len(self.b2)))
            self.replace(True, locked)
            self.b2.remove(page)
            self.t2.append(page)
        else:
            total = len(self.t1) + len(self.t2) + len(self.b1) + len(self.b2)
            if len(self.t1) + len(self.b1) == self.capacity:
                if len(self.t1) < self.capacity:
                    self.b1.pop(0)
                    self.replace(False, locked)
                else:
                    self.evict(self.t1, locked, remember=False)
            elif total >= self.capacity:
                if total == 2 * self.capacity:
                    self.b2.pop(0)
                self.replace(False, locked)
            self.t1.append(page)
        self.resident[page] = {}

    def serve(self, i):
        hit = self.leading(pages_of(self.prompts[i], self.page_tokens, self.partial))
        chain = pages_of(self.stored[i], self.page_tokens, self.partial)
        have, kept = self.leading(chain), chain[: self.capacity]
        for page in have:
            (self.t1 if page in self.t1 else self.t2).remove(page)
            self.t2.append(page)
        for page in reversed(kept[len(have) :]):
            self.admit(page, chain)
        for page in reversed(kept):
            pages = self.t1 if page in self.t1 else self.t2
            pages.remove(page)
            pages.append(page)
        self.check()
        assert sorted(self.t1 + self.t2) == sorted(self.resident)
        assert len(self.t1) + len(self.b1) <= self.capacity
        assert len(self.t1) + len(self.t2) + len(self.b1) + len(self.b2) <= 2 * self.capacity
        return len(hit[-1]) if hit else 0


class SlowTtl(SlowCache):
    """Pages that expire, the least recently used one first to be evicted."""

    def __init__(self, *arguments):
        super().__init__("lru", *arguments)
        self.expired_tokens = 0
        self.swept = 0.0

    def has_expired(self, page, now):
        return now >= self.arrivals[self.resident[page]["users"][-1]] + self.settings.ttl_s

    def drop(self, pages, now):
        for page in pages:
            if self.has_expired(page, now):
                self.expired_tokens += len(page) - len(before(page, self.page_tokens))
            del self.resident[page]

    def sweep_until(self, now):
        """Run all periodic reclaims up to now."""
        while self.swept + self.settings.reclaim_period_s <= now:
            self.swept += self.settings.reclaim_period_s
            self.drop([page for page in self.resident if self.has_expired(page, self.swept)], self.swept)

    def serve(self, i):
        now = self.arrivals[i]
        if self.settings.reclaim == "periodic":
            self.sweep_until(now)
        looked_up = pages_of(self.prompts[i], self.page_tokens, self.partial)
        hit = list(itertools.takewhile(lambda page: not self.has_expired(page, now), self.leading(looked_up)))
        chain = pages_of(self.stored[i], self.page_tokens, self.partial)
        expired_hits = [page for page in self.leading(chain) if self.has_expired(page, now)]
        if expired_hits and self.settings.reclaim == "lazy":
            # Nothing follows a partial page: pages that begin with its tokens are siblings.
            full = len(expired_hits[0]) % self.page_tokens == 0
            gone = [
                page
                for page in self.resident
                if page == expired_hits[0] or (full and page[: len(expired_hits[0])] == expired_hits[0])
            ]
            self.drop(gone, now)
        for page in self.leading(chain):
            if self.has_expired(page, now):
                self.expired_tokens += len(page) - len(before(page, self.page_tokens))
            self.use(page, i)
        missing = [page for page in chain[: self.capacity] if page not in self.resident]
        while len(self.resident) + len(missing) > self.capacity:
            leaves = self.leaves(chain)
            expired = [page for page in leaves if self.has_expired(page, now)]
            self.drop([min(expired or leaves, key=lambda page: self.resident[page]["used"])], now)
        for page in missing:
            self.resident[page] = {"users": []}
            self.use(page, i)
        self.check()
        return len(hit[-1]) if hit else 0


def slow_cache(policy, *arguments):
    """A cache under any policy.

    Arguments: capacity in pages, page_tokens, prompts, wholes, include_outputs and, if not plain, circumstances.
    """
    special = {"arc": SlowArc, "ttl": SlowTtl}.get(policy)
    return SlowCache(policy, *arguments) if special is None else special(*arguments)


def most_hits(prompts, capacity):
    """Tokens that the best possible cache of single-token pages hits, by trying what to keep after every request."""
    best = {frozenset(): 0}
    for prompt in prompts:
        chain = pages_of(prompt, 1, False)
        following = {}
        for held, hits in best.items():
            hits += sum(page in held for page in chain)
            for kept in _prefix_closed(held | set(chain), capacity):
                following[kept] = max(hits, following.get(kept, 0))
        best = following
    return max(best.values())


def _prefix_closed(pages, capacity):
    """All sets of at most ``capacity`` of the pages that hold with each page those before it."""
    closed = {frozenset()}
    for page in sorted(pages, key=len):
        more = {held | {page} for held in closed if len(held) < capacity and before(page, 1) in {(), *held}}
        closed |= more
    return closed
