import json
import math
from pathlib import Path

import pytest

from hisearch.score.terms import TermCheck
from hisearch.search.model.job import Evaluation, Job
from hisearch.search.records.journal import Journal, JournalError
from tests.search.fakes import make_deployment

EVALUATION = Evaluation(
    {"ttft_p99_s": 0.1 + 0.2, "e2e_p99_s": math.inf}, (TermCheck("ttft_p99", 0.3, 2.0),), True, "", ("w",)
)


def write(path: Path, *keys: str) -> None:
    with Journal(path, "inputs") as journal:
        for key in keys:
            journal.record(key, EVALUATION)


def test_what_was_recorded_is_read_back_exactly(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    write(path, "a", "b")
    with Journal(path, "inputs", resume=True) as journal:
        assert len(journal) == 2
        assert journal.get("a") == EVALUATION
        assert journal.get("c") is None


def test_each_line_is_on_disk_before_the_next_simulation(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with Journal(path, "inputs") as journal:
        journal.record("a", EVALUATION)
        assert json.loads(path.read_text().splitlines()[-1])["key"] == "a"


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_torn_last_line_is_dropped_and_the_file_stays_usable(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "journal.jsonl"
    write(path, "a", "b")
    path.write_bytes(path.read_bytes()[:-cut])
    with Journal(path, "inputs", resume=True) as journal:
        assert journal.get("a") == EVALUATION
        assert journal.get("b") is None
        journal.record("b", EVALUATION)
    with Journal(path, "inputs", resume=True) as journal:
        assert journal.get("b") == EVALUATION


def test_a_journal_torn_in_its_header_starts_anew(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_text('{"journal": 1, "inp')
    with Journal(path, "inputs", resume=True) as journal:
        journal.record("a", EVALUATION)
    with Journal(path, "inputs", resume=True) as journal:
        assert journal.get("a") == EVALUATION


def test_a_line_that_is_damaged_in_the_middle_is_named(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    write(path, "a", "b")
    lines = path.read_text().splitlines(keepends=True)
    path.write_text(lines[0] + '{"key": 3}\n' + lines[2])
    with pytest.raises(JournalError, match=r"journal\.jsonl:2"):
        Journal(path, "inputs", resume=True)


def test_a_folder_is_not_reused_by_accident_nor_for_other_inputs(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    write(path)
    with pytest.raises(JournalError, match="resume"):
        Journal(path, "inputs")
    with pytest.raises(JournalError, match="another model"):
        Journal(path, "other inputs", resume=True)


def test_keys_tell_apart_whatever_decides_the_outcome() -> None:
    job = Job(2, make_deployment())
    others = [
        Job(2, make_deployment(replicas=3)),
        Job(2, make_deployment(), load=2.0),
        Job(2, make_deployment(), slice_fraction=0.5),
    ]
    keys = {job.digest("x"), job.digest("y"), *(other.digest("x") for other in others)}
    assert len(keys) == 5
    assert Job(3, make_deployment(), {"named": "otherwise"}).digest("x") == job.digest("x")
