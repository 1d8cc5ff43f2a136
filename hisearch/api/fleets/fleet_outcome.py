"""What a study of several models came to: fronts, combinations, recommendation."""

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
    """What a study of several models came to. results: of each model's own study, those that were begun."""

    resolved: ResolvedFleetStudy
    results: Mapping[str, StudyOutcome]
    run_dir: Path

    @property
    def stopped(self) -> str:
        """What ended a model's search before it had simulated all that it wanted to, "" where nothing did."""
        return next((result.stopped for result in self.results.values() if result.stopped), "")

    @property
    def missed(self) -> tuple[str, ...]:
        """Models of which nothing that was simulated meets the SLO, and those that were not searched."""
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
        """True where a probability was asked for that nothing has which was looked at, of some model."""
        return any(result.unsure for result in self.results.values())

    @cached_property
    def tokens(self) -> tuple[float, ...]:
        """Tokens, prompts and outputs, that each model is asked for."""
        traces = [result.simulation.world.trace.arrays for result in self.results.values()]
        return tuple(float(arrays.input_tokens.sum() + arrays.output_tokens.sum()) for arrays in traces)

    @cached_property
    def combinations(self) -> tuple[Combination, ...]:
        """The front of the whole before its limits are looked at; empty where a model has nothing that serves."""
        if self.missed:
            return ()
        return combine([result.front for result in self.results.values()], self.resolved.study.axes, self.tokens)

    @cached_property
    def front(self) -> tuple[Combination, ...]:
        """The front of the whole, of deployments that keep to the limits."""
        limits = self.resolved.study.limits_by_name
        return tuple(one for one in self.combinations if one.within(limits))

    @cached_property
    def recommendation(self) -> Combination | None:
        """The deployment to buy: what each model's study recommends, or the cheapest that all limits together allow.

        None where a model has none, or no combination keeps to the limits.
        """
        if self.missed:
            return None
        limits = self.resolved.study.limits_by_name
        own = [result.recommendation.trial for result in self.results.values() if result.recommendation is not None]
        (each,) = combine([[trial] for trial in own], self.resolved.study.axes, self.tokens)
        return each if each.within(limits) else cheapest(self.combinations, limits)
