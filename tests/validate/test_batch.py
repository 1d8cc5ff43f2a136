"""Measured attention batches against the laws of the simulator."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from hisearch.cli.main import app
from hisearch.latency.measured.operator_tables import TableError
from hisearch.validate.batch import validate_batches
from tests.latency.operator_folder import attention_us, write_tables
from tests.reference.recorded import shared_directory


def add_held_out(folder: Path, factor: float) -> Path:
    """Rows between the powers of two, ``factor`` times what the law says."""
    path = folder / "tp1" / "attention.csv"
    between = [(768, 0, 0, 0), (0, 0, 16, 768), (384, 128, 16, 768), (192, 768, 32, 192)]
    rows = pd.DataFrame([(*row, factor * attention_us(*row)) for row in between], columns=pd.read_csv(path).columns)
    pd.concat([pd.read_csv(path), rows]).to_csv(path, index=False)
    return path


def test_rows_between_the_knots_are_predicted(tmp_path: Path) -> None:
    (exact,) = validate_batches([add_held_out(write_tables(tmp_path / "a"), 1.0)])
    assert (exact.rows, set(exact.regimes)) == (4, {"prefill", "decode", "mixed"})
    # A law that is quadratic in the chunk is not met between two knots by a line.
    assert exact.regimes["decode"].mape < 1e-9
    assert exact.p90_ape < 0.2
    (off,) = validate_batches([add_held_out(write_tables(tmp_path / "b"), 2.0)])
    assert off.regimes["decode"].median_ape == pytest.approx(0.5)
    assert 0.4 < off.median_ape < 0.55


def test_only_tables_of_batches_are_taken(tmp_path: Path) -> None:
    folder = write_tables(tmp_path)
    with pytest.raises(TableError, match=r"expected attention\.csv or skew\.csv"):
        list(validate_batches([folder / "tp1" / "dense.csv"]))
    with pytest.raises(TableError, match="too few rows"):
        list(validate_batches([folder / "tp1" / "attention.csv"]))


def test_json_has_the_documented_keys(tmp_path: Path) -> None:
    path = add_held_out(write_tables(tmp_path), 1.0)
    result = CliRunner().invoke(app, ["validate", "batch", str(path), "--json"])
    assert result.exit_code == 0, result.output
    (file,) = json.loads(result.stdout)["files"]
    assert {"file", "rows", "median_ape", "p90_ape", "mape"} <= file.keys()


def test_measured_batches_within_their_errors() -> None:
    shared = shared_directory()
    folder = None if shared is None else shared / "validation" / "vllm_e2e" / "rtxpro6000-llama-3.1-8b-tp1"
    if folder is None or not folder.is_dir():
        pytest.skip("no measured batches: set HISEARCH_SHARED to the folder with the validation data")
    tables = folder / "operators" / "tp1"
    attention, skew = validate_batches([tables / "attention.csv.gz", tables / "skew.csv.gz"])
    assert attention.median_ape < 0.02
    assert attention.p90_ape < 0.08
    assert skew.median_ape < 0.025
    assert skew.p90_ape < 0.08
