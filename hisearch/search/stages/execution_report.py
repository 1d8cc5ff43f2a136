"""What stage 1 reports: combinations kept, and why others were not."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from hisearch.latency.device_memory.plan import DoesNotFit
from hisearch.latency.sharding import InvalidParallelism
from hisearch.search.model.candidates import Candidate, Kept
from hisearch.specs.base import ENGINE_TITLES
from hisearch.specs.wording import counted, format_percent, listed


class Shortfall(StrEnum):
    """Why even the most favourable estimate of a worker misses the SLO; the text is that of reports."""

    TPOT = "misses TPOT alone"
    TTFT = "misses TTFT alone"
    LOAD = "too slow for the load"


#: Shortfall -> its meaning for workers, and the size of the nearest one's miss.
_HOPELESS: Mapping[str, tuple[str, str]] = {
    Shortfall.TPOT: ("miss TPOT even with a single request", "misses TPOT by {share}"),
    Shortfall.TTFT: ("miss TTFT even with a single request", "misses TTFT by {share}"),
    Shortfall.LOAD: ("cannot carry the load with all the replicas allowed", "carries 1/{times} of the load"),
}


@dataclass(frozen=True)
class ExecutionReport:
    """Result of stage 1.

    combinations: number checked. skipped: reason -> number. sized: all that can be built. kept: for stage 2, best
    first. If no estimate meets the SLO, the nearest ones are kept, so that the simulation can measure their miss.
    nearest_fit: description of the worker that misses its memory by the fewest bytes, or "". sides: prefill and decode
    workers that can be built, if the space has any; ``sized`` are unified ones.
    """

    combinations: int
    skipped: dict[str, int]
    sized: list[Candidate]
    kept: Sequence[Kept]
    nearest_fit: str = ""
    sides: Sequence[Candidate] = ()

    @property
    def hopeless(self) -> str:
        """Why no budget helps, if every worker misses the SLO at zero load or with all replicas allowed; else ""."""
        workers = [*self.sized, *self.sides]
        if not workers or not all(worker.ruled_out for worker in workers):
            return ""
        shortfalls = Counter(worker.ruled_out for worker in workers)
        reasons = listed([f"{count:,} {_HOPELESS[shortfall][0]}" for shortfall, count in shortfalls.most_common()])
        nearest = min(workers, key=lambda worker: worker.ruled_out_by)
        times = (1 + nearest.ruled_out_by) * (1 + nearest.margin)
        pool = nearest.pool
        miss = _HOPELESS[nearest.ruled_out][1].format(share=format_percent(times - 1), times=f"{times:.3g}")
        return (
            "No deployment of this search space can meet the SLO, and a larger budget will not help: of "
            f"{counted(len(workers), 'worker')} that can be built {reasons}. The nearest, "
            f"{pool.parallelism.ranks} × {pool.accelerator} with {ENGINE_TITLES[pool.engine.name]}, "
            f"{miss} by step times alone, of which {format_percent(nearest.margin)} are allowed for their error."
        )

    def summary(self) -> str:
        """One line for people."""
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in sorted(self.skipped.items()))
        return (
            f"{counted(self.combinations, 'combination')}: {len(self.kept):,} kept of "
            f"{len(self.sized) + len(self.sides):,} that can be "
            "built" + (f"; skipped: {reasons}" if reasons else "")
        )


class Refusals:
    """Counts why combinations were not considered."""

    def __init__(self) -> None:
        self.reasons: Counter[str] = Counter()
        self.nearest_fit = ""
        self._bytes_short = math.inf

    def count(self, reason: str, times: int = 1) -> None:
        """Count a reason."""
        if times:
            self.reasons[reason] += times

    def refused(self, error: ValueError) -> None:
        """Count a worker that cannot be built, by the class of its error."""
        if isinstance(error, DoesNotFit):
            self.count("does not fit")
            if error.bytes_short < self._bytes_short:
                self._bytes_short, self.nearest_fit = error.bytes_short, str(error)
        else:
            split = isinstance(error, InvalidParallelism) and error.key != "weight_dtype"
            self.count("cannot be split" if split else str(error))
