"""What Ctrl-C and SIGTERM do to a run: real signals to a real process."""

import json
import signal
import time
from pathlib import Path

import pandas as pd
import pytest

from tests.cli.conftest import Hisearch
from tests.cli.processes import Started, lines, until

#: Search alone: what follows it is interrupted in ``tests/search/test_interrupts.py``.
NO_CONCLUSIONS = ("--set", "spec.confidence.draws=0", "--set", "spec.confidence.what_if=0")


@pytest.fixture
def long(workdir: Path) -> Path:
    """``small.yaml`` with simulations enough to be interrupted."""
    study = (workdir / "small.yaml").read_text()
    (workdir / "small.yaml").write_text(
        study.replace("simulations: 24", "simulations: 60").replace("requests: 200", "requests: 4000")
    )
    return workdir


def begun(folder: Path, *options: object) -> Started:
    """A run into ``folder/r`` that has finished a few simulations."""
    run = Started(folder, "run", "small.yaml", "--out", "r", "--workers", 2, *options)
    run.wait_until(lambda: lines(folder / "r" / "journal.jsonl") > 3)
    assert not run.ended, run.err
    return run


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "backend"), [(signal.SIGINT, "threads"), (signal.SIGTERM, "threads"), (signal.SIGINT, "loky")]
)
def test_a_signal_ends_the_run_with_the_front_so_far(hisearch: Hisearch, long: Path, number: int, backend: str) -> None:
    run = begun(long, "--backend", backend)
    if number == signal.SIGTERM:
        run.process.terminate()  # as from a supervisor: that process alone
    else:
        run.interrupt(number)
    assert run.wait() == 128 + number
    assert run.err.splitlines()[-1] == (
        "hisearch: interrupted; what had finished is kept. Go on with: hisearch run --resume r"
    )
    assert "Traceback" not in run.out + run.err
    assert "leaked" not in run.err
    until(lambda: not run.survivors(), 5.0)
    trials = pd.read_parquet(long / "r" / "trials.parquet")
    assert 3 <= len(trials) < 60
    assert len(trials) <= lines(long / "r" / "journal.jsonl") - 1
    front = pd.read_csv(long / "r" / "front.csv")
    assert set(front["number"]) <= set(trials["number"])
    assert json.loads((long / "r" / "provenance.json").read_text())["budget"]["stopped"] == "interrupted"
    assert (long / "r" / "report.html").is_file()
    few = ("--set", "spec.budget.simulations=8", *NO_CONCLUSIONS)
    resumed = hisearch("run", "--resume", "r", "--json", "-q", *few)
    assert resumed.json["simulations"] == 8
    assert resumed.json["replayed"] >= 3


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["threads", "loky"])
def test_a_second_signal_ends_it_at_once(long: Path, backend: str) -> None:
    run = begun(long, "--backend", backend)
    run.interrupt()
    time.sleep(0.6)  # what comes sooner is the same Ctrl-C, passed on by a wrapper
    begun_s = time.monotonic()
    run.interrupt()
    code = run.wait()
    assert time.monotonic() - begun_s < 5.0
    assert code in (130, -signal.SIGINT)  # the same to a shell; the latter where all was done and Python shuts down
    assert "Traceback" not in run.out + run.err
    assert "leaked" not in run.err
    until(lambda: not run.survivors(), 5.0)


@pytest.mark.slow
def test_processes_end_with_a_run_that_is_killed(long: Path) -> None:
    run = begun(long, "--backend", "loky")
    assert len(run.survivors()) >= 3
    run.kill()
    until(lambda: not run.survivors(), 10.0)
