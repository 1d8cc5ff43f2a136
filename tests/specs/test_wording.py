import pytest

from hisearch.specs.wording import counted, listed, per_second


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 simulations"), (1, "1 simulation"), (2, "2 simulations"), (1204, "1,204 simulations")]
)
def test_a_number_agrees_with_its_noun(count: int, text: str) -> None:
    assert counted(count, "simulation") == text


def test_irregular_plurals_are_given() -> None:
    assert counted(2, "match", "matches") == "2 matches"


def test_lists_end_with_and() -> None:
    assert [listed(parts) for parts in ([], ["a"], ["a", "b"], ["a", "b", "c"])] == ["", "a", "a and b", "a, b and c"]


def test_one_request_a_second_is_singular() -> None:
    assert [per_second(rate) for rate in ("1", "1.0", "18.3", "0.5")] == [
        "1 request/s", "1.0 requests/s", "18.3 requests/s", "0.5 requests/s",
    ]  # fmt: skip
