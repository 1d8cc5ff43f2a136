"""A store of KV pages, slow and obvious: a dictionary of pages, each pointing to what it shares with its run.

The rules of ``kernels.store``, one by one:

1.  A page is named by its content: the trace-tree node in which it completes, and where it ends.
2.  A run is as many pages of one trace-tree node as are held without a gap. It has a last use, a count of uses and an
    age. Pages that are put next to a run, or between two, join it: the foremost one's age and count are kept.
3.  ``put`` and ``touch`` use the runs that they concern, once. A run that is new has a count of 0.
4.  ``put`` makes room by the policy, a page at a time from the end of the run that goes first, never from one that
    this very ``put`` uses. Where that is not enough it holds as many of the first pages as there is room for.
5.  Of runs that were last used together (fifo, filo: made together), the deepest goes first, whatever the policy.
6.  A run whose last use is longer ago than the time to live has expired: it is not found. What is put over it or next
    to it is written anew.
7.  Reclaim: lazy drops what has expired where a look-up comes by it; pressure drops all that has expired once room is
    wanted, before anything else goes; periodic when it is told to.
"""

from __future__ import annotations

from dataclasses import dataclass

from hisearch.traces.compiled import TraceArrays

#: slru protects runs used so often.
PROTECTED_USES = 2

Page = tuple[int, int]


@dataclass(eq=False)
class Run:
    """What the pages of a run have in common. ``used``, ``born``: numbers of operations, and where it began then."""

    at_s: float
    used: int
    used_at: int
    born: int
    born_at: int
    uses: int = 0


class Store:
    """Holds pages of one trace's prompts and outputs."""

    def __init__(
        self, trace: TraceArrays, page: int, capacity_pages: int, policy: str, ttl_s: float, reclaim: str
    ) -> None:
        self.trace = trace
        self.page = page
        self.capacity_pages = capacity_pages
        self.policy = policy
        self.ttl_s = ttl_s
        self.reclaim = reclaim
        self.pages: dict[Page, Run] = {}
        self.operations = 0
        self.stored = self.evicted = self.expired = 0

    # ---- what callers do -------------------------------------------------------------------------------------------

    def leading(self, static: int, begin: int, end: int, now: float) -> int:
        """Tokens found without a gap behind ``begin``."""
        path = self.path(static, begin, end)
        if self.reclaim == "lazy":
            self._drop_where_looked(path, now)
        found = 0
        for page in path:
            if page not in self.pages or self._has_expired(self.pages[page], now):
                break
            found += self.page
        return found

    def touch(self, static: int, begin: int, end: int, now: float) -> None:
        """What is held there is used."""
        self.operations += 1
        self._use({self.pages[page] for page in self.path(static, begin, end) if page in self.pages}, now)

    def put(self, static: int, begin: int, end: int, now: float) -> None:
        """Hold the pages there."""
        path = self.path(static, begin, end)
        for page in path:
            for neighbour in (page, (page[0], page[1] - self.page), (page[0], page[1] + self.page)):
                if neighbour in self.pages and self._has_expired(self.pages[neighbour], now):
                    self._expire(self.pages[neighbour])
        self.touch(static, begin, end, now)
        missing = sum(page not in self.pages for page in path)
        self._make_room(missing, now)
        while sum(page not in self.pages for page in path) > self.free_pages:
            path.pop()
        for page in path:
            if page not in self.pages:
                self.stored += 1
        for node in {page[0] for page in path}:
            self._hold([page for page in path if page[0] == node], now)

    def sweep(self, now: float) -> None:
        """Drop all that has expired."""
        for run in {run for run in self.pages.values() if self._has_expired(run, now)}:
            self._expire(run)

    @property
    def free_pages(self) -> int:
        """Pages without content."""
        return self.capacity_pages - len(self.pages)

    def path(self, static: int, begin: int, end: int) -> list[Page]:
        """The pages in (begin, end], from the first on."""
        nodes = [static]
        while nodes[-1] > 0:
            nodes.append(int(self.trace.parent[nodes[-1]]))
        found = []
        for at in range(begin + self.page, end + 1, self.page):
            inside = [s for s in nodes if self.trace.start_tokens[s] < at <= self.trace.end_tokens[s]]
            found.append((inside[0], at))
        return found

    # ---- runs ------------------------------------------------------------------------------------------------------

    def _run_pages(self, run: Run) -> list[Page]:
        return sorted(page for page, its in self.pages.items() if its is run)

    def _use(self, runs: set[Run], now: float) -> None:
        for run in runs:
            run.used, run.used_at, run.at_s = self.operations, self._run_pages(run)[0][1], now
            run.uses += 1

    def _hold(self, pages: list[Page], now: float) -> None:
        """Hold pages of one trace-tree node that follow each other, which there is room for."""
        node, first, last = pages[0][0], pages[0][1], pages[-1][1]
        near = [(node, at) for at in range(first - self.page, last + self.page + 1, self.page)]
        joined = [self.pages[page] for page in near if page in self.pages]
        if not joined:
            run = Run(now, self.operations, first, self.operations, first)
        else:
            run = joined[0]
            if run.used != self.operations:
                self._use({run}, now)
        for page in pages:
            self.pages[page] = run
        for page, its in self.pages.items():
            if its in joined:
                self.pages[page] = run

    # ---- what goes -------------------------------------------------------------------------------------------------

    def _order(self, run: Run) -> tuple[float, ...]:
        """The run with the least goes first."""
        return {
            "lru": (run.used, -run.used_at),
            "mru": (-run.used, -run.used_at),
            "fifo": (run.born, -run.born_at),
            "filo": (-run.born, -run.born_at),
            "lfu": (run.uses, run.used, -run.used_at),
            "slru": (run.uses >= PROTECTED_USES, run.used, -run.used_at),
        }[self.policy]

    def _make_room(self, pages: int, now: float) -> None:
        if self.free_pages < pages and self.reclaim == "pressure":
            self.sweep(now)
        while self.free_pages < pages:
            runs = {run for run in self.pages.values() if run.used != self.operations}
            if not runs:
                return
            del self.pages[self._run_pages(min(runs, key=self._order))[-1]]
            self.evicted += 1

    def _has_expired(self, run: Run, now: float) -> bool:
        return now - run.at_s > self.ttl_s

    def _expire(self, run: Run) -> None:
        for page in self._run_pages(run):
            del self.pages[page]
            self.expired += 1

    def _drop_where_looked(self, path: list[Page], now: float) -> None:
        """A look-up goes, in each trace-tree node of its pages, from the first run on until it finds a gap."""
        for node in {page[0] for page in path}:
            wanted = [page for page in path if page[0] == node]
            at, last = wanted[0][1] - self.page, wanted[-1][1]
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

    def _span(self, run: Run) -> tuple[int, int]:
        pages = self._run_pages(run)
        return pages[0][1], pages[-1][1]
