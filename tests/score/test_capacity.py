import math

import pytest

from hisearch.score.capacity import capacity
from hisearch.score.evaluate import Score


class Service:
    """Feasible up to ``limit``; remembers the loads it was asked for."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.loads: list[float] = []

    def __call__(self, load: float) -> Score:
        self.loads.append(load)
        return Score({"goodput_rps": 10.0 * load}, (), load <= self.limit)


@pytest.mark.parametrize("limit", [0.03, 0.4, 0.99, 1.0, 1.01, 3.7, 20.0])
@pytest.mark.parametrize("tolerance", [0.2, 0.01])
def test_capacity_of_a_monotone_service_is_within_tolerance(limit: float, tolerance: float) -> None:
    service = Service(limit)
    found = capacity(service, relative_tolerance=tolerance)
    assert found.bracketed
    assert found.load <= limit < found.infeasible_load <= found.load * (1 + tolerance)
    assert found.goodput_rps == 10.0 * found.load
    assert found.simulations == len(service.loads) == len(set(service.loads))


def test_growth_stops_at_the_largest_load() -> None:
    found = capacity(Service(math.inf), max_load=10.0)
    assert found.load == 10.0
    assert found.infeasible_load == math.inf
    assert not found.bracketed


def test_a_service_that_is_never_feasible_has_no_capacity() -> None:
    service = Service(0.0)
    found = capacity(service, min_load=0.1)
    assert (found.load, found.goodput_rps, found.infeasible_load) == (0.0, 0.0, 0.1)
    assert min(service.loads) == 0.1


def test_what_is_reported_was_simulated_even_where_feasibility_is_not_monotone() -> None:
    holes = {2.0}
    asked: dict[float, bool] = {}

    def simulate_at(load: float) -> Score:
        asked[load] = load not in holes and load < 8.0
        return Score({"goodput_rps": load}, (), asked[load])

    found = capacity(simulate_at)
    assert asked[found.load] is True
    assert asked[found.infeasible_load] is False


@pytest.mark.parametrize("wrong", [{"growth": 1.0}, {"relative_tolerance": 0.0}, {"start": 100.0}])
def test_senseless_arguments_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="growth > 1"):
        capacity(Service(1.0), **wrong)
