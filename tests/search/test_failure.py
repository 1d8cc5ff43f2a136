"""The explanation of a search without a result: nothing feasible, or nothing simulated."""

from hisearch.search.select.failure import explain
from tests.search.fakes import make_trial


def test_terms_are_counted_over_the_deployments_that_miss_them() -> None:
    trials = [
        make_trial(0, 4.0, 5.0, 4.0, feasible=False, tpot_s=0.04),
        make_trial(1, 3.0, 5.0, 9.0, feasible=False, tpot_s=0.06),
        make_trial(2, 3.0, 5.0, 9.0, feasible=False, slice_fraction=0.3),
    ]
    failure = explain(trials)
    assert failure.examined
    assert (failure.deployments, failure.missed) == (2, {"ttft_p99": 2, "tpot_p99": 1})
    assert failure.text == (
        "None of the 2 deployments simulated on the whole trace meets the SLO; missed are TTFT p99 by 2 and TPOT p99 "
        "by 1 of them."
    )


def test_rejections_alone_are_said_with_their_reason_and_number() -> None:
    trials = [
        make_trial(0, 1.0, 5.0, 4.0, feasible=False, rejected={"over_kv_memory": 125}),
        make_trial(1, 1.0, 5.0, 6.0, feasible=False, rejected={"over_kv_memory": 12}),
    ]
    failure = explain(trials)
    assert failure.missed == {"rejected_fraction": 2}
    assert "only because of rejected requests: every latency term is met" in failure.text
    assert "At the nearest miss 12 of 1,000 requests" in failure.text
    assert "KV memory" in failure.text
    assert "the SLO allows none" in failure.text
    assert "No deployment of this model" not in failure.text
    assert "beyond hope" not in explain(trials, "All is beyond hope.").text
    missed = make_trial(0, 4.0, 5.0, 4.0, feasible=False)
    assert explain([missed], "All is beyond hope.").text.endswith("All is beyond hope.")


def test_requests_over_the_window_are_no_matter_of_the_deployment() -> None:
    failure = explain([make_trial(0, 1.0, 5.0, 4.0, feasible=False, rejected={"over_window": 3})])
    assert "No deployment of this model can meet it: 3 of 1,000 requests" in failure.text
    assert "window" in failure.text
    assert "max_rejected_fraction" in failure.text


def test_nothing_examined_is_not_called_a_miss() -> None:
    assert not explain([]).examined
    assert explain([]).text == "No deployment was simulated."
    failed = explain([make_trial(0, 1.0, 5.0, 4.0, error="ValueError: no room")])
    assert not failed.examined
    assert failed.text.endswith("1 simulation came to an error, the first to: ValueError: no room")
    sliced = explain([make_trial(0, 1.0, 5.0, 4.0, slice_fraction=0.3)])
    assert not sliced.examined
    assert "slices" in sliced.text
