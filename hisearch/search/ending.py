"""How a search ended: what the budget left untried, in words that every view shares."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from hisearch.search.execution import Candidate
from hisearch.search.trial import Trial
from hisearch.specs.study import BudgetSpec
from hisearch.specs.wording import counted, listed

#: ``Ending.stopped`` where nothing was left out, as provenance writes it.
FINISHED = "finished"

#: What may be left untried, beside candidates of stage 1.
UNTRIED_REPLICAS = "one replica less of the recommendation"
UNTRIED_SIZES = "some numbers of replicas"
UNTRIED_ROUTERS = "some routers with the replicas found"
UNTRIED_ENGINES = "the best one on another engine"
UNTRIED_CACHE = "the cache tiers (stage 3)"
UNTRIED_CACHE_SETTINGS = "all settings of the cache tiers (stage 3)"
UNTRIED_LOADS = "larger loads"

#: As they are listed: what matters most to a buyer first.
_ORDER = (
    UNTRIED_REPLICAS,
    UNTRIED_SIZES,
    UNTRIED_ROUTERS,
    UNTRIED_ENGINES,
    UNTRIED_CACHE,
    UNTRIED_CACHE_SETTINGS,
    UNTRIED_LOADS,
)


@dataclass(frozen=True)
class Ending:
    """How a search ended.

    stopped: what ended it before it had simulated all that it wanted to: "simulations", "seconds" or "interrupted"; ""
    where nothing did. untried: what was left out, in words. budget: the study's.
    """

    stopped: str
    untried: tuple[str, ...]
    budget: BudgetSpec

    @property
    def key(self) -> str:
        """The budget's key that a longer search needs raised; "" where that is not what ended it."""
        return f"spec.budget.{self.stopped}" if self.stopped in {"simulations", "seconds"} else ""

    def in_words(self) -> str:
        """``the budget of 20 simulations ended the search before it had tried larger loads``."""
        who = {
            "": "the search came to its end: it had nothing more to try",
            "simulations": f"the budget of {counted(self.budget.simulations, 'simulation')} ended the search",
            "seconds": f"the budget of {self.budget.seconds:g} s ended the search",
            "interrupted": "an interrupt ended the search",
        }[self.stopped]
        return f"{who} before it had tried {listed(self.untried)}" if self.stopped and self.untried else who

    def caution(self, recommended: bool) -> str:
        """What a reader must know of a search that was cut short, as sentences; "" of one that was not.

        Args:
            recommended: whether it found a deployment that meets the SLO.
        """
        if not self.stopped:
            return ""
        if self.untried == (UNTRIED_LOADS,):
            hope = "what the recommended deployment can carry beyond this load is not known"
        elif recommended:
            hope = "a cheaper deployment may meet the SLO"
        else:
            hope = "a longer one may find a deployment that meets the SLO"
        text = f"{_capital(self.in_words())}: {hope}."
        return f"{text} Raise {self.key} to search on." if self.key else text


def in_order(found: Collection[str]) -> list[str]:
    """What was left untried, each once, as it is listed; "" is nothing."""
    return [part for part in _ORDER if part in found]


def untried_candidates(kept: Sequence[Candidate], trials: Sequence[Trial]) -> str:
    """``3 of 12 candidates of stage 1``: those that no simulation has looked at; "" where there is none."""
    seen = {trial.deployment.pool.model_copy(update={"replicas": 1}).model_dump_json() for trial in trials}
    unseen = sum(candidate.pool.model_dump_json() not in seen for candidate in kept)
    if unseen == len(kept):
        return f"any of {counted(len(kept), 'candidate')} of stage 1"
    return f"{unseen:,} of {counted(len(kept), 'candidate')} of stage 1" if unseen else ""


def untried_replicas(best: Trial, trials: Sequence[Trial]) -> str:
    """``UNTRIED_REPLICAS`` where the deployment was not simulated with one replica less; else ""."""
    pool = best.deployment.pool
    fewer = pool.model_copy(update={"replicas": pool.replicas - 1})
    tried = any(trial.deployment.pool == fewer and trial.slice_fraction == 1.0 for trial in trials)
    return "" if tried or pool.replicas == 1 else UNTRIED_REPLICAS


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
