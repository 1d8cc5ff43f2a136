"""``hisearch validate scheduler``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Hisearch
from tests.validate.recordings import VLLM, Made, make

ROW = {
    "file", "steps", "equal_steps", "first_difference", "first_token_max_error_s", "finish_max_error_s",
}  # fmt: skip
SKIP = "--skip-idle-passes"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make(VLLM, tmp_path_factory.mktemp("made"))


def test_equal(hisearch: Hisearch, made: Made, tmp_path: Path) -> None:
    path = made.write(tmp_path / "good.json.gz")
    ran = hisearch("validate", "scheduler", path, "--json")
    assert ran.code == 0
    (row,) = ran.json["cases"]
    assert ran.json["ok"] is True
    assert set(row) >= ROW
    assert (row["file"], row["steps"], row["equal_steps"]) == (str(path), len(made.document["steps"]), row["steps"])
    assert (row["first_difference"], row["error"]) == (None, None)
    shown = hisearch("validate", "scheduler", path, "--quiet")
    assert (shown.code, shown.err) == (0, "")
    assert "1 of 1 recording replayed as the engine decided, step by step" in shown.out


def test_a_release_whose_rules_are_not_known_is_named(hisearch: Hisearch, made: Made, tmp_path: Path) -> None:
    later = Made(made.document | {"engine": "vllm 99.1.0"}).write(tmp_path / "later.json")
    shown = hisearch("validate", "scheduler", later)
    assert "vLLM 99.1.0" in shown.out
    assert "vllm 99.1.0 is simulated by the rules of" in shown.out
    assert "the nearest modelled release" in shown.out
    assert "nearest modelled" not in hisearch("validate", "scheduler", made.write(tmp_path / "known.json")).out


def test_skipped_idle_passes_are_said(hisearch: Hisearch, made: Made, tmp_path: Path) -> None:
    path = made.write(tmp_path / "good.json.gz")
    rows = [hisearch("validate", "scheduler", path, "--json", *more).json["cases"][0] for more in ((), (SKIP,))]
    assert [(row["ok"], row["idle_passes"]) for row in rows] == [(True, "repeated"), (True, "skipped")]
    shown = hisearch("validate", "scheduler", path, SKIP).out
    assert "step by step, idle passes skipped" in shown
    assert "idle passes skipped" not in hisearch("validate", "scheduler", path).out


def test_a_folder_stands_for_its_recordings(hisearch: Hisearch, made: Made, tmp_path: Path) -> None:
    (tmp_path / "recorded").mkdir()
    files = [made.write(tmp_path / "recorded" / name) for name in ("a.json", "b.json.gz")]
    (tmp_path / "recorded" / "README.md").write_text("no recording")
    ran = hisearch("validate", "scheduler", tmp_path / "recorded", "--json")
    assert (ran.code, [row["file"] for row in ran.json["cases"]]) == (0, [str(file) for file in files])
    (tmp_path / "empty").mkdir()
    refused = hisearch("validate", "scheduler", tmp_path / "empty")
    assert refused.code == 2
    assert "no recording" in refused.err


def test_difference_is_explained_side_by_side(hisearch: Hisearch, made: Made, tmp_path: Path) -> None:
    bad = made.copy()
    step = bad.document["steps"][50]
    taken = step["batch"].pop()
    path = bad.write(tmp_path / "bad.json")
    ran = hisearch("validate", "scheduler", path, made.write(tmp_path / "good.json"), "--json")
    assert ran.code == 1
    assert ran.json["ok"] is False
    assert [row["ok"] for row in ran.json["cases"]] == [False, True]
    difference = ran.json["cases"][0]["first_difference"]
    assert difference["step"] == 50
    assert difference["engine"]["batch"] == step["batch"]
    assert difference["simulated"]["batch"] == [*step["batch"], taken]
    assert {"clock_s", "running", "waiting", "free_tokens", "requests"} <= set(difference["state"])
    assert difference["state"]["requests"][taken[0]]["known"] > 0
    shown = hisearch("validate", "scheduler", path)
    assert shown.code == 1
    for words in ("step 50 of", taken[0], "not in the batch", "running", "waiting", "0 of 1 recording replayed"):
        assert words in shown.out


def test_bad_files_are_named_and_the_others_done(hisearch: Hisearch, made: Made, tmp_path: Path) -> None:
    odd = made.copy()
    odd.document["config"]["enable_lora"] = True
    files = (odd.write(tmp_path / "odd.json"), made.write(tmp_path / "good.json"), tmp_path / "absent.json")
    ran = hisearch("validate", "scheduler", *files, "--json")
    assert ran.code == 1
    odd_row, good_row, absent_row = ran.json["cases"]
    assert set(odd_row) >= ROW
    assert "config.enable_lora: this setting is not simulated" in odd_row["error"]
    assert absent_row["error"].endswith("absent.json: no such file")
    assert good_row["ok"]
    assert ran.err.count("hisearch: error: ") == 2
    shown = hisearch("validate", "scheduler", *files)
    assert (shown.code, shown.out.count("not compared")) == (1, 2)


def test_usage(hisearch: Hisearch) -> None:
    ran = hisearch("validate", "scheduler")
    assert (ran.code, ran.out) == (2, "")
    assert "FILE" in ran.err
