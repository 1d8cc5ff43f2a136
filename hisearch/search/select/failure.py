"""Why a search has nothing to recommend, as texts shared by all views."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hisearch.score.quantities import quantity
from hisearch.score.terms import REJECTED, RejectionCheck, TermCheck
from hisearch.search.model.trial import Trial
from hisearch.search.select.pareto import miss_order
from hisearch.specs.wording import counted, listed


@dataclass(frozen=True)
class Failure:
    """Why nothing is recommended.

    deployments: number simulated on the complete trace with figures; none of them meets the SLO. 0: nothing was
    examined. missed: label of an SLO term -> how many of them miss it. text: a sentence or two for people. hopeless:
    stage 1 expects that no deployment can meet the SLO, and no simulation speaks against it.
    """

    deployments: int
    missed: dict[str, int]
    text: str
    hopeless: bool = False

    @property
    def examined(self) -> bool:
        """True if a deployment was checked against the SLO: only then can none be said to meet it."""
        return self.deployments > 0

    @property
    def heading(self) -> str:
        """The search's result, in a few words."""
        return "Nothing meets the SLO among what was simulated" if self.examined else "No answer"


def explain(trials: Sequence[Trial], hopeless: str = "") -> Failure:
    """Why none of ``trials``, all of a study's and none feasible, can be recommended.

    Args:
        trials: the study's.
        hopeless: why stage 1 expects that no deployment can meet the SLO; "" if it does not. Left out if a simulation
            met every latency term.
    """
    failure, hopeless = _explain(trials), "" if refuted(trials) else hopeless
    return replace(failure, text=f"{failure.text} {hopeless}".strip(), hopeless=bool(hopeless))


def refuted(trials: Sequence[Trial]) -> bool:
    """True if a simulation met every latency term, which stage 1's estimates may have ruled out."""
    return any(
        trial.comparable and trial.slo and all(check.holds for check in trial.slo if isinstance(check, TermCheck))
        for trial in trials
    )


def _explain(trials: Sequence[Trial]) -> Failure:
    comparable = [trial for trial in trials if trial.comparable]
    if not comparable:
        return Failure(0, {}, _nothing_examined(trials))
    missed = Counter(check.label for trial in comparable for check in trial.slo if not check.holds)
    none = f"None of the {counted(len(comparable), 'deployment')} simulated on the whole trace meets the SLO"
    if set(missed) == {REJECTED}:
        text = f"{none}, and only because of rejected requests: every latency term is met."
    else:
        terms = listed([f"{quantity(label).within} by {count:,}" for label, count in missed.most_common()])
        text = f"{none}; missed are {terms} of them."
    return Failure(len(comparable), dict(missed), text + _rejections(min(comparable, key=miss_order)))


def _nothing_examined(trials: Sequence[Trial]) -> str:
    """Text for neither met nor missed: no simulation of the complete trace gave figures."""
    if not trials:
        return "No deployment was simulated."
    errors = [trial.error for trial in trials if trial.error]
    text = f"No deployment was simulated on the whole trace: {counted(len(trials), 'simulation')} came to "
    return text + (f"an error, the first to: {errors[0]}" if len(errors) == len(trials) else "the end on slices only.")


def _rejections(nearest: Trial) -> str:
    """The nearest miss's rejected requests, if too many, and whether another deployment can help."""
    check = next((check for check in nearest.slo if isinstance(check, RejectionCheck)), None)
    if check is None or check.holds:
        return ""
    note = f"{check.note}, and the SLO allows {f'{check.bound * 100:g} %' if check.bound > 0 else 'none'}."
    if not nearest.rejects_beyond_window:
        return f" At the nearest miss {note}"
    return (
        f" No deployment of this model can meet it: {note} Leave such requests out of the trace "
        "(spec.file.max_tokens of a Workload, --max-tokens of `hisearch trace import`), or allow a share of them: "
        "max_rejected_fraction of the SLO, or a phrase with rejected < 1%."
    )
