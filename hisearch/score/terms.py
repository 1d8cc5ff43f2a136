"""One SLO term held against a simulation."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TermCheck:
    """A term's value beside its bound.

    ``margin`` is 1 - value / bound: positive inside the SLO, negative by how much it is missed.
    """

    label: str
    value_s: float
    bound_s: float

    @property
    def margin(self) -> float:
        """Share of the bound that is left; negative where it is missed, minus infinity for an infinite value."""
        return 1.0 - self.value_s / self.bound_s

    @property
    def holds(self) -> bool:
        """True where the term is met."""
        return self.value_s <= self.bound_s
