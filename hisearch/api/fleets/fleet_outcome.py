"""The result of a study of several models: fronts, combinations, recommendation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from hisearch.api.studies.study_outcome import StudyOutcome
from hisearch.search.select.fleet_front import Combination, cheapest, combine
from hisearch.specs.documents.resolve_fleet import ResolvedFleetStudy
from hisearch.specs.wording import listed


@dataclass(frozen=True)
class FleetOutcome:
    """The result of a study of several models. results: of each model's own study that was begun."""

    resolved: ResolvedFleetStudy
    results: Mapping[str, StudyOutcome]
    run_dir: Path

    @property
    def stopped(self) -> str:
        """What stopped a model's search before it was complete; "" where nothing did."""
        return next((result.stopped for result in self.results.values() if result.stopped), "")

    @property
    def missed(self) -> tuple[str, ...]:
        """Models without a deployment that meets the SLO, and those that were not searched."""
        return tuple(
            name
            for name in self.resolved.parts
            if name not in self.results or self.results[name].recommendation is None
        )

    @property
    def refusal(self) -> str:
        """Why nothing is recommended, as a sentence; "" where something is."""
        if self.recommendation is not None:
            return ""
        if self.missed:
            return f"Nothing that was simulated meets the SLO of {listed(self.missed)}."
        limits = listed(self.resolved.study.coupling)
        return f"Every model has deployments that meet its SLO; those of all together exceed the limits on {limits}."

    @property
    def unsure(self) -> bool:
        """True where no assessed deployment of some model reaches the requested probability."""
        return any(result.unsure for result in self.results.values())

    @cached_property
    def tokens(self) -> tuple[float, ...]:
        """Prompt and output tokens of each model's workload."""
        traces = [result.simulation.world.trace.arrays for result in self.results.values()]
        return tuple(float(arrays.input_tokens.sum() + arrays.output_tokens.sum()) for arrays in traces)

    @cached_property
    def combinations(self) -> tuple[Combination, ...]:
        """The combined front, before limits apply; empty where a model has no feasible deployment."""
        if self.missed:
            return ()
        return combine([result.front for result in self.results.values()], self.resolved.study.axes, self.tokens)

    @cached_property
    def front(self) -> tuple[Combination, ...]:
        """The combined front, of combinations within the limits."""
        limits = self.resolved.study.limits_by_name
        return tuple(combination for combination in self.combinations if combination.within(limits))

    @cached_property
    def recommendation(self) -> Combination | None:
        """The deployment to buy: each model's own recommendation, or the cheapest combination within the limits.

        None where a model has no recommendation, or no combination is within the limits.
        """
        if self.missed:
            return None
        limits = self.resolved.study.limits_by_name
        trials = [result.recommendation.trial for result in self.results.values() if result.recommendation is not None]
        (combination,) = combine([[trial] for trial in trials], self.resolved.study.axes, self.tokens)
        return combination if combination.within(limits) else cheapest(self.combinations, limits)
