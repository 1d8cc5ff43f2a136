"""What stage 1 rules out by terms about a class is what no simulation of it could meet."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import assume, given
from hypothesis import strategies as st

from hisearch.score.evaluate import evaluate
from hisearch.search.model.demand import measure_demand
from hisearch.search.model.estimates import least_class_tpot, least_class_ttft
from hisearch.search.stages.execution import search_execution
from hisearch.search.stages.execution_report import Shortfall
from hisearch.simulate.results.tables import Outcome
from hisearch.specs.studies.slo import SloSpec, SloTerm
from tests.kernels.systems import System, any_engines, examples, settled, systems
from tests.search.fakes import make_problem
from tests.search.test_stages import tree_trace


def test_own_tokens_are_those_that_no_other_sequence_begins_with() -> None:
    """Node 1 (10 tokens) is all four's; 2 and 3 are of a and c, 4 and 5 of b and d."""
    slo = SloSpec(terms=[SloTerm(metric="ttft_s", percentile=99, at_most_s=2.0, tenant=0)])
    assert measure_demand(tree_trace(), slo).own_tokens.tolist() == [0, 0, 5, 4]


@examples(60)
@given(system=systems(any_engines(), repeats=True), percentile=st.sampled_from([1.0, 50.0, 90.0, 100.0]))
def test_no_class_is_served_faster_than_what_rules_a_worker_out(system: System, percentile: float) -> None:
    """Whatever the order, the hits and the load, where more tokens never take less time."""
    system = replace(system, rugged=False)
    terms = [
        SloTerm(metric=metric, percentile=percentile, at_most_s=1.0, **{by: number})
        for metric in ("ttft_s", "e2e_s", "tpot_s")
        for by, number in (("priority", 0), ("priority", 2), ("tenant", 7))
    ]
    arrays = system.trace.arrays
    classed = [term for term in terms if all((getattr(arrays, name) == v).any() for name, v in term.of_class.items())]
    result = settled(system)
    assume((result.requests.outcome != Outcome.TOO_LARGE).any())
    requests = replace(result.requests, priority=arrays.priority, tenant=arrays.tenant)
    seconds, engine = system.costs.seconds, system.engine
    rejected = float((result.requests.outcome == Outcome.TOO_LARGE).mean())
    for term in classed:
        slo = SloSpec(terms=[term], max_rejected_fraction=rejected)
        demand = measure_demand(system.trace, slo)
        least = max(least_class_ttft(seconds, engine, demand, slo), least_class_tpot(seconds, demand, slo))
        value_s = evaluate(replace(result, requests=requests), slo).slo[0].value_s
        assert value_s is None or value_s >= least * (1 - 1e-9)


def test_terms_of_a_class_rule_out_workers_that_no_load_could_suit() -> None:
    """The fake worlds' slow worker takes longer for a lone prompt of 600 tokens than the class allows."""
    problem = make_problem(accelerators=("slow", "fast"))
    kept = {}
    for at_most_s in (1e6, 1e-6):
        slo = SloSpec(terms=[SloTerm(metric="ttft_s", percentile=90, at_most_s=at_most_s, priority=1)])
        report = search_execution(replace(problem, slo=slo), keep=100)
        kept[at_most_s] = {candidate.ruled_out for candidate in report.sized}
    assert kept[1e6] == {""}
    assert kept[1e-6] == {Shortfall.TTFT}
