"""How a search ended: what its budget and its own rules left out, as texts shared by all views."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from hisearch.search.model.candidates import Kept
from hisearch.search.model.deployments import one_less
from hisearch.search.model.trial import Trial
from hisearch.search.stages.shortlist import key_of
from hisearch.specs.studies.study import BudgetSpec, RuleName
from hisearch.specs.wording import capitalised, counted, listed

#: ``Ending.stopped`` in provenance if nothing was left out.
FINISHED = "finished"


class Untried(StrEnum):
    """What a budget may leave untried, besides candidates of stage 1: what matters most to a buyer first."""

    REPLICAS = "one replica less of the recommendation"
    MOST = "some workers with as many replicas as are allowed"
    NEIGHBOURS = "some settings next to the recommended ones"
    SIZES = "some numbers of replicas"
    ROUTERS = "some routers with the replicas found"
    ENGINES = "the best one on another engine"
    ALTERNATIVES = "some numbers of replicas on other accelerators or engines"
    LOADS = "larger loads"
    CACHE = "the cache tiers (stage 3)"


#: What a limit on wall time means for an answer.
ON_ANOTHER_DAY = "a less busy or faster machine may answer otherwise"

#: What a longer search might bring, by rule, and what it is unlikely to bring where nothing likely is left untried.
#: Searches look for what is cheaper, or carries more: of other rules' choices it is not known.
_HOPES: Mapping[RuleName, str] = {"most_headroom": "another deployment may carry more"}
_UNLIKELY: Mapping[RuleName, str] = {"cheapest": "change the recommendation", "most_headroom": "carry more"}

#: How many untried things a caution names.
_NAMED = 2


@dataclass(frozen=True)
class Ending:
    """How a search ended.

    stopped: what ended it early: "simulations", "seconds", "usd" or "interrupted"; "" if nothing did. untried: texts of
    what was left out. budget: the study's. used: simulations made within it. left_out: texts of what the search's own
    rules left out, whatever the budget. likely: texts of the untried that may change the recommendation; of rules but
    ``most_headroom``, that may be cheaper. proven: stage 1 has ruled out every worker, so that the search ended early.
    rule: the study's.
    """

    stopped: str
    untried: tuple[str, ...]
    budget: BudgetSpec
    used: int
    left_out: tuple[str, ...] = ()
    likely: tuple[str, ...] = ()
    proven: bool = False
    rule: RuleName = "cheapest"

    @property
    def unlikely(self) -> str:
        """What the untried is unlikely to do where none of it is ``likely``: ``change the recommendation``."""
        return _UNLIKELY.get(self.rule, "be cheaper")

    @property
    def key(self) -> str:
        """The budget's key to raise for a longer search; "" if no budget ended it."""
        return f"spec.budget.{self.stopped}" if self.stopped in {"simulations", "seconds", "usd"} else ""

    def describe(self) -> str:
        """``the budget of 20 simulations ended the search before it had tried larger loads``."""
        if self.proven:
            return (
                f"the search ended after {counted(self.used, 'simulation')}, of the workers nearest to the SLO: step "
                "times alone rule out every worker of the space"
            )
        rules = f"by its own rules it left out {listed(self.left_out)}" if self.left_out else ""
        if not self.stopped:
            return f"the search came to its end; {rules or 'it had nothing more to try'}"
        text = self.who()
        if self.untried:
            text += f" before it had tried {listed(self.untried)}"
            if not self.likely:
                text += f", none of it likely to {self.unlikely}"
        return f"{text}; {rules}" if rules else text

    def who(self, *, short: bool = False) -> str:
        """What ended the search; for a budget of simulations, unless ``short``, also why some were left."""
        if self.stopped == "interrupted":
            return "an interrupt ended the search"
        if self.stopped == "seconds":
            return f"the budget of {self.budget.seconds:g} s ended the search"
        if self.stopped == "usd":
            return f"the budget of ${self.budget.usd:g} of this machine's time ended the search"
        text = f"the budget of {counted(self.budget.simulations, 'simulation')}"
        left = self.budget.simulations - self.used
        return (
            f"{text} ended the search"
            if left <= 0 or short
            else (f"{text}, {left:,} of them held back for the last steps, which did not need them, ended the search")
        )

    def caution(self, recommended: bool, hopeless: bool = False, run: str = "RUN") -> str:
        """Sentences on a search that was cut short; "" if it was not, or by simulations where nothing likely is left.

        recommended: it found a deployment that meets the SLO. hopeless: stage 1 expects that none can. run: the run's
        folder, quoted for a shell.
        """
        if not self._matters(recommended):
            return f"{capitalised(self.timed())}." if self.timed() else ""
        text = capitalised(self.who(short=True))
        left = len(self.likely) - _NAMED
        more = [f"{left} more (under Provenance in the report)"] if left > 0 else []
        if self.likely:
            text += f" before it had tried {listed([*self.likely[:_NAMED], *more])}"
        if self.interrupted and recommended:
            return f"{text}: the answer is provisional, its chance is not known. To search on: {self.resume(run)}"
        if hopeless and not recommended:
            return f"{text}. A larger budget will not help."
        return f"{text}: {self._outlook(recommended)}. To search on: {self.resume(run)}"

    def brief(self, recommended: bool, hopeless: bool = False, run: str = "RUN") -> str:
        """The same in a line, with the first thing that was not tried."""
        if not self._matters(recommended):
            return self.timed()
        if self.interrupted and recommended:
            return f"interrupted, provisional; go on with {self.resume(run)}"
        if hopeless and not recommended:
            return f"{self.who(short=True)}: a larger one will not help"
        first = self.likely[0] if len(self.likely) == 1 else f"{self.likely[0]} and {len(self.likely) - 1} more"
        return f"{first} untried: {self._outlook(recommended)}; go on with {self.resume(run)}"

    def resume(self, run: str) -> str:
        """The command that searches on, with twice the budget that ended the search."""
        if not self.key:
            return f"hisearch run --resume {run}"
        return f"hisearch run --resume {run} --set {self.key}={2 * getattr(self.budget, self.stopped):g}"

    def _matters(self, recommended: bool) -> bool:
        """True if the search was cut short and what it left untried may change the recommendation."""
        return self.interrupted or (bool(self.stopped) and (bool(self.likely) or not recommended))

    @property
    def interrupted(self) -> bool:
        """Whether somebody ended it: its answer is then neither compared nor checked."""
        return self.stopped == "interrupted"

    def timed(self) -> str:
        """That wall time ended the search, whatever was left; "" if it did not."""
        return f"{self.who()}: {ON_ANOTHER_DAY}" if self.stopped in {"seconds", "usd"} else ""

    def _outlook(self, recommended: bool) -> str:
        """What a longer search might bring."""
        if recommended:
            return _HOPES.get(self.rule, "a cheaper deployment may meet the SLO")
        return "a longer one may find a deployment that meets the SLO"


def unseen(kept: Sequence[Kept], trials: Sequence[Trial]) -> list[Kept]:
    """Candidates without any simulation."""
    seen = {key_of(trial.deployment.pools) for trial in trials}
    return [candidate for candidate in kept if key_of(side.pool for side in candidate.sides) not in seen]


def untried_candidates(kept: Sequence[Kept], trials: Sequence[Trial]) -> str:
    """``3 of 12 candidates of stage 1``: those without any simulation; "" if there are none."""
    count = len(unseen(kept, trials))
    if count == len(kept):
        return f"any of {counted(len(kept), 'candidate')} of stage 1"
    return f"{count:,} of {counted(len(kept), 'candidate')} of stage 1" if count else ""


def dropped_candidates(kept: Sequence[Kept], trials: Sequence[Trial]) -> str:
    """``3 of 12 candidates of stage 1 after slices of the trace``: never simulated on all of it; "" if none was."""
    seen = {key_of(trial.deployment.pools) for trial in trials}
    replayed = {key_of(trial.deployment.pools) for trial in trials if trial.slice_fraction == 1.0}
    dropped = sum(key_of(side.pool for side in candidate.sides) in seen - replayed for candidate in kept)
    return f"{dropped:,} of {counted(len(kept), 'candidate')} of stage 1 after slices of the trace" if dropped else ""


def untried_settings(total: int, tried: int) -> str:
    """``up to 40 of 120 settings of the cache tiers (stage 3)``: those not simulated on the complete trace.

    Some of them may not be buildable, which is not checked; "" if all were simulated.
    """
    left = total - tried
    return f"up to {left:,} of {counted(total, 'setting')} of the cache tiers (stage 3)" if left else ""


def untried_replicas(best: Trial, trials: Sequence[Trial]) -> str:
    """``Untried.REPLICAS`` if a deployment with one replica less of some pool was not simulated; else ""."""
    tried = [trial.deployment.pools for trial in trials if trial.slice_fraction == 1.0]
    smaller = [fewer.pools for fewer in one_less(best.deployment)]
    return "" if all(pools in tried for pools in smaller) else Untried.REPLICAS
