"""Tables of one's own are checked before anything is fitted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from hisearch.calibrate.own_tables import check_fit_for, read_own
from hisearch.calibrate.profiles import calibrate_own
from hisearch.cli.main import main
from tests.calibrate.test_build import H100, gemm_frame, write_own_tables

Change = Callable[[pd.DataFrame], pd.DataFrame]


def _every_tenth(value: object) -> Change:
    return lambda frame: frame.assign(latency_s=frame["latency_s"].astype(object).where(frame.index % 10 != 3, value))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_every_tenth(np.nan), r"gemm\.csv:5: latency_s: expected a positive number of seconds, not nan \(14 more"),
        (_every_tenth(-1.0), r"gemm\.csv:5: latency_s: expected a positive number of seconds, not -1"),
        (_every_tenth("inf"), r"gemm\.csv:5: latency_s: expected a positive number of seconds, not inf"),
        (lambda frame: frame.assign(dtype="bfloat16"), r"gemm\.csv:2: dtype: expected bf16, .* not bfloat16"),
        (lambda frame: frame.assign(m=frame["m"] + 0.5), r"gemm\.csv:2: m: expected a whole number of at least 1"),
        (
            lambda frame: frame.rename(columns={"latency_s": "latency_ms"}),
            "latency_s are missing; .*latency_ms",
        ),
        (lambda frame: frame.head(0), r"gemm\.csv: no rows"),
        (lambda frame: frame.head(8), "8 rows of one format; a law is fitted on 30"),
        (lambda frame: frame.assign(latency_s=1e3 * frame["latency_s"]), "are these no seconds"),
        (lambda frame: frame.assign(latency_s=1e-3 * frame["latency_s"]), "are these no seconds"),
    ],
)
def test_what_is_no_measurement_is_refused(tmp_path: Path, change: Change, message: str) -> None:
    folder = write_own_tables(tmp_path / "own")
    change(gemm_frame()).to_csv(folder / "gemm.csv", index=False)
    with pytest.raises(ValueError, match=message):
        calibrate_own(
            folder, accelerator="h100-sxm", engine="vllm", engine_version="1", multiprocessors=132, source="made up"
        )


def test_empty_files_two_forms_and_missing_tables_are_named(tmp_path: Path) -> None:
    folder = write_own_tables(tmp_path / "own")
    check_fit_for(read_own(folder), H100, folder)
    (folder / "decode_attention.parquet").unlink()
    with pytest.raises(ValueError, match=r"decode_attention\.csv: not there"):
        check_fit_for(read_own(folder), H100, folder)
    (folder / "decode_attention.csv").write_text("")
    with pytest.raises(ValueError, match=r"decode_attention\.csv: no table"):
        read_own(folder)
    gemm_frame().to_parquet(folder / "gemm.parquet")
    with pytest.raises(ValueError, match="keep one of the two"):
        read_own(folder)


def test_columns_that_are_not_known_are_left_out(tmp_path: Path) -> None:
    gemm_frame().assign(measured_by="me").to_csv(tmp_path / "gemm.csv", index=False)
    assert list(read_own(tmp_path).frames["gemm"].columns) == ["dtype", "m", "n", "k", "latency_s", "source"]


def test_where_to_write_is_looked_at_first(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(
            ["calibrate", str(write_own_tables(tmp_path / "own")), "--accelerator", "h100-sxm", "--engine", "vllm",
             "--multiprocessors", "132", "-o", str(tmp_path / "none" / "x.yaml")]
        )  # fmt: skip
    assert stop.value.code == 1
    stderr = capfd.readouterr().err
    assert "no folder" in stderr
    assert "median" not in stderr
