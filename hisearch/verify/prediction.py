"""The simulator's prediction for a benchmark's requests, with corrections of the model's terms.

Notation
    N   requests of the replay that the tool sent, in its order
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hisearch.base.dtypes import F8, I8
from hisearch.latency.corrections import corrected
from hisearch.specs.machines.profile import CorrectionSpec
from hisearch.traces.changes.replay import Replay
from hisearch.traces.compiled import CompiledTrace
from hisearch.traces.importers.measured_trace import arrivals as drawn_arrivals
from hisearch.traces.importers.measurement import PERCENTILES, Measurement, PerRequest
from hisearch.traces.sampling import stream
from hisearch.verify.neighbours import Neighbours, Placed
from hisearch.verify.requests import MeasurementError

if TYPE_CHECKING:
    from hisearch.simulate.plans.fleet import FleetPlan, PoolPlan, TransferPlan
    from hisearch.simulate.results.result import Result

#: Draws of Poisson arrivals whose times the tool did not write.
DRAWS = 5
#: Choices of the prompts that lose their hits: the first is fitted with, the others measure luck.
CHOICES = 3
#: Error of a client's times, seconds: it makes a request's worker a matter of luck.
JITTER_S = 0.005
#: Prefix of terms that are a pool's speed.
POOL = "pool:"
_COLUMNS = ("rows", "ttft_s", "e2e_s", "input_tokens", "output_tokens")


@dataclass(frozen=True)
class Correction:
    """Changes to the model before it predicts; the default changes nothing.

    host, prefill, decode: factors, see ``latency.corrections``. front_end_s: seconds that a request spends before the
    scheduler sees it and its tokens on their way back, in addition to the simulated ones. hits_lost: share of requests
    whose prompts hit nothing in the cache. shared: tokens with which all prompts begin alike, of the mean prompt; for
    requests that nobody says to share anything. hand_over: a factor on the time of the KV transfer from prefill to
    decode workers. pools: (name, factor) on all step times of a pool, on top of the factors for all pools.
    """

    host: float = 1.0
    prefill: float = 1.0
    decode: float = 1.0
    front_end_s: float = 0.0
    hits_lost: float = 0.0
    shared: float = 0.0
    hand_over: float = 1.0
    pools: tuple[tuple[str, float], ...] = ()

    def factors_of(self, pool: str) -> CorrectionSpec:
        """Factors on step times of a pool's workers, as a latency profile holds them."""
        speed = dict(self.pools).get(pool, 1.0)
        return CorrectionSpec(host=speed * self.host, prefill=speed * self.prefill, decode=speed * self.decode)

    def value(self, term: str) -> float:
        """A term's value by its name; a pool's is ``pool:NAME``."""
        if term.startswith(POOL):
            return dict(self.pools).get(term.removeprefix(POOL), 1.0)
        return float(getattr(self, term))


@dataclass(frozen=True)
class Prediction:
    """Figures in seconds and per second, under the names of ``score.metrics``, and the requests one by one.

    placed: where each request was served; None where arrivals were drawn more than once, as is when each was sent.
    """

    figures: dict[str, float]
    requests: PerRequest
    placed: Placed | None
    hit_rate: float


class Placing(NamedTuple):
    """Error from not knowing each request's worker.

    figures: of a simulation of the uncorrected model that differs only by a client's jitter. steps: differences
    of its step times from the undisturbed simulation's, see ``parts``.
    """

    figures: dict[str, float]
    steps: tuple[float, float]


class Predictor:
    """Predicts one measurement; equal corrections are simulated once."""

    def __init__(
        self,
        measurement: Measurement,
        replay: Replay,
        plan: FleetPlan,
        run: Callable[..., Result],
        seed: int = 0,
    ) -> None:
        """Prepare predictions.

        Args:
            measurement: of the deployment.
            replay: the requests that were sent, see ``requests.requests_of``.
            plan: the deployment, uncorrected.
            run: simulates it on a trace; ``pooled`` says that a request follows any that ends.
            seed: of random arrivals, and of which requests lose their hits.

        Raises:
            MeasurementError: the times at which the client sent its requests are not known.
        """
        self._plan, self._run = plan, run
        self.transfers_kv = plan.transfers_kv
        unified = [pool.name for pool in plan.pools if pool.role == "unified"]
        self.unequal_pools = tuple(unified) if len(unified) > 1 else ()
        self._replay = replay
        named = [name for ids in replay.block_ids for name in ids]
        self.shares_prompts = len(set(named)) < len(named)
        self._in_flight = measurement.concurrency if measurement.is_closed_loop else None
        self._arrivals_s = _arrivals(measurement, self._replay, seed)
        chance = stream("verify", seed)
        self._orders = tuple(chance.permutation(len(self._replay)) for _ in range(CHOICES))
        self._name = measurement.source
        self._predictions: dict[tuple[Correction, int], Prediction] = {}
        self._neighbours = _neighbours(measurement, plan)
        self._luck: dict[Correction, float] = {}
        self._placing: Placing | None = None
        self._jitter = partial(stream("verify jitter", seed).uniform, 0.0, JITTER_S)
        self._own_steps: dict[tuple[Correction, int], tuple[I8, F8]] = {}
        self._traces: dict[tuple[int, int, float], tuple[CompiledTrace, ...]] = {}

    def __call__(self, correction: Correction, choice: int = 0) -> Prediction:
        """The corrected model's prediction.

        Args:
            correction: of the model.
            choice: of the prompts that lose their hits, below ``CHOICES``; the difference between two is luck.

        Raises:
            ValueError: a request is not finished: the deployment cannot serve what was sent.
        """
        key = correction, choice if correction.hits_lost else 0
        if key not in self._predictions:
            self._predictions[key] = self._predict(*key)
        return self._predictions[key]

    def steps(
        self, correction: Correction, simulated: Correction | None = None, choice: int = 0
    ) -> tuple[I8, F8] | None:
        """Differences of step times among neighbours, see ``Neighbours.differences``; None where they are not known.

        Args:
            correction: whose factors the steps are counted with.
            simulated: of the simulation that gives each request's neighbours; ``correction`` where absent.
            choice: of the simulation's prompts that lose their hits.
        """
        if self._neighbours is None:
            return None
        placed = self(simulated or correction, choice).placed
        return None if placed is None else self._neighbours.differences(placed, correction.factors_of)

    def own_steps(self, correction: Correction, choice: int = 0) -> tuple[I8, F8] | None:
        """``steps`` with the corrected model's prediction as the measurement: the error of the counting itself.

        It is not 0 because prompts share steps, and ends are only known to a step.
        """
        if self._neighbours is None:
            return None
        prediction = self(correction, choice)
        if prediction.placed is None:
            return None
        key = correction, choice
        if key not in self._own_steps:
            counted = self._neighbours.of(prediction.requests)
            self._own_steps[key] = counted.differences(prediction.placed, correction.factors_of)
        return self._own_steps[key]

    def luck(self, correction: Correction) -> float:
        """Difference of step times (see ``distance``) from not knowing which prompts lost their hits.

        It is taken between two simulations that differ in nothing else. One is the measurement, and is counted with the
        neighbours of the other and with its own. 0 if no prompt has lost any.
        """
        placed = self(correction).placed
        if correction.hits_lost == 0.0 or placed is None or self._neighbours is None:
            return 0.0
        if correction not in self._luck:
            swapped = self(correction, 1)
            counted = self._neighbours.of(swapped.requests)
            assert swapped.placed is not None, "arrivals that are drawn once place every request"
            with_neighbours_of_first, with_neighbours_of_swapped = (
                counted.differences(placed_by, correction.factors_of)[1] for placed_by in (placed, swapped.placed)
            )
            self._luck[correction] = distance(with_neighbours_of_first, with_neighbours_of_swapped)
        return self._luck[correction]

    def placing(self) -> Placing:
        """Effect of luck in requests' workers; none with one worker, or if arrivals are drawn."""
        if self._placing is None:
            self._placing = self._find_placing()
        return self._placing

    def _find_placing(self) -> Placing:
        """Compare two simulations that differ in nothing else, one taken as the measurement, as in ``luck``."""
        correction = Correction()
        usual = self(correction)
        if usual.placed is None or sum(pool.slots for pool in self._plan.pools) < 2:
            return Placing(usual.figures, (0.0, 0.0))
        arrival_s = self._arrivals_s[0]
        arrival_s = arrival_s if self._in_flight is not None else arrival_s + self._jitter(len(self._replay))
        result = self._simulate(self._plan, self._compiled(self._replay, arrival_s, JITTER_S))
        requests = self._requests(result, arrival_s)
        if self._neighbours is None:
            return Placing(requests.figures(), (0.0, 0.0))
        counted = self._neighbours.of(requests)
        either = (usual.placed, self._placed(result, arrival_s))
        usual_steps, jittered_steps = (counted.differences(placed, correction.factors_of)[1] for placed in either)
        return Placing(requests.figures(), parts(usual_steps, jittered_steps))

    def _predict(self, correction: Correction, choice: int) -> Prediction:
        """Predict over all draws of the arrivals together; ``choice``: of the prompts that lose their hits."""
        plan = corrected_fleet(self._plan, correction)
        traces = self._draws(round(correction.hits_lost * len(self._replay)), choice, correction.shared)
        results = [self._simulate(plan, trace) for trace in traces]
        served = [self._requests(*pair) for pair in zip(results, self._arrivals_s, strict=True)]
        columns = [np.concatenate([getattr(draw, name) for draw in served]) for name in _COLUMNS]
        rows, ttft_s, e2e_s, inputs, outputs = columns
        late_s = correction.front_end_s
        start_s = served[0].start_s if len(served) == 1 else None
        requests = PerRequest(rows, start_s, ttft_s + late_s, e2e_s + late_s, inputs, outputs)
        figures = requests.figures()
        gaps = int((outputs - 1).sum())
        if gaps:
            figures["itl_mean_s"] = float((e2e_s - ttft_s).sum()) / gaps
            for percent in PERCENTILES:
                figures[f"itl_p{percent}_s"] = float(np.mean([result.itl_s(percent / 100) for result in results]))
        spans_s = [float(r.requests.delivered_s.max() - r.requests.sent_s.min()) + late_s for r in results]
        figures["throughput_rps"] = len(rows) / sum(spans_s)
        figures["output_tokens_per_s"] = float(outputs.sum()) / sum(spans_s)
        placed = self._placed(results[0], self._arrivals_s[0]) if len(results) == 1 else None
        return Prediction(figures, requests, placed, float(np.mean([result.hit_rate for result in results])))

    def _simulate(self, plan: FleetPlan, trace: CompiledTrace) -> Result:
        """One simulation; in a closed loop the next request is sent when any ends."""
        return self._run(plan, trace) if self._in_flight is None else self._run(plan, trace, pooled=True)

    def _compiled(self, replay: Replay, arrival_s: F8, late_s: float = 0.0) -> CompiledTrace:
        """``late_s``: that a client waits before the next request of a closed loop."""
        return replay.compile(self._name, arrival_s, in_flight=self._in_flight, think_s=late_s)

    def _placed(self, result: Result, arrival_s: F8) -> Placed:
        """Workers and hits of requests, in the tool's order."""
        table, back = result.requests, np.argsort(np.argsort(arrival_s, kind="stable"))
        return Placed(table.worker[back], (table.hit_tokens + table.host_hit_tokens + table.storage_hit_tokens)[back])

    def _requests(self, result: Result, arrival_s: F8) -> PerRequest:
        """Requests of one simulation in the tool's order; the trace orders them by arrival."""
        table = result.requests
        finished = table.finished
        if not finished.all():
            raise ValueError(
                f"{self._name}: {int((~finished).sum())} of {len(finished)} requests do not finish in the simulation: "
                "the deployment cannot serve them"
            )
        back = np.argsort(np.argsort(arrival_s, kind="stable"))
        start_s = arrival_s if self._in_flight is None else table.sent_s[back]
        return PerRequest(
            np.arange(len(back)), start_s, table.ttft_s[back], table.e2e_s[back], table.input_tokens[back],
            table.output_tokens[back],
        )  # fmt: skip

    def _draws(self, alone: int, choice: int, shared: float) -> tuple[CompiledTrace, ...]:
        """The replay at each draw of the arrivals.

        Args:
            alone: of its requests share no blocks with others.
            choice: of these.
            shared: tokens with which all prompts begin alike, of the mean prompt.
        """
        key = alone, choice, shared
        if key not in self._traces:
            replay = self._replay
            if shared:
                replay = replay.beginning_alike(round(shared * float(replay.input_tokens.mean())))
            blocks, fresh = list(replay.block_ids), 1 + max(max(ids) for ids in replay.block_ids)
            for index in self._orders[choice][:alone].tolist():
                blocks[index] = tuple(range(fresh, fresh + len(blocks[index])))
                fresh += len(blocks[index])
            replay = replace(replay, block_ids=tuple(blocks))
            self._traces[key] = tuple(self._compiled(replay, arrival_s) for arrival_s in self._arrivals_s)
        return self._traces[key]


def parts(measured: F8, predicted: F8) -> tuple[float, float]:
    """Distance between two sets of differences: of their medians, and of their mean deviations from these."""
    middles = [float(np.median(values)) for values in (measured, predicted)]
    spreads = [float(np.abs(values - at).mean()) for values, at in zip((measured, predicted), middles, strict=True)]
    return abs(middles[0] - middles[1]), abs(spreads[0] - spreads[1])


def distance(measured: F8, predicted: F8) -> float:
    """The sum of both ``parts``."""
    return sum(parts(measured, predicted))


def corrected_fleet(plan: FleetPlan, correction: Correction, *, front_end: bool = False) -> FleetPlan:
    """The deployment with corrected step times and KV transfers.

    front_end: with the front end's correction too, which a prediction adds to latencies instead.
    """
    late_s = correction.front_end_s if front_end else 0.0

    def pool_of(pool: PoolPlan) -> PoolPlan:
        costs = corrected(pool.plan.costs, correction.factors_of(pool.name))
        if late_s:
            costs = replace(costs, front_end=costs.front_end._replace(request_s=costs.front_end.request_s + late_s))
        return replace(pool, plan=replace(pool.plan, costs=costs))

    def transfer_of(transfer: TransferPlan) -> TransferPlan:
        factor = correction.hand_over
        return replace(transfer, base_s=transfer.base_s * factor, bytes_per_s=transfer.bytes_per_s / factor)

    return replace(plan, pools=tuple(pool_of(pool) for pool in plan.pools), transfer=transfer_of(plan.transfer))


def _neighbours(measurement: Measurement, plan: FleetPlan) -> Neighbours | None:
    """None if the tool does not record when requests were sent, or workers have several schedulers or adapters.

    None also with prefill/decode disaggregation: the time at which a request reaches its decode worker is not
    measured. TTFT and TPOT then belong to different workers, so neither hides an error in the other.
    """
    requests = measurement.requests
    timed = requests is not None and requests.start_s is not None and not np.isnan(requests.ttft_s).any()
    plain = all(pool.plan.scheduler_kind == "alone" and pool.plan.agents is None for pool in plan.pools)
    if requests is None or not timed or not plain or plan.transfers_kv:
        return None
    return Neighbours(requests, plan)


def _arrivals(measurement: Measurement, replay: Replay, seed: int) -> tuple[F8, ...]:
    """When each request was sent, seconds from the first one, shape (N,); several draws where unknown.

    In a closed loop only the first ``concurrency`` have a time: 0.
    """
    requests = measurement.requests
    if measurement.is_closed_loop:
        return (np.zeros(len(replay)),)
    if requests is not None and requests.start_s is not None:
        arrival_s = np.interp(np.arange(len(replay)), requests.rows, requests.start_s)
        return (np.asarray(np.maximum(arrival_s - arrival_s.min(), 0.0)),)
    if measurement.concurrency is not None and measurement.concurrency < measurement.sent:
        raise MeasurementError(
            f"{measurement.source}: max_concurrency: the client held requests back, and the file does not say until "
            "when: run vllm bench serve with --save-detailed, or guidellm"
        )
    if measurement.rate_rps is None:
        return (replay.arrival_s,)
    return drawn_arrivals(measurement, len(replay), DRAWS, seed)
