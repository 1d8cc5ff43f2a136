"""Chooses, from a profile's list, the profile of an accelerator and engine.

Where none is listed, the laws of the nearest listed accelerator are carried over; the roofline where none is near.
Either has measured collectives where peers talk over PCIe (``pcie``).
"""

from __future__ import annotations

from dataclasses import replace

from hisearch.latency.corrections import corrected
from hisearch.latency.costs import CompiledCosts
from hisearch.latency.estimator import ProfileEstimator, build_estimator, register
from hisearch.latency.estimators import transfer
from hisearch.latency.estimators.pcie import PcieCollectives, pcie_collectives
from hisearch.latency.estimators.roofline import RooflineEstimator
from hisearch.latency.estimators.scaled import ScaledEstimator
from hisearch.latency.priced import PricedWorker
from hisearch.latency.sheets import in_catalogue, named_as, of_catalogue
from hisearch.specs.base import EngineName
from hisearch.specs.machines.hardware import AcceleratorSpec
from hisearch.specs.machines.profile import LatencyProfileSpec, ProfileChoice


@register("auto")
class AutoEstimator(ProfileEstimator):
    """Delegates to the estimator of the chosen profile."""

    def chosen(self, accelerator: AcceleratorSpec, engine: EngineName) -> str | None:
        """Name of the profile for this data sheet and engine; None where none is listed."""
        profiles = {choice.accelerator: choice.profile for choice in self._known(engine)}
        name = named_as(accelerator, profiles)
        return None if name is None else profiles[name]

    def _known(self, engine: EngineName) -> list[ProfileChoice]:
        """The choices for an engine whose profiles there are: an older list may name some that are gone."""
        return [c for c in self.profile.choices if c.engine == engine and in_catalogue("LatencyProfile", c.profile)]

    def nearest(self, accelerator: AcceleratorSpec, engine: EngineName) -> ProfileChoice | None:
        """The choice whose laws are carried over to this data sheet; None where none is near."""
        return transfer.nearest(accelerator, self._known(engine))

    def selected(self, accelerator: AcceleratorSpec, engine: EngineName) -> tuple[str, LatencyProfileSpec] | None:
        """Name and content of the profile that prices it, carried over or not; None where the roofline does."""
        name = self.chosen(accelerator, engine)
        if name is not None:
            return name, of_catalogue("LatencyProfile", name)
        near = self.nearest(accelerator, engine)
        if near is None:
            return None
        profile = transfer.carried(of_catalogue("LatencyProfile", near.profile), accelerator)
        assert profile.laws is not None
        over_pcie = self._over_pcie(accelerator, engine)
        laws = profile.laws.model_copy(update={"collectives": None if over_pcie is None else over_pcie.curves})
        carried = profile.model_copy(update={"laws": laws, "all_reduce": self.profile.all_reduce})
        return f"{near.profile}, carried over", carried

    def _over_pcie(self, accelerator: AcceleratorSpec, engine: EngineName) -> PcieCollectives | None:
        return pcie_collectives(accelerator, self._known(engine))

    def compile(self, priced: PricedWorker) -> CompiledCosts:
        """See ``LatencyEstimator.compile``."""
        engine = priced.engine.name
        selected = self.selected(priced.accelerator, engine)
        measured = self.chosen(priced.accelerator, engine) is not None
        over_pcie = None if measured else self._over_pcie(priced.accelerator, engine)
        caveats = [over_pcie.warning] if over_pcie is not None and priced.split.stage_ranks > 1 else []
        if selected is None:
            curves = None if over_pcie is None else over_pcie.curves
            costs = RooflineEstimator(self.profile_name, self.profile, curves).compile(priced)
            why = transfer.too_far(priced.accelerator, self._known(engine))
            warning = f"no profile of {engine} on this accelerator: the roofline prices its steps{why}"
            return replace(costs, warnings=(*costs.warnings, warning, *caveats))
        name, profile = selected
        if measured:
            return corrected(build_estimator(name, profile).compile(priced), profile.corrections)
        attained = replace(priced, accelerator=transfer.derated(priced.accelerator))
        costs = ScaledEstimator(name, profile).compile(attained)
        assert profile.laws is not None
        warning = f"no profile of {engine} on this accelerator: laws of {profile.laws.accelerator} are carried over"
        return replace(costs, served=None, warnings=(*costs.warnings, warning, *caveats))
