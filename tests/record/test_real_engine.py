"""A real engine, where an environment variable names the Python that has it: HISEARCH_VLLM_PYTHON_0_33_0=PATH."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from hisearch.validate.scheduler import validate_recordings

ROOT = Path(__file__).parents[2]
PYTHONS = {name: path for name, path in os.environ.items() if name.startswith("HISEARCH_VLLM_PYTHON_")}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(PYTHONS) or ["HISEARCH_VLLM_PYTHON_<version>"])
def test_random_cases_are_recorded_and_simulated(name: str, tmp_path: Path) -> None:
    if name not in PYTHONS:
        pytest.skip("no engine: set HISEARCH_VLLM_PYTHON_0_33_0, say, to the Python of an environment with vLLM 0.33.0")
    command = [PYTHONS[name], "-m", "hisearch.record", "vllm", "--random", "3", "--seed", "9", "--out", str(tmp_path)]
    subprocess.run(command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, check=True)
    cases = list(validate_recordings(sorted(tmp_path.glob("*.json.gz"))))
    assert len(cases) == 3
    assert [case.error for case in cases] == [None] * 3
    assert [case.file for case in cases if not case.ok] == []
