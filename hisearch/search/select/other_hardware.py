"""How hardware that was not chosen fared, and at which price of its own it would win, by simulated trials."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from hisearch.hardware.price_book import Listed, PriceBook
from hisearch.search.model.deployments import format_devices
from hisearch.search.model.trial import Trial, price_of
from hisearch.specs.deployments.deployment import DeploymentSpec
from hisearch.specs.machines.devices import DevicesSpec

#: Dollars per hour below which two deployments have the same amount of an item.
_SAME = 1e-9


@dataclass(frozen=True)
class OtherHardware:
    """Accelerators, and what is attached to them, that other deployments of a search have.

    hardware: as text. trial: the cheapest of these deployments that meets the SLO, else the nearest miss; None
    where none was simulated on the complete trace. item, unit, now_usd: what it has more of than the
    recommendation, and its price; empty and 0 where it has nothing more. win_usd: price of the item up to which one
    of them is cheaper than the recommendation; None: not even for nothing, or none meets the SLO. trials: of these
    deployments, those on parts of the trace and at other loads included.
    """

    hardware: str
    trial: Trial | None
    item: str = ""
    unit: str = ""
    now_usd: float = 0.0
    win_usd: float | None = None
    trials: int = 0


def other_hardware(
    book: PriceBook, trials: Iterable[Trial], best: Trial, kinds: Iterable[str] = ()
) -> list[OtherHardware]:
    """Every other hardware of the trials on the complete trace, the cheapest first, then others of ``kinds``.

    Those that already cost less than ``best`` have no price to win at: something else speaks against them. Everything
    else stays: other prices, electricity, and which trials meet the SLO.
    """
    groups: dict[str, list[Trial]] = {}
    counts: Counter[str] = Counter()
    for trial in trials:
        kind = hardware_kind(trial.deployment)
        counts[kind] += 1
        if trial.comparable and trial.metrics:
            groups.setdefault(kind, []).append(trial)
    ours = hardware_kind(best.deployment)
    missing = [OtherHardware(kind, None) for kind in dict.fromkeys(kinds) if kind not in {ours, *groups}]
    groups.pop(ours, None)
    compared = [(_of_hardware(book, hardware, of_kind, best), hardware) for hardware, of_kind in groups.items()]
    ordered = [other for other, _ in sorted(compared, key=_order)] + missing
    return [replace(other, trials=counts[other.hardware]) for other in ordered]


def _order(entry: tuple[OtherHardware, str]) -> tuple[bool, float, str]:
    trial = entry[0].trial
    return (trial is None or not trial.feasible, math.inf if trial is None else price_of(trial), entry[1])


def hardware_kind(deployment: DeploymentSpec) -> str:
    """``h100-sxm with 1 hbm2-pim (decode_attention)``: the accelerators of all pools, with their devices."""
    return " + ".join(dict.fromkeys(worker_kind(pool.accelerator, pool.devices) for pool in deployment.pools))


def worker_kind(accelerator: str, devices: DevicesSpec | None) -> str:
    """The same of one worker."""
    return accelerator if devices is None else f"{accelerator} with {format_devices(devices)}"


def _of_hardware(book: PriceBook, hardware: str, trials: Sequence[Trial], best: Trial) -> OtherHardware:
    meeting = [trial for trial in trials if trial.meets_slo]
    if not meeting:
        nearest = min(trials, key=lambda trial: (trial.worst_violation, price_of(trial), trial.number))
        item = next(_own_items(book, nearest, best), None)
        return OtherHardware(hardware, nearest, *((item.item, item.unit, item.usd) if item is not None else ()))
    cheapest = min(meeting, key=lambda trial: (price_of(trial), trial.number))
    item = next(_own_items(book, cheapest, best), None)
    if item is None or price_of(cheapest) <= price_of(best):
        return OtherHardware(hardware, cheapest)
    prices = [
        item.usd - (price_of(trial) - price_of(best)) / more
        for trial in meeting
        if (more := _amount(book, item, trial) - _amount(book, item, best)) > _SAME
    ]
    win_usd = max(prices)
    return OtherHardware(hardware, cheapest, item.item, item.unit, item.usd, win_usd if win_usd > 0 else None)


def _own_items(book: PriceBook, trial: Trial, best: Trial) -> Iterator[Listed]:
    """Devices, then accelerators, that ``trial`` has more of than ``best``; devices are what tells it from others."""
    listed = {price.item: price for price in book.prices()}
    for kind in (book.devices, book.accelerators):
        for name in kind:
            if name in listed and _amount(book, listed[name], trial) - _amount(book, listed[name], best) > _SAME:
                yield listed[name]


def _amount(book: PriceBook, item: Listed, trial: Trial) -> float:
    """How much of an item a deployment has."""
    return book.at({item.item: item.usd + 1.0}).cost(trial.deployment) - book.cost(trial.deployment)
