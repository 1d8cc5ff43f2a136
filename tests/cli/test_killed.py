"""A run that is killed repeatedly ends with the result of an undisturbed one (law L9)."""

import json
import random
import signal
import sqlite3
import time
from pathlib import Path

import pandas as pd
import pytest

from tests.cli.conftest import Hisearch
from tests.cli.processes import Forking, lines

KILLS = 20

#: Files of a run that do not depend on when and how it ran.
FINDINGS = ("study.yaml", "trials.parquet", "candidates.csv", "front.csv", "closeup.json")


def findings(folder: Path) -> dict[str, bytes]:
    """Files that are equal for two runs with equal results: documents and launch scripts."""
    scripts = sorted(path for path in (folder / "recommended").rglob("*") if path.is_file())
    files = [folder / name for name in FINDINGS] + [path for path in scripts if path.name not in {"README.md"}]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def journalled(folder: Path) -> list[str]:
    """Keys of finished simulations; a torn last line is none."""
    if not (folder / "journal.jsonl").is_file():
        return []
    text = (folder / "journal.jsonl").read_text()
    return [json.loads(line)["key"] for line in text[: text.rfind("\n") + 1].splitlines()[1:]]


def kill_at_random(workdir: Path, chance: random.Random, kills: int, *options: object) -> None:
    """Run ``small.yaml`` into ``workdir/r``, and go on with it, killing it that often at random moments."""
    journal, study, killed = workdir / "r" / "journal.jsonl", workdir / "r" / "study.yaml", 0
    with Forking(workdir) as forking:
        while killed < kills:
            how = ("--resume", "r") if study.is_file() else ("small.yaml", "--out", "r")
            # After a few more simulations, or some time where there are none, and a moment: while simulating,
            # replaying, writing the journal, the database or the report, and in between; never before there is a run.
            target, end_s = lines(journal) + chance.randint(0, 2), time.monotonic() + chance.uniform(0.5, 3.0)
            code = forking.run_until(
                lambda target=target, end_s=end_s: (
                    study.is_file() and (lines(journal) >= target or time.monotonic() > end_s)
                ),
                chance.uniform(0, 0.05),
                *("run", *how, "-q", *options),
            )
            assert code in {-signal.SIGKILL, 0}, (workdir / ".err").read_text()
            killed += code != 0
            keys = journalled(workdir / "r")
            assert len(keys) == len(set(keys)), "what had finished was simulated again"


@pytest.mark.slow
def test_twenty_kills_change_nothing(hisearch: Hisearch, workdir: Path) -> None:
    study = (workdir / "small.yaml").read_text()
    (workdir / "small.yaml").write_text(study.replace("simulations: 24", "simulations: 40"))
    assert hisearch("run", "small.yaml", "--out", "whole", "-q", "--workers", 1).code == 0
    kill_at_random(workdir, random.Random(7), KILLS, "--workers", 2)
    before = len(journalled(workdir / "r"))
    again = hisearch("run", "--resume", "r", "--json", "-q")
    assert again.code == 0
    assert findings(workdir / "r") == findings(workdir / "whole")
    keys = journalled(workdir / "r")
    assert len(keys) == len(set(keys)) == again.json["simulations"]
    assert again.json["replayed"] == before
    assert {path.name for path in (workdir / "r").iterdir()} == {path.name for path in (workdir / "whole").iterdir()}
    with sqlite3.connect(workdir / "r" / "study.db") as database:
        (stored,) = database.execute("select count(*) from trials").fetchone()
    assert stored == len(pd.read_parquet(workdir / "r" / "trials.parquet"))
