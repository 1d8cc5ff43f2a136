"""The wheel, installed where nothing else is, simulates."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_the_wheel_simulates_in_an_empty_environment(tmp_path: Path) -> None:
    """Without kernels of its own: it finds those in the cache, whose names do not depend on where it is installed."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(*command: str | Path) -> str:
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    run(sys.executable, ROOT / "release" / "build_wheel.py", "--without-kernels", "--out", tmp_path)
    (wheel,) = tmp_path.glob("hisearch-*-py3-none-any.whl")
    venv.create(tmp_path / "empty", with_pip=True)
    run(tmp_path / "empty/bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel)
    hisearch = tmp_path / "empty/bin/hisearch"
    result = run(hisearch, "simulate", "qwen3-32b-h100-tp2", "--trace", "chat-multiturn", "--json", "--quiet")
    assert json.loads(result)
    facts = json.loads(run(hisearch, "doctor", "--json"))
    assert facts["catalogue"].startswith(str(tmp_path))
    assert facts["prebuilt_kernels"] == "not in use: this installation has none"
