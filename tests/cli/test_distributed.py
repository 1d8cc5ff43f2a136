"""``hisearch run`` with its simulations elsewhere: the same files, to the byte (law L6)."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Hisearch
from tests.cli.test_killed import findings
from tests.search.test_backends import QUIET, cluster


@pytest.mark.slow
@QUIET
def test_every_backend_writes_the_same_run(hisearch: Hisearch, workdir: Path) -> None:
    study = ("run", "small.yaml", "-q", "--set", "spec.budget.simulations=10")
    assert hisearch(*study, "--out", "threads").code == 0
    assert hisearch(*study, "--out", "loky", "--backend", "loky", "--workers", 2).code == 0
    with cluster() as dask_cluster:
        assert hisearch(*study, "--out", "dask", "--scheduler", dask_cluster.scheduler_address).code == 0
    expected = findings(workdir / "threads")
    for name in ("loky", "dask"):
        assert findings(workdir / name) == expected
        facts = json.loads((workdir / name / "provenance.json").read_text())["run"]["backend"]
        assert (facts["name"], facts["workers"]) == (name, 2)
        assert facts["shipped_bytes"] > 10_000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--backend", "spark"], "expected threads, loky, dask, not spark"),
        (["--backend", "dask"], "--backend dask needs --scheduler"),
        (["--backend", "loky", "--scheduler", "tcp://h:1"], "no other backend takes one"),
        (["--storage", "mysql://u:hush@h/db"], "expected postgresql://USER@HOST:PORT/DATABASE, got mysql://…"),
    ],
)
def test_options_that_do_not_go_together(hisearch: Hisearch, workdir: Path, options: list[str], message: str) -> None:
    ran = hisearch("run", "small.yaml", "--out", "r", *options)
    assert ran.code == 2
    assert message in " ".join(ran.err.replace("│", " ").split())
    assert "hush" not in ran.err
    assert not (workdir / "r").exists()
