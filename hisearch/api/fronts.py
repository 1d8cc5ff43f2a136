"""What two runs asked, and how their fronts compare."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hisearch.api.provenance import price_notes
from hisearch.report.data.comparison import Fronts
from hisearch.score.quantities import usd

if TYPE_CHECKING:
    from hisearch.api.studies.result import StudyResult
    from hisearch.base.dtypes import F8


def question_of(result: StudyResult) -> dict[str, Any]:
    """A run's study as plain values: its spec with all that it names."""
    resolved = result.resolved
    question: dict[str, Any] = resolved.study.model_dump(mode="json", exclude_none=True)
    question.pop("pins", None)
    trace = result.provenance["trace"]
    question["workload"] = {"name": trace["name"], "digest": trace["digest"][:16], "load": resolved.study.workload.load}
    question["model"] = resolved.model_name
    question["slo"] = resolved.slo.spec.model_dump(mode="json")
    question["space"] = resolved.space.spec.model_dump(mode="json")
    question["profile"] = resolved.profile.name
    question["prices"] = {
        note.item: f"{usd(note.price)} per {note.unit.partition('/')[2]}" for note in price_notes(resolved)
    }
    return question


def compare_fronts(results: Sequence[StudyResult]) -> Fronts | None:
    """Points of each front that the other dominates; None where objectives or SLOs differ."""
    from hisearch.search.select.pareto import minimised

    objectives = [tuple(result.resolved.study.objectives) for result in results]
    slos = [result.resolved.slo.spec for result in results]
    feasible = [result.recommendation is not None for result in results]
    if objectives[0] != objectives[1] or slos[0] != slos[1] or not all(feasible):
        return None
    a, b = (minimised(result.front, objectives[0]) for result in results)
    return Fronts(len(a), len(b), _beaten(a, b), _beaten(b, a))


def _beaten(points: F8, others: F8) -> int:
    """Number of ``points`` (n, d) dominated by one of ``others`` (m, d), all minimised."""
    return sum(bool(((others <= point).all(axis=1) & (others < point).any(axis=1)).any()) for point in points)
