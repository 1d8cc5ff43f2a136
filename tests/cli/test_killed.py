"""A run that is killed, again and again, comes to what an undisturbed one comes to (law L9)."""

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

#: What a run writes that does not tell when and how it ran.
FINDINGS = ("study.yaml", "trials.parquet", "candidates.csv", "front.csv", "closeup.json")


def findings(folder: Path) -> dict[str, bytes]:
    """The same for two runs that found the same: documents, and launch scripts."""
    scripts = sorted(path for path in (folder / "recommended").rglob("*") if path.is_file())
    files = [folder / name for name in FINDINGS] + [path for path in scripts if path.name not in {"README.md"}]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def journalled(folder: Path) -> list[str]:
    """Keys of finished simulations; a torn last line is none."""
    if not (folder / "journal.jsonl").is_file():
        return []
    text = (folder / "journal.jsonl").read_text()
    return [json.loads(line)["key"] for line in text[: text.rfind("\n") + 1].splitlines()[1:]]


def kill_at_random(here: Path, chance: random.Random, kills: int, *options: object) -> None:
    """Run ``small.yaml`` into ``here/r``, and go on with it, killing it that often at random moments."""
    journal, study, killed = here / "r" / "journal.jsonl", here / "r" / "study.yaml", 0
    with Forking(here) as forking:
        while killed < kills:
            how = ("--resume", "r") if study.is_file() else ("small.yaml", "--out", "r")
            # After a few more simulations, or some time where there are none, and a moment: while simulating,
            # replaying, writing the journal, the database or the report, and in between; never before there is a run.
            wanted, end_s = lines(journal) + chance.randint(0, 2), time.monotonic() + chance.uniform(0.5, 3.0)
            code = forking.run_until(
                lambda wanted=wanted, end_s=end_s: (
                    study.is_file() and (lines(journal) >= wanted or time.monotonic() > end_s)
                ),
                chance.uniform(0, 0.05),
                *("run", *how, "-q", *options),
            )
            assert code in {-signal.SIGKILL, 0}, (here / ".err").read_text()
            killed += code != 0
            keys = journalled(here / "r")
            assert len(keys) == len(set(keys)), "what had finished was simulated again"


@pytest.mark.slow
def test_twenty_kills_change_nothing(hisearch: Hisearch, here: Path) -> None:
    study = (here / "small.yaml").read_text()
    (here / "small.yaml").write_text(study.replace("simulations: 24", "simulations: 40"))
    assert hisearch("run", "small.yaml", "--out", "whole", "-q", "--workers", 1).code == 0
    kill_at_random(here, random.Random(7), KILLS, "--workers", 2)
    before = len(journalled(here / "r"))
    again = hisearch("run", "--resume", "r", "--json", "-q")
    assert again.code == 0
    assert findings(here / "r") == findings(here / "whole")
    keys = journalled(here / "r")
    assert len(keys) == len(set(keys)) == again.json["simulations"]
    assert again.json["replayed"] == before
    assert {path.name for path in (here / "r").iterdir()} == {path.name for path in (here / "whole").iterdir()}
    with sqlite3.connect(here / "r" / "study.db") as database:
        (stored,) = database.execute("select count(*) from trials").fetchone()
    assert stored == len(pd.read_parquet(here / "r" / "trials.parquet"))
