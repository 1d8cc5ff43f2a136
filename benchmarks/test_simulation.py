"""``pytest benchmarks``: the simulations of ``hisearch bench`` under pytest-benchmark, for comparing two versions."""

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from hisearch.api.bench import CASES, default_names, simulation_of


@pytest.mark.parametrize("name", CASES)
def test_simulation(benchmark: BenchmarkFixture, name: str) -> None:
    if name not in default_names():
        pytest.skip(f"the trace of {name} is not at hand; see `hisearch list workload`")
    run = simulation_of(name)
    requests, steps = run()
    benchmark.extra_info.update(requests=requests, steps=steps)
    assert benchmark.pedantic(run, rounds=7) == (requests, steps)
