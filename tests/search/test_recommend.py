from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from hisearch.score.terms import TermCheck
from hisearch.search.model.trial import Trial
from hisearch.search.select.pareto import front
from hisearch.search.select.recommend import describe_miss, nearest_miss, recommend, widest
from hisearch.specs.deployments.agent_memory import AgentMemorySpec
from tests.search.fakes import OBJECTIVES, make_trial

OTHER_OBJECTIVES = ("ttft_p99", "goodput")


def test_the_cheapest_wins() -> None:
    trials = [
        make_trial(0, 1.0, 5.0, 4.0),
        make_trial(3, 0.1, 9.0, 5.0),
        make_trial(4, 0.1, 9.0, 1.0, slice_fraction=0.3),
        make_trial(5, 0.1, 9.0, 1.0, error="broken"),
        make_trial(6, 3.0, 9.0, 2.0, feasible=False),
    ]
    recommendation = recommend(trials, OBJECTIVES)
    assert recommendation is not None
    assert recommendation.trial.number == 0


def test_where_the_price_is_no_objective_the_best_of_another_accelerator_is_named_too() -> None:
    """By the hour an H100 without DRAM is cheapest, by the agent one with DRAM: it is named next to the chosen H200."""

    def of(number: int, usd: float, agents: int, accelerator: str) -> Trial:
        trial = make_trial(number, 0.5, 5.0, usd, accelerator=accelerator)
        figures = {"agents": float(agents), "agents_per_accelerator": float(agents), "usd_per_agent_hour": usd / agents}
        return replace(trial, metrics={**trial.metrics, **figures})

    objectives = ("usd_per_agent_hour", "agents_per_accelerator")
    trials = [of(0, 3.7, 1834, "h200"), of(1, 2.7, 1189, "h100"), of(2, 2.9, 1414, "h100"), of(3, 3.1, 1414, "h100")]
    recommendation = recommend(trials, objectives)
    assert recommendation is not None
    assert recommendation.trial.number == 0
    others = {trial.number: words for trial, words in recommendation.runner_ups}
    assert others[1].startswith("cheapest found that meets the SLO: -$1.00 per hour, up to 1,189 agents instead of")
    assert others[2].startswith("best by the study's objectives on another accelerator: -$0.80 per hour")
    assert 3 not in others
    by_price = recommend(trials, (*objectives, "usd_per_hour"))
    assert by_price is not None
    assert not any("objectives" in words for _, words in by_price.runner_ups)


def tied(*figures: tuple[float, float, float]) -> int:
    """Number of the recommended one of equally priced trials: (TTFT, goodput, TPOT) each; bounds 2 s and 50 ms."""
    trials = [make_trial(n, ttft, goodput, 4.0, tpot_s=tpot) for n, (ttft, goodput, tpot) in enumerate(figures)]
    recommendation = recommend(trials, OBJECTIVES)
    assert recommendation is not None
    assert recommendation.trial in front(trials, OBJECTIVES)
    return recommendation.trial.number


def test_of_equally_priced_ones_a_margin_that_is_wider_by_more_than_a_hundredth_wins() -> None:
    assert tied((0.5, 6.0, 0.049), (0.6, 6.03, 0.040)) == 1
    assert tied((0.5, 6.0, 0.0400), (0.6, 6.03, 0.0398)) == 0


def test_of_equal_margins_a_goodput_that_is_higher_by_more_than_a_hundredth_wins() -> None:
    assert tied((0.5, 6.0, 0.04), (0.6, 6.2, 0.04)) == 1


def test_of_equal_margins_and_goodputs_the_lower_ttft_wins() -> None:
    assert tied((0.6, 6.0006, 0.04), (0.5, 6.0, 0.04)) == 1


def test_a_hair_of_goodput_does_not_pick_what_is_beaten() -> None:
    assert tied((0.8, 6.0, 0.03), (0.5, 6.0, 0.04)) == 1


figure = st.integers(1, 6)


@given(
    st.lists(st.tuples(figure, figure, figure, figure, st.booleans()), min_size=1, max_size=25),
    st.sampled_from([OBJECTIVES, OTHER_OBJECTIVES, ("usd_per_hour", "ttft_p99")]),
)
def test_the_recommendation_is_on_the_front(
    rows: list[tuple[int, int, int, int, bool]], objectives: tuple[str, ...]
) -> None:
    trials = [
        make_trial(n, ttft / 4, goodput, usd, tpot_s=tpot / 150, feasible=feasible)
        for n, (ttft, goodput, usd, tpot, feasible) in enumerate(rows)
    ]
    feasible = [trial for trial in trials if trial.feasible]
    recommendation = recommend(trials, objectives)
    assert (recommendation is None) == (not feasible)
    if recommendation is not None:
        best = front(trials, objectives)
        assert recommendation.trial in best
        assert recommendation.trial.metrics["usd_per_hour"] == min(trial.metrics["usd_per_hour"] for trial in best)
        if "usd_per_hour" in objectives:
            assert recommendation.trial.metrics["usd_per_hour"] == min(
                trial.metrics["usd_per_hour"] for trial in feasible
            )


def test_where_price_is_no_objective_the_reason_does_not_call_it_the_cheapest_of_all() -> None:
    trials = [make_trial(0, 1.0, 5.0, 4.0), make_trial(1, 0.5, 6.0, 6.0)]
    recommendation = recommend(trials, OTHER_OBJECTIVES)
    assert recommendation is not None
    assert recommendation.trial.number == 1
    assert "the cheapest that none beats in all of TTFT p99 and goodput of 2 feasible" in recommendation.reason
    assert "The SLO is also met by 1 cheaper one, from $4.00 per hour" in recommendation.reason
    assert "of which price is none" in recommendation.reason
    assert recommendation.runner_ups[0][0].number == 0
    assert recommendation.runner_ups[0][1].startswith("cheapest found that meets the SLO: -$2.00 per hour")


def test_where_price_is_no_objective_runner_ups_are_the_cheapest_of_all_that_meet_the_slo() -> None:
    trials = [
        make_trial(0, 0.5, 6.0, 6.0),
        make_trial(1, 1.5, 5.0, 4.0, accelerator="slow"),
        make_trial(2, 0.6, 5.9, 9.0, accelerator="slow"),
        make_trial(3, 1.4, 5.0, 5.0, engine="vllm"),
        make_trial(4, 0.6, 5.9, 9.5, engine="vllm"),
    ]
    recommendation = recommend(trials, OTHER_OBJECTIVES)
    assert recommendation is not None
    assert recommendation.trial.number == 0
    by_label = {text.partition(":")[0]: trial.number for trial, text in recommendation.runner_ups}
    assert by_label == {"cheapest found that meets the SLO": 1, "cheapest found on another engine": 3}


def test_an_equally_priced_one_with_a_wider_margin_is_named_even_off_the_front() -> None:
    trials = [make_trial(0, 0.5, 6.0, 4.0, tpot_s=0.049), make_trial(1, 0.6, 5.9, 4.0, tpot_s=0.040)]
    recommendation = recommend(trials, OBJECTIVES)
    assert recommendation is not None
    assert recommendation.trial.number == 0
    assert trials[1] not in front(trials, OBJECTIVES)
    other, trade = recommendation.runner_ups[0]
    assert other.number == 1
    assert trade.startswith("widest margin found at this price: same price")
    assert trade.endswith("tightest margin 20 % instead of 2 %")
    assert widest(trials[1], trials) is None


def test_the_reason_is_two_sentences_with_the_figures() -> None:
    recommendation = recommend([make_trial(0, 1.0, 5.0, 4.0), make_trial(1, 3.0, 9.0, 2.5, feasible=False)], OBJECTIVES)
    assert recommendation is not None
    assert recommendation.reason.count(". ") == 1
    for figure in ("$4.00 per hour", "5 good requests", "1 s of at most 2 s: 50 % left", "$2.50", "missed by 50 %"):
        assert figure in recommendation.reason


def test_runner_ups_are_distinct_and_say_what_they_trade() -> None:
    trials = [
        make_trial(0, 1.0, 5.0, 4.0),
        make_trial(1, 0.5, 5.0, 6.0),
        make_trial(2, 0.8, 5.0, 5.0, accelerator="slow"),
        make_trial(3, 0.9, 5.0, 5.5, engine="vllm"),
    ]
    recommendation = recommend(trials, OBJECTIVES)
    assert recommendation is not None
    assert [(t.number, text.partition(":")[0]) for t, text in recommendation.runner_ups] == [
        (2, "cheapest found on another accelerator"),
        (1, "lowest TTFT p99 found"),
        (3, "cheapest found on another engine"),
    ]
    assert "+$1.00 per hour" in recommendation.runner_ups[0][1]
    assert "TTFT p99 0.8 s instead of 1 s" in recommendation.runner_ups[0][1]


def test_what_is_traded_is_the_latencies_that_were_asked_for() -> None:
    def with_p95(number: int, p99_s: float, p95_s: float, usd: float) -> Trial:
        trial = make_trial(number, p99_s, 5.0, usd)
        terms = (TermCheck("ttft_p95", p95_s, 2.0),)
        return replace(trial, metrics=trial.metrics | {"ttft_p95_s": p95_s}, slo=terms)

    trials = [with_p95(0, 1.5, 0.9, 4.0), with_p95(1, 1.0, 0.8, 6.0), with_p95(2, 1.2, 0.7, 7.0)]
    recommendation = recommend(trials, ("ttft_p95", "goodput", "usd_per_hour"))
    assert recommendation is not None
    assert [text for _, text in recommendation.runner_ups] == [
        "lowest TTFT p95 found: +$3.00 per hour, TTFT p95 0.7 s instead of 0.9 s, tightest margin 65 % instead of 55 %"
    ]


def test_one_more_replica_of_the_same_is_no_other_accelerator() -> None:
    trials = [make_trial(0, 1.0, 5.0, 4.0), make_trial(1, 0.9, 5.0, 6.0, replicas=3), make_trial(2, 0.8, 5.0, 6.0)]
    recommendation = recommend(trials, OBJECTIVES)
    assert recommendation is not None
    assert [text.partition(":")[0] for _, text in recommendation.runner_ups] == ["lowest TTFT p99 found"]


def test_one_deployment_alone_has_no_runner_up() -> None:
    recommendation = recommend([make_trial(0, 1.0, 5.0, 4.0)], OBJECTIVES)
    assert recommendation is not None
    assert recommendation.runner_ups == ()


def test_nothing_feasible_is_no_recommendation_but_a_nearest_miss() -> None:
    trials = [make_trial(0, 4.0, 5.0, 4.0, feasible=False), make_trial(1, 2.2, 5.0, 9.0, feasible=False)]
    assert recommend(trials, OBJECTIVES) is None
    miss = nearest_miss(trials)
    assert miss is not None
    assert miss.number == 1
    assert describe_miss(miss) == ["TTFT p99 2.2 s of at most 2 s: missed by 10 %"]
    assert nearest_miss([make_trial(0, 1.0, 5.0, 4.0)]) is None


def test_a_miss_by_rejections_alone_is_said() -> None:
    trial = make_trial(0, 1.0, 5.0, 4.0, feasible=False, rejected={"over_kv_memory": 125})
    line = describe_miss(trial)[-1]
    assert line.startswith("Rejected 12.50 % of at most 0 %: missed")
    assert "125 of 1,000 requests" in line


def with_agents(trial: Trial, policy: str) -> Trial:
    """The trial with agents' objects under ``policy``."""
    (pool,) = trial.deployment.pools
    section = AgentMemorySpec.model_validate({"policy": policy, "adapters": {"rank": 8}, "slots": 8})
    pools = [pool.model_copy(update={"agents": section})]
    return replace(trial, deployment=trial.deployment.model_copy(update={"pools": pools}))


def test_a_policy_that_no_engine_has_is_said_beside_what_can_be_deployed() -> None:
    today, foresight = (
        with_agents(make_trial(number, 0.5, 4.0, usd), policy)
        for number, usd, policy in ((0, 3.0, "queued"), (1, 2.0, "distance"))
    )
    chosen = recommend([today, foresight], OBJECTIVES)
    assert chosen is not None
    assert chosen.trial.number == 0
    assert "With the policy distance, which no release of the engine has" in chosen.reason
    assert "$2.00 per hour" in chosen.reason
    alone = recommend([foresight], OBJECTIVES)
    assert alone is not None
    assert alone.trial.number == 1
    assert "No release of the engine has its policy" in alone.reason
