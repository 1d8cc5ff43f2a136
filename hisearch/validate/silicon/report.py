"""Errors of simulated runs against measured ones, by group of rows.

``(predicted - measured) / measured``: APE is its absolute value, bias its mean; all are fractions.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from hisearch.latency.served_errors import SCORES, plain_name, served_errors
from hisearch.validate.errors import errors_of
from hisearch.validate.silicon.conditions import conditions_of
from hisearch.validate.silicon.peer import PeerPricer
from hisearch.validate.silicon.pricing import SYSTEMS, NotPriced, Price, Pricer
from hisearch.validate.silicon.reach import beyond_reach
from hisearch.validate.silicon.recipes import recipe_of
from hisearch.validate.silicon.rows import SiliconRow, read_rows

#: (engine, version) of campaigns whose TTFT falls as concurrency grows: a start-up cost of theirs, not the engine's.
START_UP = frozenset({("trtllm", "1.0.0rc3")})
#: Columns of another tool's times.
INTERVAL_COLUMNS = ("ttft_p5_ms", "ttft_p95_ms", "tpot_p5_ms", "tpot_p95_ms")
PEER_COLUMNS = ("aiconfigurator_ttft_ms", "aiconfigurator_tpot_ms")


@dataclass(frozen=True)
class Errors:
    """Errors of a group of rows; NaN where it has none.

    n: rows. ttft_n: rows that count for TTFT: without those of a campaign with a start-up cost, unless the group is
    theirs alone.
    """

    key: str
    n: int
    ttft_n: int
    ttft_median_ape: float
    ttft_mape: float
    ttft_bias: float
    tpot_median_ape: float
    tpot_mape: float
    tpot_bias: float


@dataclass(frozen=True)
class PricedRow:
    """A row with its price, or the reason why it has none.

    dense: of a model without experts and without MLA. drafted: its script drafts tokens. beyond: measured
    faster than the accelerator allows (``reach``).
    """

    row: SiliconRow
    price: Price | None
    skipped: str = ""
    dense: bool = False
    drafted: bool = False
    beyond: bool = False
    peer: Price | None = None

    @property
    def ttft_error(self) -> float:
        """Signed relative error of the mean TTFT."""
        return self.price.ttft_s / self.row.measured_ttft_s - 1.0 if self.price else float("nan")

    @property
    def tpot_error(self) -> float:
        """Signed relative error of the mean TPOT."""
        return self.price.tpot_s / self.row.measured_tpot_s - 1.0 if self.price else float("nan")


@dataclass(frozen=True)
class PeerErrors:
    """Errors of another tool's prediction, and of ours on the same rows.

    tool: with its version. theirs, ours: errors of the rows that both price. groups: theirs by engine, version, GPU,
    model and mode.
    """

    tool: str
    theirs: Errors
    ours: Errors
    groups: list[Errors]


@dataclass(frozen=True)
class SiliconReport:
    """Errors over a file.

    rows: read. priced: simulated. skipped: reason -> rows. all: every priced row of aggregated runs, or of the others
    without any. engines: of these, by engine; groups: of all, by engine, version, GPU, model and mode. disaggregated:
    runs with prefill/decode disaggregation; disaggregated_stated: those that state their number of workers;
    disaggregated_known: those whose recipe is known (``recipes``). dense: rows of models without experts and without
    MLA. drafted: rows whose scripts draft tokens.
    within_reach: all except rows measured faster than their accelerator allows, whose lines are ``beyond_reach``. peer:
    of aiconfigurator-core, if installed. start_up: rows whose TTFT is excluded from ``all``. profile: of the constants.
    """

    file: str
    profile: str
    rows: int
    priced: int
    skipped: dict[str, int]
    all: Errors
    dense: Errors
    drafted: Errors
    within_reach: Errors
    beyond_reach: list[int]
    start_up: Errors
    engines: list[Errors]
    groups: list[Errors]
    disaggregated: Errors
    disaggregated_stated: Errors
    disaggregated_known: Errors
    peer: PeerErrors | None = None


def validate_silicon(
    file: Path,
    *,
    pricer: Pricer,
    where: Mapping[str, str] | None = None,
    rows_out: Path | None = None,
    peer: PeerPricer | None = None,
) -> SiliconReport:
    """Simulate every row of ``file`` that can be priced and compare.

    Args:
        file: CSV of measured runs (see ``rows``).
        where: column -> value that rows must have.
        pricer: simulates the rows.
        peer: another tool that prices the same rows.
        rows_out: CSV to write: the input's columns, ``predicted_ttft_ms``, ``predicted_tpot_ms`` and ``skipped``; the
            peer's times too if given.

    Raises:
        SiliconFileError: the file cannot be read; names line and column.
    """
    header, rows = read_rows(file, where)
    priced = [entry if peer is None else _with_peer_price(entry, peer) for entry in price_rows(rows, pricer)]
    if rows_out is not None:
        _write(rows_out, header, priced, with_peer=peer is not None)
    report = summarise(str(file), priced, pricer.profile_name)
    return report if peer is None else replace(report, peer=_peer_errors(peer.version, priced))


def _with_peer_price(entry: PricedRow, peer: PeerPricer) -> PricedRow:
    """``entry`` with the peer's price, if any."""
    try:
        return replace(entry, peer=peer.price(entry.row))
    except NotPriced:
        return entry


def _peer_errors(version: str, priced: Iterable[PricedRow]) -> PeerErrors:
    priced_by_both = [entry for entry in priced if entry.price is not None and entry.peer is not None]
    peer = _table(replace(entry, price=entry.peer) for entry in priced_by_both)
    own = errors("hisearch, same rows", _table(priced_by_both))
    return PeerErrors(f"aiconfigurator-core {version}", errors("aiconfigurator-core", peer), own, _groups(peer, 5))


def price_rows(rows: Sequence[SiliconRow], pricer: Pricer) -> Iterator[PricedRow]:
    """Each row with its price or the reason why it has none."""
    for row in rows:
        try:
            price = pricer.price(row)
            worker, conditions = pricer.worker(row), conditions_of(row)
            model = worker.model
            yield PricedRow(
                row,
                price,
                dense=model.moe is None and model.mla is None,
                drafted=conditions.draft_tokens > 0,
                beyond=row.mode == "agg" and beyond_reach(row, worker, conditions),
            )
        except NotPriced as reason:
            yield PricedRow(row, None, str(reason))


#: Columns of a group's key, from the widest group to the narrowest.
_KEY = ["engine", "version", "system", "model", "mode"]


def _table(priced: Iterable[PricedRow]) -> pd.DataFrame:
    """Priced rows: their keys, kinds and signed relative errors."""
    rows = [
        (
            *entry.row.key, entry.row.line, entry.dense, entry.drafted, entry.beyond,
            (entry.row.backend, entry.row.version) in START_UP,
            entry.row.states_workers, entry.row.mode == "disagg" and recipe_of(entry.row) is not None,
            entry.ttft_error, entry.tpot_error,
        )
        for entry in priced
        if entry.price is not None
    ]  # fmt: skip
    kinds = ["line", "dense", "drafted", "beyond", "start_up", "stated", "recipe", "ttft", "tpot"]
    return pd.DataFrame(rows, columns=[*_KEY, *kinds])


def summarise(file: str, priced: Sequence[PricedRow], profile: str) -> SiliconReport:
    """The report over ``priced``."""
    rows = _table(priced)
    disaggregated = rows[rows["mode"] == "disagg"]
    done = rows[rows["mode"] != "disagg"] if len(disaggregated) < len(rows) else disaggregated
    flags = {name: done[name].astype(bool) for name in ("dense", "drafted", "beyond", "start_up")}
    return SiliconReport(
        file=file,
        profile=profile,
        rows=len(priced),
        priced=len(rows),
        skipped=dict(Counter(entry.skipped for entry in priced if entry.price is None).most_common()),
        all=errors("all", done),
        dense=errors("dense", done[flags["dense"]]),
        drafted=errors("with drafted tokens", done[flags["drafted"]]),
        within_reach=errors("within the GPU's reach", done[~flags["beyond"]]),
        beyond_reach=done[flags["beyond"]]["line"].tolist(),
        start_up=errors("start-up", done[flags["start_up"]], with_start_up=True),
        engines=_groups(done, 1),
        groups=_groups(rows, 5, with_start_up=True),
        disaggregated=errors("disaggregated prefill and decode", disaggregated, with_start_up=True),
        disaggregated_stated=errors(
            "disaggregated, workers stated", disaggregated[disaggregated["stated"].astype(bool)], with_start_up=True
        ),
        disaggregated_known=errors(
            "disaggregated, recipe known", disaggregated[disaggregated["recipe"].astype(bool)], with_start_up=True
        ),
    )


def errors(key: str, rows: pd.DataFrame, *, with_start_up: bool = False) -> Errors:
    """Errors of ``rows`` of ``_table``; of TTFT without those of a campaign with a start-up cost, unless they count."""
    for_ttft = rows if with_start_up else rows[~rows["start_up"].astype(bool)]
    ttft, tpot = errors_of(for_ttft["ttft"].to_numpy(float)), errors_of(rows["tpot"].to_numpy(float))
    figures = (ttft.median_ape, ttft.mape, ttft.bias, tpot.median_ape, tpot.mape, tpot.bias)
    return Errors(key, tpot.runs, ttft.runs, *figures)


def _groups(rows: pd.DataFrame, parts: int, *, with_start_up: bool = False) -> list[Errors]:
    """Errors by the first ``parts`` of the key."""
    return [
        errors(" / ".join(map(str, key)), group, with_start_up=with_start_up)
        for key, group in rows.groupby(_KEY[:parts])
    ]


def _write(path: Path, header: Sequence[str], priced: Iterable[PricedRow], *, with_peer: bool) -> None:
    names = ("predicted_ttft_ms", "predicted_tpot_ms", *INTERVAL_COLUMNS, "skipped")
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow((*header, *names, *(PEER_COLUMNS if with_peer else ())))
        for entry in priced:
            input_cells = (entry.row.cells.get(name, "") for name in header)
            result_cells = (*_cells(entry.price), *_interval(entry), entry.skipped)
            writer.writerow((*input_cells, *result_cells, *(_cells(entry.peer) if with_peer else ())))


def _interval(entry: PricedRow) -> tuple[str, str, str, str]:
    """90 % intervals of the row's TTFT and TPOT, milliseconds; empty where unknown."""
    row, price = entry.row, entry.price
    laws = served_errors(row.backend, SYSTEMS.get(row.system), plain_name(row.model))
    if price is None or laws is None:
        return ("",) * 4
    ends = [
        law.measured(1e3 * simulated_s, score)
        for law, simulated_s in ((laws.ttft, price.ttft_s), (laws.step, price.tpot_s))
        for score in (SCORES[0], SCORES[-1])
    ]
    low_ttft, high_ttft, low_tpot, high_tpot = (f"{end:.4f}" for end in ends)
    return low_ttft, high_ttft, low_tpot, high_tpot


def _cells(price: Price | None) -> tuple[str, str]:
    return ("", "") if price is None else (f"{price.ttft_s * 1e3:.4f}", f"{price.tpot_s * 1e3:.4f}")
