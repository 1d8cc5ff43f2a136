"""``hisearch calibrate``: usage; the fits themselves are in tests/calibrate."""

from pathlib import Path

from tests.cli.conftest import Hisearch


def test_what_was_measured_must_be_said(hisearch: Hisearch, tmp_path: Path) -> None:
    assert hisearch("calibrate").code == 2
    (tmp_path / "gemm.csv").write_text("m,n,k\n")
    unknown = hisearch(
        "calibrate", tmp_path, "--accelerator", "h100-sxm", "--engine", "tgi", "--multiprocessors", "132"
    )
    assert unknown.code == 2
    assert "expected vllm, sglang, trtllm, not " in unknown.err
    ran = hisearch("calibrate", tmp_path, "--accelerator", "h100-sxm", "--engine", "vllm")
    assert ran.code == 2
    assert "--multiprocessors" in ran.err


def test_tables_that_are_not_there_are_an_error(hisearch: Hisearch, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    ran = hisearch(
        "calibrate", tmp_path / "empty", "--accelerator", "h100-sxm", "--engine", "vllm", "--multiprocessors", "132"
    )
    assert ran.code == 1
    assert "gemm.csv" in ran.err
