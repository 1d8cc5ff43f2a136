"""Environments of the engines: which Python they take, and what is said where none can be made."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest

from hisearch.base.engine_rules import MODELLED
from tests.engines import environments
from tests.engines.environments import ENGINES, NoEngineError


def test_every_modelled_release_has_an_environment() -> None:
    assert set(ENGINES) == {f"{engine}-{version}" for engine, versions in MODELLED.items() for version in versions}
    for engine in ENGINES.values():
        assert any(package.startswith(f"{engine.name}=={engine.version}") for package in engine.alone)
        assert engine.pythons[0] <= (3, 11)


def test_a_python_that_the_engine_has_no_wheels_for_is_refused(tmp_path: Path) -> None:
    future = dataclasses.replace(ENGINES["sglang-0.5.23"], pythons=((4, 1), (4, 3)))
    with pytest.raises(NoEngineError, match=r"has wheels for Python 4\.1 to 4\.3; this is 3\..*set HISEARCH_SGLANG"):
        future.installed(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_another_python_on_the_path_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, last = (sys.version_info[0], sys.version_info[1] + 1), (sys.version_info[0], sys.version_info[1] + 2)
    python = tmp_path / f"python{last[0]}.{last[1]}"
    python.write_text("#!/bin/sh\nexit 0\n")
    python.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    engine = dataclasses.replace(ENGINES["vllm-0.33.0"], pythons=(first, last))
    assert engine._base_python() == str(python)


def test_a_python_that_is_named_has_to_be_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    engine = ENGINES["vllm-0.19.1"]
    monkeypatch.setenv(engine.variable, str(tmp_path / "python"))
    with pytest.raises(NoEngineError, match=r"HISEARCH_VLLM_PYTHON_0_19_1 is .*, which is no file"):
        engine.python()
    monkeypatch.setenv(engine.variable, sys.executable)
    assert (engine.is_there(), engine.python()) == (True, Path(sys.executable))


def test_what_pip_says_is_passed_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(environments, "TORCH", "no-such-package-of-hisearch==0")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    engine = dataclasses.replace(ENGINES["sglang-0.5.9"], packages=(), alone=())
    with pytest.raises(NoEngineError, match=r"sglang-0\.5\.9: .* failed:\n.*no-such-package-of-hisearch"):
        engine.installed(tmp_path)
    assert not (tmp_path / "sglang-0.5.9" / ".installed").exists()
