"""Real engines, where an environment has them: as tests/engines makes them, or as HISEARCH_VLLM_PYTHON_0_33_0 names."""

from __future__ import annotations

from pathlib import Path

import pytest

from hisearch.validate.scheduler import validate_recordings
from tests.engines.environments import ENGINES, NoEngineError, record


@pytest.mark.slow
@pytest.mark.parametrize(
    ("title", "feature"),
    [
        (title, feature)
        for title in ("vllm-0.19.1", "vllm-0.33.0")
        for feature in ("context", "grammars", "lmcache", "states", "windows")
    ]
    + [("sglang-0.5.9", "grammars"), ("sglang-0.5.23", "grammars")],
)
def test_features_are_recorded_and_simulated(title: str, feature: str, tmp_path: Path) -> None:
    engine = ENGINES[title]
    if not engine.is_there():
        pytest.skip(f"NOT CHECKED: no {engine.title}; run `make test-engines`, or set {engine.variable} to its Python")
    try:
        record(engine, tmp_path, "--random", "4", "--seed", "9", "--with", feature)
    except NoEngineError as error:
        pytest.skip(f"NOT CHECKED: {error}")
    cases = list(validate_recordings(sorted(tmp_path.glob("*.json.gz"))))
    assert len(cases) >= 3  # vLLM 0.19.1 does not end with one of these windows
    assert [case.file for case in cases if not case.ok] == []


@pytest.mark.slow
@pytest.mark.parametrize("title", ENGINES)
def test_random_cases_are_recorded_and_simulated(title: str, tmp_path: Path) -> None:
    engine = ENGINES[title]
    if not engine.is_there():
        pytest.skip(f"NOT CHECKED: no {title}; run `make test-engines`, or set {engine.variable} to its Python")
    record(engine, tmp_path, "--random", "3", "--seed", "9")
    cases = list(validate_recordings(sorted(tmp_path.glob("*.json.gz"))))
    assert len(cases) == 3
    assert [case.error for case in cases] == [None] * 3
    assert [case.file for case in cases if not case.ok] == []
