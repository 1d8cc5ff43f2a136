"""Race of deployments for the largest rate: each is refined only as long as it can still win.

The leader's rate is known within ``TOLERANCE``. Every other entrant is first tried for a short while at a rate just
above it: one that overloads there cannot win, and costs a fraction of a simulation. One that does not is tried for as
long as a steady state takes, and its rate searched upwards from there: it is the new leader. At the end the leader's
neighbours are tried in the same way, a setting at a time, until none carries more.

A space of more than ``SMALL`` entrants is halved: if the most promising of a group (all of one split, engine and
formats) does not carry ``REACH`` of the leader's rate, its variants of batch limits are left out.

Rates are loads of the study's workload. A verdict need not be monotone in load, so that the winner is the best within
the tolerance of the verdicts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from hisearch.score.capacity import Capacity, capacity
from hisearch.score.evaluate import Score
from hisearch.search.model.job import TRIAL_ERRORS, Evaluation
from hisearch.search.rate.entrants import Entrant
from hisearch.specs.deployments.deployment import DeploymentSpec

#: Relative distance of the largest rate that holds and the smallest that does not; of a challenge above the leader's.
TOLERANCE = 0.01

#: Largest space in which every entrant is tried; and the share of the leader's rate that keeps a group in the race.
SMALL = 64
REACH = 0.6

#: Entrants that are tried at the same leader's rate: fixed, so that the winner does not depend on the threads.
BATCH = 4

#: Factor between rates while a rate is bracketed, and the range of rates that is searched.
GROWTH = 1.3
LEAST_LOAD, MOST_LOAD = 1e-4, 1e6


class EvaluateAt(Protocol):
    """Simulates a deployment at a load; ``brief``: only for as long as shows a clear overload."""

    def __call__(self, deployment: DeploymentSpec, load: float, *, brief: bool = False) -> Evaluation:
        """See the class.

        Raises:
            ValueError: the deployment cannot be built or simulated.
        """


@dataclass(frozen=True)
class Carried:
    """What a deployment carries.

    load: the largest that held, 0.0 if none did. evaluation: there. missed: at the smallest that did not hold.
    """

    deployment: DeploymentSpec
    capacity: Capacity
    evaluation: Evaluation | None = None
    missed: Evaluation | None = None

    @property
    def load(self) -> float:
        """Largest load that held."""
        return self.capacity.load


@dataclass
class Race:
    """A race in progress.

    evaluate: simulates. each: runs a function on every item, in threads. over: the limit that lets no new simulation
    begin, or "". tried: entrants looked at; simulations: loads simulated; carried: of all whose rate was searched, in
    order. ended: the limit that left some entrants untried, or "".
    """

    evaluate: EvaluateAt
    each: Callable[[Callable[[Entrant], bool], Sequence[Entrant]], list[bool]]
    over: Callable[[], str]
    tried: int = 0
    simulations: int = 0
    carried: list[Carried] = field(default_factory=list)
    leader: Carried | None = None
    ended: str = ""
    _seen: set[str] = field(default_factory=set)

    def run(self, entrants: Sequence[Entrant]) -> None:
        """Race the entrants in their order."""
        groups = list(dict.fromkeys(entrant.group for entrant in entrants))
        firsts, others = entrants[: len(groups)], entrants[len(groups) :]
        self.challenge(firsts)
        if len(entrants) > SMALL and self.leader is not None:
            near = {entrant.group for entrant in self._holding(firsts, REACH * self.leader.load)}
            others = [entrant for entrant in others if entrant.group in near]
        self.challenge(others)

    def challenge(self, entrants: Sequence[Entrant]) -> None:
        """Try every entrant that was not tried yet against the leader."""
        fresh = [entrant for entrant in entrants if self._is_new(entrant.deployment)]
        at = 0
        while at < len(fresh):
            self.ended = self.over()
            if self.ended:
                return
            # Without a leader, the first one sets the rate.
            batch = fresh[at : at + (BATCH if self.leader is not None else 1)]
            at += len(batch)
            self.tried += len(batch)
            for entrant in self._hopeful(batch):
                self._refine(entrant)

    def _is_new(self, deployment: DeploymentSpec) -> bool:
        key = deployment.model_dump_json()
        new = key not in self._seen
        self._seen.add(key)
        return new

    def _hopeful(self, batch: Sequence[Entrant]) -> list[Entrant]:
        """Those that do not overload at once above the leader's rate."""
        if self.leader is None:
            return list(batch)
        return self._holding(batch, self.leader.load * (1.0 + TOLERANCE))

    def _holding(self, entrants: Sequence[Entrant], load: float) -> list[Entrant]:
        """Those that do not overload at once at ``load``."""

        def holds(entrant: Entrant) -> bool:
            try:
                return self.evaluate(entrant.deployment, load, brief=True).feasible
            except TRIAL_ERRORS:
                return False

        verdicts = self.each(holds, entrants)
        self.simulations += len(entrants)
        return [entrant for entrant, held in zip(entrants, verdicts, strict=True) if held]

    def _refine(self, entrant: Entrant) -> None:
        """Search an entrant's rate from the leader's upwards; it leads if it carries more."""
        least = self.leader.load * (1.0 + TOLERANCE) if self.leader is not None else LEAST_LOAD
        start = max(entrant.estimate_rps, LEAST_LOAD) if self.leader is None else least
        carried = self.search(entrant.deployment, start, least)
        if carried is not None and carried.load > 0.0:
            self.leader = carried

    def search(self, deployment: DeploymentSpec, start: float, least: float = LEAST_LOAD) -> Carried | None:
        """The largest load of a deployment, not below ``least``; None if it cannot be simulated. start: tried first."""
        seen: dict[float, Evaluation] = {}

        def score_at(load: float) -> Score:
            seen[load] = self.evaluate(deployment, load)
            self.simulations += 1
            return Score(seen[load].metrics, seen[load].slo, seen[load].feasible)

        try:
            largest = capacity(
                score_at,
                start=min(max(start, least), MOST_LOAD),
                growth=GROWTH,
                relative_tolerance=TOLERANCE,
                min_load=least,
                max_load=MOST_LOAD,
            )
        except TRIAL_ERRORS:
            return None
        carried = Carried(deployment, largest, seen.get(largest.load), seen.get(largest.infeasible_load))
        self.carried.append(carried)
        return carried
