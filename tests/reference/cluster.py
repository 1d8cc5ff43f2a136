"""N identical workers behind a router, in one virtual clock.

Order of events at equal times: arrivals by request index, then ends of steps by worker index, then passes (which form
the next batch) by worker index. An arrival that an end brings about at the same time (think time 0) comes before the
next end. So a pass at t sees every arrival at or before t, and a dispatch at t knows of the ends handled before it.

A worker with asynchronous scheduling (``most_outstanding`` 2) forms a batch while the one before it runs. If the batch
just launched is the only outstanding one, its next pass follows at once, at the same time; else, or where no batch was
formed, the next pass comes when the oldest outstanding one has ended and its results are processed. A worker without
any looks again when it says so (``look_again_s``), or when a request arrives before.

A request that can never fit is rejected when it arrives, before it reaches the router: it uses no turn and no random
number and leaves no entry in the prefix index. Its follow-up arrives ``think_s`` after the rejection.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from tests.reference.restatement.content import PathContent
from tests.reference.restatement.recording import Request, Step
from tests.reference.restatement.vllm import StuckError

from .block_routers import Metrics
from .caches import cache_sizes, cached_tokens, capacity_tokens, load_answer, page_tokens, waiting_requests
from .router import Path, Router, RouterConfig

if TYPE_CHECKING:
    from hisearch.traces.compiled import TraceArrays

#: Outcomes, by the numbers of ``hisearch.simulate.results.result.Outcome``.
FINISHED = 1
TOO_LARGE = 2

_ARRIVAL, _STEP_END, _LOOK, _PASS = range(4)


class Worker(Protocol):
    """Interface of an engine's reference; see ``VllmWorker``."""

    first_scheduled_s: dict[Any, float]
    first_token_s: dict[Any, float]
    token_s: dict[Any, list[float]]
    finish_s: dict[Any, float]
    reused_tokens: dict[Any, int]
    preemptions: dict[Any, int]

    @property
    def most_outstanding(self) -> int: ...
    @property
    def held_tokens(self) -> int: ...
    @property
    def evicted_tokens(self) -> int: ...
    def rejection(self, request: Request) -> str | None: ...
    def receive(self, request: Request) -> None: ...
    def form(self, now: float) -> Step | None: ...
    def process(self) -> list[Request]: ...


@dataclass
class RequestOutcome:
    """Outcome of one request; None, -1 or 0 where it did not happen. Names as in ``RequestTable``."""

    arrival_s: float
    outcome: int = 0
    reason: str = ""
    worker: int = -1
    scheduled_s: float | None = None
    first_token_s: float | None = None
    finish_s: float | None = None
    hit_tokens: int = 0
    preemptions: int = 0
    token_s: list[float] = field(default_factory=list)


@dataclass
class WorkerOutcome:
    """Totals of one worker. Names as in ``WorkerTable``.

    Attributes:
        steps: its steps in order.
        prefill_tokens, decode_tokens: tokens computed in chunks and in decodes.
        peak_kv_tokens: most token slots held by requests (not by cached content alone), after a batch was formed.
        evicted_tokens: cached tokens dropped for others.
    """

    steps: list[Step] = field(default_factory=list)
    requests: int = 0
    preemptions: int = 0
    busy_s: float = 0.0
    prefill_tokens: int = 0
    decode_tokens: int = 0
    peak_kv_tokens: int = 0
    evicted_tokens: int = 0


@dataclass
class ClusterOutcome:
    """Requests in the trace's order, workers by index; times in seconds. engines: the workers, as the run left them."""

    requests: dict[int, RequestOutcome]
    workers: list[WorkerOutcome]
    makespan_s: float
    engines: list[Any] = field(default_factory=list, compare=False)


class Cluster:
    """One run: ``Cluster(...).run()``.

    Args:
        trace: compiled trace arrays.
        make_worker: a fresh engine, identical each time.
        workers: how many.
        router: policy and parameters.
        pooled: any end brings the next follow-up in order of index, whomever it follows.
    """

    def __init__(
        self,
        trace: TraceArrays,
        make_worker: Callable[[], Worker],
        workers: int,
        router: RouterConfig,
        *,
        pooled: bool = False,
    ) -> None:
        self.trace = trace
        self.engines = [make_worker() for _ in range(workers)]
        paths = {node: tree_path(trace, node) for node in range(1, len(trace.parent))}
        first = self.engines[0]
        self.router = Router(
            router,
            workers,
            self._look,
            paths,
            page_tokens(first),
            self._ask,
            self._scrape,
            cache_sizes(first),
            int(trace.input_tokens.max(initial=0)),
        )
        self.outcomes: dict[int, RequestOutcome] = {}
        self.tallies = [WorkerOutcome() for _ in range(workers)]
        # Whether a pass or the end of a step is among the events; only an arrival wakes a worker without either.
        self.awake = [False] * workers
        # When a worker that is not awake looks again by itself.
        self.naps: list[float | None] = [None] * workers
        # When a worker's pass, which waits for requests, goes on.
        self.due: list[float | None] = [None] * workers
        # Passes that were made before they were due.
        self.made: list[tuple[float, int]] = []
        self.ends: list[deque[float]] = [deque() for _ in range(workers)]
        self.events: list[tuple[float, int, int]] = []
        self.follow_ups: dict[int, list[int]] = {}
        self.pool: deque[int] = deque()
        for index, previous in enumerate(trace.previous.tolist()):
            if previous < 0:
                heapq.heappush(self.events, (float(trace.arrival_s[index]), _ARRIVAL, index))
            elif pooled:
                self.pool.append(index)
            else:
                self.follow_ups.setdefault(previous, []).append(index)

    def run(self) -> ClusterOutcome:
        """Handle events until none is left."""
        now = 0.0
        while self.events:
            now, kind, index = heapq.heappop(self.events)
            self.router.pass_time(now)
            if kind == _ARRIVAL:
                self._arrive(index, now)
            elif kind == _STEP_END:
                self._end_step(index, now)
            elif kind == _PASS:
                self._form(index, now)
            elif self.naps[index] == now:
                self._wake(index, now)
        if not all(outcome.outcome for outcome in self.outcomes.values()):
            raise StuckError("requests wait for what never comes")
        for engine, tally in zip(self.engines, self.tallies, strict=True):
            tally.evicted_tokens = engine.evicted_tokens
        finishes = [outcome.finish_s for outcome in self.outcomes.values() if outcome.finish_s is not None]
        requests = dict(sorted(self.outcomes.items()))
        return ClusterOutcome(requests, self.tallies, max(finishes, default=0.0), self.engines)

    def _look(self, worker: int, path: Path, tokens: int) -> int:
        return cached_tokens(self.engines[worker], path, tokens)

    def _ask(self, worker: int) -> int:
        return load_answer(self.engines[worker])

    def _scrape(self, worker: int) -> Metrics:
        engine = self.engines[worker]
        waiting = waiting_requests(engine)
        running = self.router.in_flight_requests[worker] - waiting
        return Metrics(waiting, running, engine.held_tokens / capacity_tokens(engine))

    def _arrive(self, index: int, now: float) -> None:
        outcome = self.outcomes[index] = RequestOutcome(now)
        request = self._request(index, now)
        reason = self.engines[0].rejection(request)
        if reason is not None:
            outcome.outcome, outcome.reason = TOO_LARGE, reason
            self._plan_follow_ups(index, now)
            return
        prompt_runs = tree_path(self.trace, int(self.trace.prompt_node[index]))
        outcome.worker = self.router.dispatch(index, prompt_runs, now, int(self.trace.session[index]))
        self.engines[outcome.worker].receive(request)
        self.tallies[outcome.worker].requests += 1
        due_s = self.due[outcome.worker]
        if due_s is not None and due_s > now and self.engines[outcome.worker].has_gathered:
            self.made.append((due_s, outcome.worker))
            self._pass_at(outcome.worker, now)
        self._wake(outcome.worker, now)

    def _pass_at(self, worker: int, due_s: float) -> None:
        self.due[worker] = due_s
        heapq.heappush(self.events, (due_s, _PASS, worker))

    def _waits(self, worker: int, now: float) -> bool:
        """Whether a pass is not made at ``now``: it waits for more requests, or was made when they had come."""
        if (now, worker) in self.made:
            self.made.remove((now, worker))
            return True
        if self.due[worker] is not None:
            return False
        until_s = self.engines[worker].gather(now) if hasattr(self.engines[worker], "gather") else None
        if until_s is not None:
            self._pass_at(worker, until_s)
        return until_s is not None

    def _form(self, worker: int, now: float) -> None:
        if self._waits(worker, now):
            return
        self.due[worker] = None
        engine, tally, ends = self.engines[worker], self.tallies[worker], self.ends[worker]
        step = engine.form(now)
        held_s = max(now, getattr(engine, "held_s", 0.0))
        if step is not None:
            ends.append(step.end_s)
            tally.steps.append(step)
            tally.busy_s += step.end_s - step.start_s
            tally.prefill_tokens += sum(entry.new for entry in step.batch if not entry.decode)
            tally.decode_tokens += sum(entry.new for entry in step.batch if entry.decode)
            tally.peak_kv_tokens = max(tally.peak_kv_tokens, engine.held_tokens)
        # Arrivals that no pass has seen yet keep an idle engine awake.
        unseen = bool(getattr(engine, "inbox", ())) or getattr(engine, "passes_again", False)
        if not ends and not unseen:
            self.awake[worker] = False
            # Only workers that transfer KV between steps have reason to.
            look_again_s = self.naps[worker] = getattr(engine, "look_again_s", None)
            if look_again_s is not None:
                heapq.heappush(self.events, (look_again_s, _LOOK, worker))
        elif ends and (step is None or len(ends) == engine.most_outstanding):
            heapq.heappush(self.events, (max(ends[0], held_s), _STEP_END, worker))
        else:
            heapq.heappush(self.events, (held_s, _PASS, worker))

    def _end_step(self, worker: int, now: float) -> None:
        self.ends[worker].popleft()
        engine = self.engines[worker]
        known = set(engine.first_token_s)
        finished = engine.process()
        for index in engine.first_token_s.keys() - known:
            self.router.first_token(index)
        for request in finished:
            index = request.id
            outcome = self.outcomes[index]
            outcome.outcome = FINISHED
            outcome.scheduled_s = engine.first_scheduled_s[index]
            outcome.first_token_s = engine.first_token_s[index]
            outcome.token_s = engine.token_s[index]
            outcome.finish_s = engine.finish_s[index]
            outcome.hit_tokens = engine.reused_tokens[index]
            outcome.preemptions = engine.preemptions.get(index, 0)
            self.tallies[worker].preemptions += outcome.preemptions
            self.router.finished(index)
            self._plan_follow_ups(index, now)
        heapq.heappush(self.events, (now, _PASS, worker))

    def _wake(self, worker: int, now: float) -> None:
        if not self.awake[worker]:
            self.awake[worker] = True
            self.naps[worker] = None
            # A pass without a batch may hold an engine too.
            held_s = getattr(self.engines[worker], "held_s", 0.0)
            heapq.heappush(self.events, (max(now, held_s), _PASS, worker))

    def _plan_follow_ups(self, index: int, now: float) -> None:
        ready = [self.pool.popleft()] if self.pool else self.follow_ups.get(index, [])
        for follow_up in ready:
            heapq.heappush(self.events, (now + float(self.trace.think_s[follow_up]), _ARRIVAL, follow_up))

    def _request(self, index: int, now: float) -> Request:
        trace = self.trace
        return Request(
            id=index,
            arrival_s=now,
            input_tokens=int(trace.input_tokens[index]),
            output_tokens=int(trace.output_tokens[index]),
            max_output_tokens=int(trace.max_output_tokens[index]),
            content=PathContent(index, tree_path(trace, int(trace.output_node[index]))),
            priority=int(trace.priority[index]),
            tenant=int(trace.tenant[index]),
        )


def requests_of(trace: TraceArrays) -> list[Request]:
    """An open-loop trace's requests, as the engines' restatements read them."""
    return [
        Request(
            r,
            float(trace.arrival_s[r]),
            int(trace.input_tokens[r]),
            int(trace.output_tokens[r]),
            int(trace.max_output_tokens[r]),
            PathContent(r, tree_path(trace, int(trace.output_node[r]))),
            int(trace.priority[r]),
            tenant=int(trace.tenant[r]),
        )
        for r in range(len(trace.arrival_s))
    ]


def tree_path(trace: TraceArrays, node: int) -> list[tuple[int, int, int]]:
    """Runs ``(node, start_token, end_token)`` from the root (left out: it has no tokens) to ``node``."""
    runs = []
    while node > 0:
        runs.append((node, int(trace.start_tokens[node]), int(trace.end_tokens[node])))
        node = int(trace.parent[node])
    return runs[::-1]
