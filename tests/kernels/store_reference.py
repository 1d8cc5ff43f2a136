"""A store of KV pages, slow and obvious: a dictionary of pages, each pointing to the record of its run.

The rules of ``kernels.cache.store``, one by one:

1.  A page is named by its content: the trace-tree node in which it completes, and where it ends.
2.  A run is a gapless sequence of held pages of one trace-tree node. It has a last use, a count of uses, an age and a
    priority. A page that is put behind a run joins it; any other starts a run. The run behind a page joins the page's:
    the foremost one's age and count are kept, and the highest priority. A page taken out of the middle leaves two
    equal runs.
3.  ``put`` and ``touch`` use each run that they concern once. A new run has a count of 0. Pages that join a run do not
    count as a use, but make it as new as they are.
4.  ``put`` goes from the first page to the last. Where no page is free, the policy evicts one: the last page of the run
    that goes first, never of a run that this ``put`` has used or made. Where none may go it stops.
5.  Of runs that were last used together (fifo, filo: made together), the deepest goes first under every policy.
6.  A run whose last use is longer ago than the time to live has expired: look-ups miss it. Pages put over it or next
    to it are written anew.
7.  Reclaim: lazy drops expired pages on a look-up; pressure drops all expired pages once free pages are needed, before
    any other eviction; periodic drops them when ``sweep`` is called.

The policies beyond SGLang's are in ``_order`` and ``_evict_page``; ``arc_reference`` and ``s3fifo_reference`` have the
ghosts of those with two queues.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from hisearch.traces.compiled import TraceArrays
from tests.kernels.arc_reference import Adaptive
from tests.kernels.s3fifo_reference import S3Fifo

#: slru protects runs used so often.
PROTECTED_USES = 2
#: gdsf: depth at which a token costs twice that of the first.
ATTENTION_TOKENS = 23_000

Page = tuple[int, int]


@dataclass(eq=False)
class Run:
    """What the pages of a run have in common. ``used``, ``born``: numbers of operations, and where it began then.

    ``longest``: tokens of the longest sequence that used it (tlru). ``value``: see gdsf. ``second``: it is in the
    second of two queues.
    """

    at_s: float
    used: int
    used_at: int
    born: int
    born_at: int
    uses: int = 0
    priority: int = 0
    longest: int = 0
    value: float = 0.0
    second: bool = False


@dataclass(frozen=True)
class Rules:
    """Settings of a store, as ``simulate.plans.tier_plan.TierPlan``."""

    page: int
    capacity_pages: int
    policy: str
    ttl_s: float = float("inf")
    reclaim: str = "lazy"
    tail_tokens: int = 8192
    turn_tokens: int = 1024
    small_share: float = 0.1


class Store:
    """Holds pages of one trace's prompts and outputs."""

    def __init__(self, trace: TraceArrays, rules: Rules) -> None:
        self.trace = trace
        self.rules = rules
        self.page = rules.page
        self.pages: dict[Page, Run] = {}
        self.operations = self.began = 0
        self.stored = self.evicted = self.expired = self.given = 0
        self.worth = 0.0
        self.adaptive: Adaptive | S3Fifo | None = None
        if rules.policy == "arc":
            self.adaptive = Adaptive(rules.capacity_pages, rules.page)
        elif rules.policy == "s3fifo":
            self.adaptive = S3Fifo(rules.capacity_pages, rules.page, rules.small_share)
        self.past: set[int] = set()
        self.gone: list[Page] = []

    # ---- what callers do -------------------------------------------------------------------------------------------

    def leading(self, trace_node: int, begin: int, end: int, now: float) -> int:
        """Tokens found without a gap behind ``begin``."""
        path = self.path(trace_node, begin, end)
        if self.rules.reclaim == "lazy":
            self._drop_where_looked(path, now)
        tokens = 0
        for page in path:
            if page not in self.pages or self._has_expired(self.pages[page], now):
                break
            tokens += self.page
        return tokens

    def gap(self, trace_node: int, begin: int, end: int, now: float) -> int:
        """Tokens behind ``begin`` before the first that is found."""
        tokens = 0
        for page in self.path(trace_node, begin, end):
            if page in self.pages and not self._has_expired(self.pages[page], now):
                break
            tokens += self.page
        return tokens

    def touch(self, trace_node: int, begin: int, end: int, now: float, priority: int = 0) -> None:
        """What is held there is used."""
        self.operations += 1
        self.began = self.operations
        for run in {self.pages[page] for page in self.path(trace_node, begin, end) if page in self.pages}:
            run.uses += 1
            if self.adaptive is not None and self.adaptive.moves_on(run.uses):
                run.second = True
            self._renew(run, now, priority)

    def reach(self, trace_node: int, end: int) -> None:
        """A sequence of ``end`` tokens uses what is held of the path (tlru)."""
        for node in self._nodes(trace_node):
            for page, run in self.pages.items():
                if page[0] == node and self._span(run)[0] - self.page < end:
                    run.longest = max(run.longest, end)

    def put(self, trace_node: int, begin: int, end: int, now: float, priority: int = 0) -> None:
        """Hold the pages there."""
        path = self.path(trace_node, begin, end)
        for page in path:
            for neighbour in (page, (page[0], page[1] - self.page), (page[0], page[1] + self.page)):
                if neighbour in self.pages and self._has_expired(self.pages[neighbour], now):
                    self._expire(self.pages[neighbour])
        self.touch(trace_node, begin, end, now, priority)
        at = begin
        for page in path:
            if page not in self.pages:
                recalled = self.adaptive.recall(page) if self.adaptive is not None else 0
                if not self._make_space(page, recalled, now):
                    break
                self._hold(page, now, priority, second=recalled > 0)
                if self.adaptive is not None:
                    once = sum(not run.second for run in self.pages.values())
                    self.adaptive.forget(once, len(self.pages))
            at = page[1]
        if at > begin:
            self.reach(trace_node, at)

    def take_out(self, trace_node: int, begin: int, end: int) -> None:
        """The pages there are held no more; nobody has evicted them."""
        for page in self.path(trace_node, begin, end):
            if page in self.pages:
                run = self.pages.pop(page)
                self.given += 1
                behind = [other for other, its in self.pages.items() if its is run and other[1] > page[1]]
                first = page[1] + self.page
                rest = replace(run, used_at=first, born_at=first)
                for other in behind:
                    self.pages[other] = rest

    def come_up(self, request: int) -> None:
        """The request's use of its prompt is not to come any more (belady)."""
        self.past.add(request)

    def sweep(self, now: float) -> None:
        """Drop all that has expired."""
        for run in {run for run in self.pages.values() if self._has_expired(run, now)}:
            self._expire(run)

    @property
    def free_pages(self) -> int:
        """Pages without content."""
        return self.rules.capacity_pages - len(self.pages)

    def path(self, trace_node: int, begin: int, end: int) -> list[Page]:
        """The pages in (begin, end], from the first on."""
        nodes = self._nodes(trace_node)
        pages = []
        for at in range(begin + self.page, end + 1, self.page):
            inside = [s for s in nodes if self.trace.start_tokens[s] < at <= self.trace.end_tokens[s]]
            pages.append((inside[0], at))
        return pages

    # ---- runs ------------------------------------------------------------------------------------------------------

    def _nodes(self, trace_node: int) -> list[int]:
        nodes = [trace_node]
        while nodes[-1] > 0:
            nodes.append(int(self.trace.parent[nodes[-1]]))
        return nodes

    def _run_pages(self, run: Run) -> list[Page]:
        return sorted(page for page, its in self.pages.items() if its is run)

    def _span(self, run: Run) -> tuple[int, int]:
        pages = self._run_pages(run)
        return pages[0][1], pages[-1][1]

    def _renew(self, run: Run, now: float, priority: int) -> None:
        first, end = self._span(run)
        run.used, run.used_at, run.at_s = self.operations, first, now
        run.priority = max(run.priority, priority)
        depth = (first - self.page + end) / 2
        run.value = self.worth + (run.uses + 1) * (1.0 + depth / ATTENTION_TOKENS)

    def _hold(self, page: Page, now: float, priority: int, *, second: bool) -> None:
        """Hold a page for which there is a free page; ``second``: a new run enters the second queue."""
        self.stored += 1
        node, at = page
        joined = [self.pages[near] for near in ((node, at - self.page), (node, at + self.page)) if near in self.pages]
        run = self.pages.get((node, at - self.page))
        if run is None:
            run = Run(now, self.operations, at, self.operations, at, priority=priority, second=second)
        run.priority = max([run.priority, *(its.priority for its in joined)])
        run.longest = max([run.longest, *(its.longest for its in joined)])
        self.pages[page] = run
        for other, its in self.pages.items():
            if its in joined:
                self.pages[other] = run
        self._renew(run, now, priority)

    # ---- what goes -------------------------------------------------------------------------------------------------

    def _order(self, run: Run) -> tuple[float, ...]:
        """The run with the least goes first."""
        first, end = self._span(run)
        last_use = (run.used, -run.used_at)
        following = self._next_use(self._run_pages(run)[0][0])
        never = following == len(self.trace.prompt_node)
        dispensable_from = run.longest + self.rules.turn_tokens - self.rules.tail_tokens
        return {
            "lru": last_use,
            "arc": last_use,
            "mru": (-run.used, -run.used_at),
            "fifo": (run.born, -run.born_at),
            "clock": (run.born, -run.born_at),
            "s3fifo": (run.born, -run.born_at),
            "filo": (-run.born, -run.born_at),
            "lfu": (run.uses, *last_use),
            "slru": (run.uses >= PROTECTED_USES, *last_use),
            "priority": (run.priority, *last_use),
            "tlru": (end - self.page < dispensable_from, *last_use),
            "gdsf": (run.value, *last_use),
            "belady": (-following, 0 if never else -first, *last_use),
        }[self.rules.policy]

    def _next_use(self, node: int) -> int:
        """The next request whose prompt leads through a trace-tree node, in the trace's order."""
        requests = range(len(self.trace.prompt_node))
        through = (r for r in requests if node in self._nodes(int(self.trace.prompt_node[r])))
        return next((r for r in through if r not in self.past), len(requests))

    def _make_space(self, page: Page, recalled: int, now: float) -> bool:
        """Free one page; False if nothing can be evicted."""
        if self.free_pages == 0 and self.rules.reclaim == "pressure":
            self.sweep(now)
        queue = None  # decided once, and left where nothing of it may go
        while self.free_pages == 0:
            runs = [run for run in set(self.pages.values()) if run.used < self.began]
            if self.adaptive is not None and (queue is None or not any(run.second == queue for run in runs)):
                once = sum(not run.second for run in self.pages.values())
                queue = self.adaptive.goes_first(once, recalled) if queue is None else not queue
            runs = [run for run in runs if run.second == queue] or runs
            if not runs or not self._evict_page(min(runs, key=self._order), page):
                return False
        return True

    def _evict_page(self, run: Run, incoming: Page) -> bool:
        """Evict the last page of the run, or requeue the run; False where ``incoming`` is worth less."""
        if self.rules.policy == "clock" and run.uses > 0:
            run.uses, run.born, run.born_at = 0, self.operations + 1, self._span(run)[0]
            self.operations += 2
            return True
        if self.rules.policy == "s3fifo" and run.uses > (0 if run.second else 1):
            run.uses = min(run.uses, 3) - 1 if run.second else 0
            run.second = True
            run.born, run.born_at = self.operations + 1, self._span(run)[0]
            self.operations += 2
            return True
        if self.rules.policy == "belady":
            mine, other = self._next_use(self._run_pages(run)[0][0]), self._next_use(incoming[0])
            deeper = mine < len(self.trace.prompt_node) and self._span(run)[0] > incoming[1]
            if mine < other or (mine == other and not deeper):
                return False
        if self.rules.policy == "gdsf":
            self.worth = max(self.worth, run.value)
        gone = self._run_pages(run)[-1]
        del self.pages[gone]
        self.evicted += 1
        self.gone.append(gone)
        if self.adaptive is not None:
            self.adaptive.remember(gone, run.second)
        return True

    def _has_expired(self, run: Run, now: float) -> bool:
        return now - run.at_s > self.rules.ttl_s

    def _expire(self, run: Run) -> None:
        for page in self._run_pages(run):
            del self.pages[page]
            self.expired += 1

    def _drop_where_looked(self, path: list[Page], now: float) -> None:
        """A look-up goes, in each trace-tree node of its pages, from the first run on until it finds a gap."""
        for node in {page[0] for page in path}:
            pages = [page for page in path if page[0] == node]
            at, last = pages[0][1] - self.page, pages[-1][1]
            runs = sorted({run for page, run in self.pages.items() if page[0] == node}, key=self._span)
            for run in runs:
                first, end = self._span(run)
                if at >= last:
                    break
                if self._has_expired(run, now):
                    self._expire(run)
                elif first - self.page > at:
                    break
                else:
                    at = max(at, end)
