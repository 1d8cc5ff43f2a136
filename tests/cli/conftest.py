import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hisearch.cli.main import main
from tests.cli.documents import DEPLOYMENT, STUDY, WORKLOAD


@dataclass(frozen=True)
class Ran:
    """One call of the command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        def refuse(word: str) -> None:
            raise AssertionError(f"{word} is not JSON")

        return json.loads(self.out, parse_constant=refuse)


Hisearch = Callable[..., Ran]


@pytest.fixture
def hisearch(capfd: pytest.CaptureFixture[str]) -> Hisearch:
    """Calls the command in this process: ``hisearch("run", path)``."""

    def call(*arguments: object) -> Ran:
        capfd.readouterr()
        with pytest.raises(SystemExit) as stop:
            main([str(argument) for argument in arguments])
        captured = capfd.readouterr()
        code = stop.value.code
        assert isinstance(code, int) or code is None
        return Ran(code or 0, captured.out, captured.err)

    return call


@pytest.fixture
def workdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory with ``small.yaml``, ``pair.yaml`` and ``visits.yaml``."""
    (tmp_path / "small.yaml").write_text(STUDY)
    (tmp_path / "pair.yaml").write_text(DEPLOYMENT)
    (tmp_path / "visits.yaml").write_text(WORKLOAD)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def compiled_kernels(monkeypatch: pytest.MonkeyPatch) -> set[tuple[str, str]]:
    """Kernels in the on-disk cache, which is empty; none is compiled while the test runs."""
    kernels = set[tuple[str, str]]()

    def is_cached(module: str, function: str) -> bool:
        return (module.removeprefix("hisearch.kernels."), function) in kernels

    for module in ("engine.engine_calls", "fleet.compilation"):
        monkeypatch.setattr(f"hisearch.kernels.{module}.is_cached", is_cached)
    monkeypatch.setattr("hisearch.kernels.fleet.compilation.prepare", lambda engines: None)
    return kernels
