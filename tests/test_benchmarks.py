"""``pytest benchmarks``: what it imports is there. Its figures are for people who compare two versions."""

from importlib import import_module

import pytest

pytest.importorskip("pytest_benchmark")


@pytest.mark.parametrize("name", ["conftest", "test_kernels", "test_simulation"])
def test_a_module_of_benchmarks_can_be_imported(name: str) -> None:
    import_module(f"benchmarks.{name}")
