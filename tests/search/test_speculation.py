"""Drafted tokens as a dimension of a search: what is tried, priced, called and left out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hisearch.latency.costs import CompiledCosts, HostFloor
from hisearch.latency.drafting.drafter import with_drafter
from hisearch.latency.step_cost import decode_step_seconds
from hisearch.report.words.templating import text
from hisearch.search.evaluate.simulation import Simulation
from hisearch.search.evaluate.world import World
from hisearch.search.model.deployments import (
    deployment_of,
    describe,
    describe_each,
    hardware,
    on_engine,
    parameters_of,
    with_cache,
)
from hisearch.search.model.problem import Problem
from hisearch.search.model.tier_choices import TierChoice
from hisearch.search.model.trial import Trial
from hisearch.search.records.pool_dimensions import pool_dimensions
from hisearch.search.refine.alternatives import KINDS, SPECULATION, kinds_of
from hisearch.search.refine.local_search import changed
from hisearch.search.select.speculation import brief_speculation, describe_speculation, drafts_of
from hisearch.search.stages.execution import group_count, groups, search_execution
from hisearch.simulate.draft_use import notes, paying_batch
from hisearch.specs.base import DType
from hisearch.specs.deployments.deployment import DeploymentSpec, EngineSpec, PoolSpec
from hisearch.specs.deployments.routing import RouterSpec
from hisearch.specs.deployments.speculation import SpeculationSpec
from hisearch.specs.deployments.tiers import MovementSpec, TierSpec
from hisearch.specs.documents.catalogue import Catalogue
from hisearch.specs.models.model import ModelSpec
from hisearch.traces.compiler import compile_trace
from hisearch.traces.trace import make_trace
from tests.kernels.systems import LAW, compiled_costs
from tests.search.fakes import make_problem, make_trial

CATALOGUE = Catalogue()
ONE_TOKEN, THREE_TOKENS = (
    SpeculationSpec(method="eagle3", draft_tokens=count, acceptance=[0.8, 0.7, 0.6][:count]) for count in (1, 3)
)
#: Contexts of 100 tokens on average while 100 tokens are decoded.
TRACE = compile_trace(make_trace(arrival_s=[0.0], input_tokens=[50], output_tokens=[100]), "one")
NGRAM = SpeculationSpec(method="ngram", draft_tokens=2, acceptance=[0.5, 0.5])


def drafting_problem(*speculation: SpeculationSpec | None, **cache: Any) -> Problem:
    problem = make_problem()
    execution = problem.space.execution.model_copy(update={"speculation": list(speculation)})
    parts = {"execution": execution, "cache": problem.space.cache.model_copy(update=cache)}
    return replace(problem, space=problem.space.model_copy(update=parts))


def deployment(speculation: SpeculationSpec | None) -> DeploymentSpec:
    pool = PoolSpec(accelerator="fast", engine=EngineSpec(name="vllm", speculation=speculation))
    return deployment_of("model", "auto", pool, 1, RouterSpec())


def drafts_in(pool: PoolSpec) -> int:
    return 0 if pool.engine.speculation is None else pool.engine.speculation.draft_tokens


def test_stage_1_tries_each_under_vllm_and_sglang() -> None:
    problem = drafting_problem(None, ONE_TOKEN, THREE_TOKENS)
    tried = [(pool.engine.name, drafts_in(pool)) for pools, _ in groups(problem) for pool in pools]
    for engine in ("vllm", "sglang"):
        assert {drafts for name, drafts in tried if name == engine} == {0, 1, 3}
    assert group_count(problem) == sum(len(pools) + refused for pools, refused in groups(problem))
    for pools, _ in groups(problem):  # one table of step costs prices a group
        assert len({drafts_in(pool) for pool in pools}) <= 1


def test_a_worker_that_drafts_is_kept_beside_one_that_does_not() -> None:
    report = search_execution(drafting_problem(None, ONE_TOKEN), keep=24)
    assert {drafts_in(candidate.pool) for candidate in report.kept} >= {0, 1}
    assert len({candidate.group for candidate in report.sized if candidate.pool.engine.name == "vllm"}) == 12


def test_tiers_and_drafts_are_not_tried_together() -> None:
    problem = drafting_problem(None, ONE_TOKEN)
    report = search_execution(problem, keep=24)
    assert not any(c.pool.tiers for c in report.sized if c.pool.engine.speculation is not None)
    only_tiers = [tier.model_copy(update={"gib": [64.0]}) for tier in problem.space.cache.tiers]
    forced = search_execution(drafting_problem(None, ONE_TOKEN, tiers=only_tiers), keep=24)
    assert not any(candidate.pool.engine.speculation for candidate in forced.sized)
    assert forced.skipped["no cache tiers suit"] > 0
    choice = TierChoice((TierSpec(medium="ddr5", gib=64),), MovementSpec(), "lru")
    assert with_cache(deployment(ONE_TOKEN), memory_fraction=0.9, choice=choice).pool.tiers == []


def test_other_drafts_are_neighbours_with_the_overlap_that_goes_with_them() -> None:
    problem = drafting_problem(None, ONE_TOKEN, NGRAM)
    near = [neighbour.pool for neighbour in changed(problem, deployment(None))]
    assert {drafts_in(pool) for pool in near} == {0, 1, 2}
    assert all(pool.engine.overlap == (pool.engine.speculation != NGRAM) for pool in near)
    back = [neighbour.pool.engine for neighbour in changed(problem, deployment(NGRAM))]
    assert all(engine.overlap for engine in back if engine.speculation is None)


def test_names_and_dimensions() -> None:
    assert describe(deployment(THREE_TOKENS)) == "1 × fast · vLLM · 3 drafted tokens (eagle3)"
    assert describe_each([deployment(ONE_TOKEN), deployment(THREE_TOKENS)])[0].endswith("1 drafted token (eagle3)")
    assert parameters_of(deployment(THREE_TOKENS))["speculation"] == "3 drafted tokens (eagle3)"
    assert "speculation" not in parameters_of(deployment(None))
    labels = ("1 drafted token (eagle3)", "3 drafted tokens (eagle3)")
    assert pool_dimensions(drafting_problem(None, ONE_TOKEN, THREE_TOKENS).space)["speculation"] == labels
    assert "speculation" not in pool_dimensions(make_problem().space)


def test_the_sentence_of_a_recommendation_names_drafts() -> None:
    batch = "with chunks of 8,192 tokens and up to 256 running requests"
    assert text("deployment", "memory", deployment(THREE_TOKENS).pool) == f"{batch}, 3 drafted tokens (eagle3)"
    assert text("deployment", "memory", deployment(None).pool) == batch


def test_other_engines_draft_where_they_can() -> None:
    assert on_engine(deployment(ONE_TOKEN), "sglang").pool.engine.speculation == ONE_TOKEN
    assert on_engine(deployment(ONE_TOKEN), "trtllm", page_tokens=32).pool.engine.speculation == ONE_TOKEN
    eagle = SpeculationSpec(method="eagle", draft_tokens=1, acceptance=[0.8])
    assert on_engine(deployment(eagle), "trtllm", page_tokens=32).pool.engine.speculation is None
    by_sglang = on_engine(deployment(NGRAM), "sglang")
    assert by_sglang.pool.engine.overlap
    assert not on_engine(by_sglang, "vllm").pool.engine.overlap
    assert not on_engine(by_sglang, "trtllm", page_tokens=32).pool.engine.overlap


def test_drafts_say_whose_they_are() -> None:
    def pool(role: str, speculation: SpeculationSpec | None) -> PoolSpec:
        engine = EngineSpec(name="vllm", speculation=speculation)
        return PoolSpec(name=role, role=role, accelerator="fast", replicas=2, engine=engine)  # type: ignore[arg-type]

    def both(prefill: SpeculationSpec | None, decode: SpeculationSpec | None) -> DeploymentSpec:
        pools = [pool("prefill", prefill), pool("decode", decode)]
        return deployment(None).model_copy(update={"pools": pools})

    assert drafts_of(both(None, THREE_TOKENS)) == "3 drafted tokens (eagle3) in decode"
    assert (
        drafts_of(both(THREE_TOKENS, THREE_TOKENS))
        == drafts_of(deployment(THREE_TOKENS))
        == "3 drafted tokens (eagle3)"
    )
    several = "1 drafted token (eagle3) in prefill and 3 drafted tokens (eagle3) in decode"
    assert drafts_of(both(ONE_TOKEN, THREE_TOKENS)) == several
    assert drafts_of(both(None, None)) == ""
    assert hardware(both(None, None)) == "2 × fast for prefill + 2 × fast for decode"


def drafting(number: int, usd: float, speculation: SpeculationSpec | None, **changes: Any) -> Trial:
    trial = make_trial(number, 1.0, 5.0, usd, engine="vllm", **changes)
    pool = trial.deployment.pool
    engine = pool.engine.model_copy(update={"speculation": speculation})
    pools = [pool.model_copy(update={"engine": engine})]
    notes = () if speculation is None else (f"{speculation.label}: 2.70 tokens a step", "another warning")
    return replace(trial, deployment=trial.deployment.model_copy(update={"pools": pools}), warnings=notes)


def test_whether_drafts_pay_is_said_with_the_price_of_the_other() -> None:
    three, none, dear = drafting(0, 4.0, THREE_TOKENS), drafting(1, 5.5, None), drafting(2, 7.0, None)
    sliced, missing = drafting(3, 3.0, None, slice_fraction=0.5), drafting(4, 3.0, None, feasible=False)
    said = describe_speculation(three, [three, none, dear, sliced, missing])
    assert said.startswith("It serves 3 drafted tokens (eagle3), and what they yield depends on the text. 3 drafted")
    assert "2.70 tokens a step. The cheapest found without them: 2 × fast · vLLM" in said
    assert said.endswith("at $5.50 per hour, $1.50 more.")
    assert describe_speculation(three, [three, missing]).endswith("Nothing without them was found to meet the SLO.")
    assert describe_speculation(three, [three, sliced]).endswith("list null among speculation to compare.")
    assert brief_speculation(three).startswith("3 drafted tokens (eagle3): measure on your own text")


def test_drafts_that_do_not_pay() -> None:
    none, three = drafting(0, 4.0, None), drafting(1, 5.0, THREE_TOKENS)
    said = describe_speculation(none, [none, three])
    assert said.startswith("Drafted tokens do not pay here: the cheapest found with them, 2 × fast · vLLM · 3 drafted")
    assert said.endswith("costs $5.00 per hour, $1.00 more.")
    missing = drafting(2, 5.0, THREE_TOKENS, feasible=False)
    assert describe_speculation(none, [none, missing]) == "Nothing with drafted tokens was found to meet the SLO."
    assert describe_speculation(none, [none]) == describe_speculation(None, [three]) == brief_speculation(none) == ""


def test_the_other_choice_is_an_alternative_of_its_own() -> None:
    assert kinds_of(drafting_problem(None)) == KINDS
    assert kinds_of(drafting_problem(None, ONE_TOKEN)) == (*KINDS, SPECULATION)


@pytest.fixture(scope="module")
def simulation() -> Simulation:
    accelerator = CATALOGUE.get("Accelerator", "h200").spec
    host = accelerator.host
    world = World(
        model=CATALOGUE.get("Model", "qwen3-32b").spec,
        slo=make_problem().slo,
        profile_name="roofline",
        profile=CATALOGUE.get("LatencyProfile", "roofline").spec,
        accelerators={"h200": accelerator},
        hosts={host: CATALOGUE.get("Host", host).spec} if host is not None else {},
        media={},
        trace=None,  # type: ignore[arg-type]  # no trace is simulated
    )
    return Simulation(world)


@pytest.mark.parametrize(("batch", "pays"), [(1, True), (8, True), (1024, False)])
def test_drafts_pay_where_steps_read_weights_and_not_where_they_compute(
    simulation: Simulation, batch: int, pays: bool
) -> None:
    def token_s(speculation: SpeculationSpec | None) -> float:
        engine = EngineSpec(name="vllm", speculation=speculation, max_running_requests=1024)
        costs = simulation.costs(PoolSpec(accelerator="h200", engine=engine)).seconds
        return decode_step_seconds(costs, batch, 100 * batch)

    assert (token_s(THREE_TOKENS) < token_s(None)) == pays


@pytest.mark.parametrize(
    ("acceptance", "words"),
    [
        ([0.9, 0.9, 0.9], "they pay up to the batch limit of 64"),
        ([0.01, 0.01, 0.01], "they never pay"),
    ],
)
def test_a_run_says_up_to_which_batch_drafts_pay(simulation: Simulation, acceptance: list[float], words: str) -> None:
    drafts = SpeculationSpec(method="eagle3", draft_tokens=3, acceptance=acceptance)
    engine = EngineSpec(name="vllm", speculation=drafts, max_running_requests=64)
    plan = simulation.plan(PoolSpec(accelerator="h200", engine=engine))
    (note,) = notes([plan], TRACE)
    assert note.startswith("3 drafted tokens (eagle3): ")
    assert note.endswith(f"by step times {words}")


def test_the_batch_up_to_which_drafts_pay_is_where_tokens_cost_the_same(simulation: Simulation) -> None:
    engine = EngineSpec(name="vllm", speculation=THREE_TOKENS, max_running_requests=1024)
    pool = PoolSpec(accelerator="h200", engine=engine)
    plan = simulation.plan(pool)
    batch = paying_batch(plan, 100.0)
    drafted, plain = simulation.costs(pool).seconds, plan.costs.seconds
    pays = [decode_step_seconds(drafted, n, 100 * n) < decode_step_seconds(plain, n, 100 * n) for n in range(1, 1025)]
    assert 1 < batch < 1024
    assert pays == [True] * batch + [False] * (1024 - batch)
    assert notes([plan], TRACE)[0].rpartition("batch of ")[2].isdigit()
    undrafted = simulation.plan(PoolSpec(accelerator="h200", engine=EngineSpec(name="vllm")))
    assert notes([undrafted], TRACE) == ()


def test_a_plan_says_what_drafts_yield(simulation: Simulation) -> None:
    plan = simulation.plan(PoolSpec(accelerator="h200", engine=EngineSpec(name="vllm", speculation=THREE_TOKENS)))
    drafts, costs = plan.speculation, plan.costs.seconds.draft
    assert drafts is not None
    assert costs is not None
    assert (costs.tokens, costs.share) == (3, 1 / 64)
    assert drafts.accepted == pytest.approx((0.8, 0.56, 0.336))
    assert (drafts.lookahead_tokens, drafts.reads_next_token) == (3, True)
    assert drafts.note == "3 drafted tokens (eagle3): 2.70 tokens a step by the acceptance that is stated"
    by_ngram = simulation.plan(PoolSpec(accelerator="h200", engine=EngineSpec(name="vllm", speculation=NGRAM)))
    assert by_ngram.speculation is not None
    assert (by_ngram.speculation.lookahead_tokens, by_ngram.speculation.reads_next_token) == (0, False)
    assert by_ngram.costs.seconds.draft is None


def test_tensorrt_llms_drafter_keeps_tokens_behind_the_prompt_by_its_release(simulation: Simulation) -> None:
    def kept(version: str, **drafts: Any) -> int:
        speculation = SpeculationSpec(draft_tokens=3, acceptance=[0.8, 0.7, 0.6], **drafts)
        engine = EngineSpec(name="trtllm", version=version, speculation=speculation, chunk_tokens=8192)
        plan = simulation.plan(PoolSpec(accelerator="h200", engine=engine)).speculation
        assert plan is not None
        assert not plan.reads_next_token
        return plan.lookahead_tokens

    for version, mtp in (("1.1.0", 0), ("", 2)):
        assert kept(version, method="mtp") == mtp
        assert kept(version, method="eagle3") == 2


@pytest.mark.parametrize(("engine", "held"), [("vllm", 64), ("sglang", 3 * 64), ("trtllm", 3 * 64)])
def test_graphs_of_sglang_and_tensorrt_llm_are_for_so_many_decodes_with_their_drafts(engine: Any, held: int) -> None:
    model = CATALOGUE.get("Model", "qwen3-32b").spec
    costs = compiled_costs(LAW._replace(floor=HostFloor(eager_s=1.0, graph_tokens=64)))

    def price(*, model: ModelSpec, weight_dtype: DType) -> CompiledCosts:
        assert (model.layers, weight_dtype) == (1, "bf16")
        return costs

    for speculation in (NGRAM, SpeculationSpec(method="eagle3", draft_tokens=2, acceptance=[0.8, 0.7])):
        settings = EngineSpec(name=engine, speculation=speculation)
        floor = with_drafter(costs, model, "bf16", settings, price).seconds.floor
        assert floor is not None
        assert floor.graph_tokens == held
    assert with_drafter(costs, model, "bf16", EngineSpec(name=engine), price) is costs


def test_tensorrt_llm_drafts_in_unified_workers_that_pause_nobody() -> None:
    problem = drafting_problem(None, ONE_TOKEN)
    update = {"capacity_policies": ["guaranteed_no_evict", "max_utilization"], "engines": ["trtllm"]}
    execution = problem.space.execution.model_copy(update=update)
    wider = replace(problem, space=problem.space.model_copy(update={"execution": execution}))
    tried = {(pool.engine.capacity_policy, drafts_in(pool)) for pools, _ in groups(wider) for pool in pools}
    assert tried == {("guaranteed_no_evict", 0), ("guaranteed_no_evict", 1), ("max_utilization", 0)}
