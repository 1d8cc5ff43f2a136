"""How far each estimate may be off before the answer changes: the data of a tornado of bars."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from hisearch.report.data.confidence import Confidence
from hisearch.report.data.inputs import ReportInput
from hisearch.score.quantities import quantity, usd
from hisearch.search.model.deployments import hardware, setting_name
from hisearch.search.model.trial import price_of
from hisearch.specs.deployments.deployment import DeploymentSpec
from hisearch.specs.wording import capitalised, format_percent

#: Changes beyond this are drawn at the end of the axis.
_MOST = 0.5
#: Uses of the tightest bound beyond this multiple are drawn at the end of the axis.
_MOST_USE = 1.5
#: Rows of the table of settings.
_MOST_SETTINGS = 8


#: Rows of step times whose factor is drawn -> the regime.
_REGIMES = {"Prefill slower": "prefill", "Decode slower": "decode", "Host work slower": "host"}


class Swing(NamedTuple):
    """An estimate. threshold: the change at which the answer changes, as text; then: what happens, as text.

    left, width: of the bar, in per cent of the axis. open: it goes on beyond its end. drawn_left,
    drawn_width: of the interval that draws put on the estimate; None where they do not, or that is not known.
    """

    group: str
    name: str
    threshold: str
    then: str
    left: float
    width: float
    open: bool
    drawn_left: float | None = None
    drawn_width: float | None = None


class Setting(NamedTuple):
    """Another value of one setting. use: of the tightest bound, as text; width: of its bar, in per cent."""

    name: str
    change: str
    price: str
    use: str
    width: float
    meets: bool


class Tornado(NamedTuple):
    """swings: smallest change first. end: the axis' ends. level: share of draws within their intervals. All as text.

    settings: worst first; bound: place of their bound, in per cent.
    """

    swings: tuple[Swing, ...]
    end: str
    level: str
    settings: tuple[Setting, ...]
    bound: float


def tornado(data: ReportInput) -> Tornado | None:
    """The data; None where nothing was looked into."""
    known = data.confidence or Confidence()
    if data.recommendation is None or not known.sensitivity:
        return None
    changes = [*_steps(data, known.sensitivity), *_prices(data, known.sensitivity), *_load(data, known)]
    settings = _settings(data, known.sensitivity)
    if not changes and not settings:
        return None
    closed = [abs(change) for *_, change, is_open in changes if not is_open]
    widest = max(closed, default=0.0)
    end = min(1.1 * widest, _MOST) if widest > 0 else _MOST
    swings = [
        _drawn(_swing(*entry, end), known.drawn, end)
        for entry in sorted(changes, key=lambda entry: (entry[-1], abs(entry[-2])))
    ]
    level = "" if known.level is None or not known.drawn else format_percent(known.level)
    return Tornado(tuple(swings), format_percent(end), level, settings, 100 / _MOST_USE)


_Entry = tuple[str, str, str, float, bool]


def _swing(group: str, name: str, then: str, change: float, is_open: bool, end: float) -> Swing:
    width = 50.0 * min(abs(change) / end, 1.0)
    left = 50.0 if change >= 0 else 50.0 - width
    text = format_percent(change, 1 if abs(change) < 0.1 else 0, signed=True)
    threshold = f"beyond {text}" if is_open else text
    return Swing(group, name, threshold, then, round(left, 2), round(width, 2), is_open or abs(change) > end)


def _drawn(swing: Swing, drawn: Mapping[str, tuple[float, float]], end: float) -> Swing:
    """With the interval of the draws, as far as the axis goes; no number is drawn for all steps together."""
    ends = drawn.get(_REGIMES.get(swing.name, ""))
    if ends is None:
        return swing
    low, high = (50.0 + 50.0 * min(max((factor - 1.0) / end, -1.0), 1.0) for factor in ends)
    return swing._replace(drawn_left=round(low, 2), drawn_width=round(high - low, 2))


def _steps(data: ReportInput, sensitivity: Mapping[str, Any]) -> list[_Entry]:
    entries = []
    for row in sensitivity.get("steps") or ():
        name = f"{capitalised(str(row['what']))} slower"
        if row.get("missed") is None:
            entries.append(("steps", name, "the SLO still holds", float(row["holds"]) - 1.0, True))
        else:
            missed = f"{quantity(row['term']).label} is missed" if row.get("term") else "the SLO is missed"
            instead = _instead(row.get("instead"), row.get("instead_usd_per_hour"))
            entries.append(("steps", name, f"{missed}{instead}", float(row["missed"]) - 1.0, False))
    faster = sensitivity.get("faster")
    if faster and faster.get("holds"):
        then = f"cheaper: {_trial(data, faster.get('trial'))}"
        entries.append(("steps", "All steps faster", then, float(faster["holds"]) - 1.0, False))
    return entries


def _instead(deployment: Any, price: Any) -> str:
    if not isinstance(deployment, Mapping):
        return ""
    cost = f" at {usd(float(price))}" if price is not None else ""
    return f"; buy {hardware(DeploymentSpec.model_validate(deployment))}{cost}"


def _trial(data: ReportInput, number: Any) -> str:
    trial = next((trial for trial in data.trials if trial.number == number), None)
    return "another deployment" if trial is None else f"{hardware(trial.deployment)} at {usd(price_of(trial))}"


def _prices(data: ReportInput, sensitivity: Mapping[str, Any]) -> list[_Entry]:
    entries = []
    for row in sensitivity.get("prices") or ():
        now, then = float(row["now_usd"]), float(row["usd"])
        if now > 0:
            draws = f"; holds in {row['held']} of {row['draws']} draws" if row.get("draws") else ""
            text = f"cheaper: {_trial(data, row.get('trial'))} now{draws}"
            entries.append(("prices", f"Price of {row['item']}", text, then / now - 1.0, False))
    return entries


def _load(data: ReportInput, known: Confidence) -> list[_Entry]:
    headroom = data.headroom
    if headroom is None or headroom.load <= 0:
        return []
    if math.isinf(headroom.infeasible_load):
        return [("load", "More load", "the SLO still holds", headroom.load - 1.0, True)]
    follows = known.sensitivity.get("next") or {}
    instead = _instead(follows.get("instead"), follows.get("instead_usd_per_hour"))
    return [("load", "More load", f"the SLO is missed{instead}", headroom.infeasible_load - 1.0, False)]


def _settings(data: ReportInput, sensitivity: Mapping[str, Any]) -> tuple[Setting, ...]:
    by_number = {trial.number: trial for trial in data.trials}
    assert data.recommendation is not None
    price = price_of(data.recommendation.trial)
    rows = []
    for row in sensitivity.get("settings") or ():
        trial, margin = by_number.get(row.get("trial")), row.get("worst_margin")
        if trial is None or not isinstance(margin, int | float):
            continue
        use, change = 1.0 - margin, price_of(trial) - price
        cost = "same" if change == 0 else f"{'+' if change > 0 else '−'}{usd(abs(change))}"
        width = 100.0 * min(max(use, 0.0) / _MOST_USE, 1.0)
        values = f"{row['ours']} → {row['instead']}"
        shown = format_percent(use) if use < 10 else "> 1,000 %"
        rows.append(
            Setting(setting_name(row["setting"]), values, cost, shown, round(width, 2), bool(row.get("feasible")))
        )
    return tuple(rows[:_MOST_SETTINGS])
