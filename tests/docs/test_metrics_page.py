"""docs/metrics.md defines every figure that a simulation is scored with."""

import itertools
import re

from hisearch.score.evaluate import evaluate
from hisearch.specs.studies.slo import SloSpec, SloTerm
from tests.docs.pages import ROOT
from tests.score.results import random_result


def defined() -> set[str]:
    """Keys in the first column of the table of figures; ``ttft_*`` stands for each of the endings next to it."""
    text = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    section = text.partition("\n## The figures of a simulation\n")[2].partition("\n## ")[0]
    rows = [re.findall(r"`([^`]+)`", row.split("|")[1]) for row in section.splitlines() if row.startswith("| `")]
    names = set(itertools.chain.from_iterable(rows))
    stems = {name.removesuffix("_*") for name in names if name.endswith("_*")}
    endings = {name for name in names if name.startswith("_")}
    plain = {name for name in names if name not in endings and not name.endswith("_*")}
    return plain | {stem + ending for stem, ending in itertools.product(stems, endings)}


def test_it_defines_exactly_the_figures_of_a_score() -> None:
    # The figures of TTFO are there where the SLO names it.
    slo = SloSpec(terms=[SloTerm(metric="ttfo_s", percentile=99, at_most_s=1.0)])
    assert defined() == set(evaluate(random_result(0), slo).metrics)
