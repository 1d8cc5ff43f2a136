"""``hisearch calibrate``: usage; the fits themselves are in tests/calibrate."""

from pathlib import Path

from tests.cli.conftest import Hisearch


def test_what_was_measured_must_be_said(hisearch: Hisearch, tmp_path: Path) -> None:
    assert hisearch("calibrate").code == 2
    unknown = hisearch("calibrate", "--accelerator", "h100-sxm", "--engine", "tgi")
    assert unknown.code == 2
    assert "expected vllm, sglang, trtllm, not " in unknown.err
    (tmp_path / "gemm.csv").write_text("m,n,k\n")
    ran = hisearch("calibrate", tmp_path, "--accelerator", "h100-sxm", "--engine", "vllm")
    assert ran.code == 2
    assert "--multiprocessors" in ran.err
    former = hisearch(
        "calibrate", tmp_path, "--accelerator", "h100-sxm", "--engine", "vllm", "--multiprocessors", "132",
        "--former", tmp_path,
    )  # fmt: skip
    assert former.code == 2
    assert "--former" in former.err


def test_tables_that_are_not_there_are_an_error(hisearch: Hisearch, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    ran = hisearch("calibrate", tmp_path / "empty", "--accelerator", "h100-sxm", "--engine", "vllm")
    assert ran.code == 1
    assert "neither it nor systems/data below it" in ran.err
    unknown = hisearch("calibrate", "--accelerator", "abacus", "--engine", "vllm")
    assert unknown.code == 1
    assert "no tables of accelerator abacus, only of a100-80gb" in unknown.err
