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
    result = capacity(service, relative_tolerance=tolerance)
    assert result.load <= limit < result.infeasible_load <= result.load * (1 + tolerance)
    assert result.goodput_rps == 10.0 * result.load
    assert result.simulations == len(service.loads) == len(set(service.loads))


def test_growth_stops_at_the_largest_load() -> None:
    result = capacity(Service(math.inf), max_load=10.0)
    assert result.load == 10.0
    assert result.infeasible_load == math.inf


def test_a_service_that_is_never_feasible_has_no_capacity() -> None:
    service = Service(0.0)
    result = capacity(service, min_load=0.1)
    assert (result.load, result.goodput_rps, result.infeasible_load) == (0.0, 0.0, 0.1)
    assert min(service.loads) == 0.1


def test_what_is_reported_was_simulated_even_where_feasibility_is_not_monotone() -> None:
    holes = {2.0}
    simulated: dict[float, bool] = {}

    def simulate_at(load: float) -> Score:
        simulated[load] = load not in holes and load < 8.0
        return Score({"goodput_rps": load}, (), simulated[load])

    result = capacity(simulate_at)
    assert simulated[result.load] is True
    assert simulated[result.infeasible_load] is False


@pytest.mark.parametrize("wrong", [{"growth": 1.0}, {"relative_tolerance": 0.0}, {"start": 100.0}])
def test_senseless_arguments_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="growth > 1"):
        capacity(Service(1.0), **wrong)
