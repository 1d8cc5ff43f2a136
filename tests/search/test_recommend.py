from hisearch.search.recommend import describe_miss, nearest_miss, recommend
from tests.search.fakes import make_trial


def test_the_cheapest_wins_then_goodput_then_ttft() -> None:
    trials = [
        make_trial(0, 1.0, 5.0, 4.0),
        make_trial(1, 1.2, 6.0, 4.0),
        make_trial(2, 1.1, 6.0, 4.0),
        make_trial(3, 0.1, 9.0, 5.0),
        make_trial(4, 0.1, 9.0, 1.0, slice_fraction=0.3),
        make_trial(5, 0.1, 9.0, 1.0, error="broken"),
        make_trial(6, 3.0, 9.0, 2.0, feasible=False),
    ]
    found = recommend(trials)
    assert found is not None
    assert found.trial.number == 2


def test_the_reason_is_two_sentences_with_the_figures() -> None:
    found = recommend([make_trial(0, 1.0, 5.0, 4.0), make_trial(1, 3.0, 9.0, 2.5, feasible=False)])
    assert found is not None
    assert found.reason.count(". ") == 1
    for figure in ("$4.00 per hour", "5 good requests", "1 s of at most 2 s: 50% left", "$2.50", "missed by 50%"):
        assert figure in found.reason


def test_runner_ups_are_distinct_and_say_what_they_trade() -> None:
    trials = [
        make_trial(0, 1.0, 5.0, 4.0),
        make_trial(1, 0.5, 5.0, 6.0),
        make_trial(2, 0.8, 5.0, 5.0, accelerator="slow"),
        make_trial(3, 0.9, 5.0, 5.5, engine="vllm"),
    ]
    found = recommend(trials)
    assert found is not None
    assert [(t.number, text.partition(":")[0]) for t, text in found.runner_ups] == [
        (2, "next cheapest hardware"),
        (1, "lowest TTFT"),
        (3, "best on another engine"),
    ]
    assert "+$1.00 per hour" in found.runner_ups[0][1]
    assert "TTFT p99 1 s -> 0.8 s" in found.runner_ups[0][1]


def test_one_deployment_alone_has_no_runner_up() -> None:
    found = recommend([make_trial(0, 1.0, 5.0, 4.0)])
    assert found is not None
    assert found.runner_ups == ()


def test_nothing_feasible_is_no_recommendation_but_a_nearest_miss() -> None:
    trials = [make_trial(0, 4.0, 5.0, 4.0, feasible=False), make_trial(1, 2.2, 5.0, 9.0, feasible=False)]
    assert recommend(trials) is None
    miss = nearest_miss(trials)
    assert miss is not None
    assert miss.number == 1
    assert describe_miss(miss) == ["ttft_p99 2.2 s of at most 2 s: missed by 10%"]
    assert nearest_miss([make_trial(0, 1.0, 5.0, 4.0)]) is None


def test_a_miss_by_rejections_alone_is_said() -> None:
    trial = make_trial(0, 1.0, 5.0, 4.0, feasible=False)
    trial.metrics["rejected_fraction"] = 0.125
    assert describe_miss(trial)[-1] == "rejected requests: 12.50%, more than the SLO allows"
