"""Chooses, from a profile's list, the profile of an accelerator and engine; the roofline where none is listed."""

from __future__ import annotations

from dataclasses import replace

from hisearch.latency.corrections import corrected
from hisearch.latency.costs import CompiledCosts
from hisearch.latency.estimator import ProfileEstimator, build_estimator, register
from hisearch.latency.estimators.roofline import RooflineEstimator
from hisearch.latency.priced import PricedWorker
from hisearch.latency.sheets import named_as, of_catalogue
from hisearch.specs.base import EngineName
from hisearch.specs.machines.hardware import AcceleratorSpec


@register("auto")
class AutoEstimator(ProfileEstimator):
    """Delegates to the estimator of the chosen profile."""

    def chosen(self, accelerator: AcceleratorSpec, engine: EngineName) -> str | None:
        """Name of the profile for this data sheet and engine; None where none is listed."""
        profiles = {choice.accelerator: choice.profile for choice in self.profile.choices if choice.engine == engine}
        name = named_as(accelerator, profiles)
        return None if name is None else profiles[name]

    def compile(self, priced: PricedWorker) -> CompiledCosts:
        """See ``LatencyEstimator.compile``."""
        name = self.chosen(priced.accelerator, priced.engine.name)
        if name is not None:
            chosen = of_catalogue("LatencyProfile", name)
            return corrected(build_estimator(name, chosen).compile(priced), chosen.corrections)
        costs = RooflineEstimator(self.profile_name, self.profile).compile(priced)
        warning = f"no profile of {priced.engine.name} on this accelerator: the roofline prices its steps"
        return replace(costs, warnings=(*costs.warnings, warning))
