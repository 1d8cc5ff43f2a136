"""Attention of single batches, priced by the laws of steps, against measured batches.

attention.csv   rows whose sizes are not all powers of two are held out; the rest makes the tables
skew.csv        batches of unequal decodes: a random part is held out; the tables are made of the rest and of
                attention.csv in the same folder
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hisearch.base.dtypes import F8
from hisearch.latency.measured.operator_tables import TableError, attention_rows, attention_tables, skew_rows

if TYPE_CHECKING:
    import pandas as pd

#: Share of the rows of skew.csv that is held out.
HELD_OUT = 0.2
_SEED = 0


@dataclass(frozen=True)
class Errors:
    """Absolute errors relative to the measured time."""

    rows: int
    median_ape: float
    p90_ape: float
    mape: float


@dataclass(frozen=True)
class BatchFile:
    """One file: errors over the held-out rows, overall and by regime (prefill, decode, mixed)."""

    file: str
    rows: int
    median_ape: float
    p90_ape: float
    mape: float
    fitted_rows: int
    regimes: dict[str, Errors]


def validate_batches(files: Iterable[Path]) -> Iterator[BatchFile]:
    """Errors of each file, attention.csv or skew.csv (or .csv.gz) in a folder of operator tables.

    Raises:
        TableError: another file, or one that cannot be used.
    """
    for path in files:
        name = path.name.removesuffix(".gz")
        if name == "attention.csv":
            yield _attention(path)
        elif name == "skew.csv":
            yield _skew(path)
        else:
            raise TableError.at("expected attention.csv or skew.csv of a folder of operator tables", path=path)


def _attention(path: Path) -> BatchFile:
    rows = attention_rows(path.parent)
    places = rows[["prefill_chunk", "kv_prefill", "n_decode", "kv_decode"]].to_numpy(np.float64)
    held_out = np.any(np.log2(np.maximum(places, 1.0)) % 1.0 != 0.0, axis=1)
    tables = attention_tables(path.parent, rows[~held_out], None)
    test = rows[held_out]
    chunk, cached, decodes, mean = places[held_out].T
    predicted = tables.batch_s(chunk, cached, decodes, mean, 0.0, 0.0)
    return _file(path, test["prefill_chunk"], test["n_decode"], predicted, test["time_s"], int((~held_out).sum()))


def _skew(path: Path) -> BatchFile:
    rows = skew_rows(path.parent)
    if rows is None:
        raise TableError.at("is missing (.csv or .csv.gz)", path=path)
    held_out = np.random.default_rng(_SEED).random(len(rows)) < HELD_OUT
    tables = attention_tables(path.parent, attention_rows(path.parent), rows[~held_out])
    test = rows[held_out]
    columns = (test[name].to_numpy() for name in ("pc", "kp", "n", "kv_mean", "longer", "long"))
    predicted = tables.batch_s(*columns)
    return _file(path, test["pc"], test["n"], predicted, test["skew_s"], int((~held_out).sum()))


def _file(
    path: Path, chunks: pd.Series, decodes: pd.Series, predicted: F8, measured: pd.Series, fitted: int
) -> BatchFile:
    if not len(predicted):
        raise TableError.at("has too few rows to hold some out", path=path)
    errors = np.abs(predicted / measured.to_numpy() - 1)
    prompts, decoding = (chunks > 0).to_numpy(), (decodes > 0).to_numpy()
    regimes = {"prefill": prompts & ~decoding, "decode": decoding & ~prompts, "mixed": prompts & decoding}
    by_regime = {name: _errors(errors[which]) for name, which in regimes.items() if which.any()}
    return BatchFile(file=str(path), fitted_rows=fitted, regimes=by_regime, **asdict(_errors(errors)))


def _errors(errors: F8) -> Errors:
    median, p90 = (float(value) for value in np.percentile(errors, [50, 90]))
    return Errors(len(errors), median, p90, float(errors.mean()))
