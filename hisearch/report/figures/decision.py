"""The picture that decides, as plain SVG: price against the used share of the SLO's tightest bound.

Every deployment below 100 % meets the latency terms. It needs no script, so that it is there with the page's text.
Labels are placed so that they cover neither each other nor marked points.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from hisearch.report.data.inputs import ReportInput
from hisearch.report.figures.scatter import Tick
from hisearch.search.model.trial import Trial

#: Uses above this multiple of the bound are not drawn, except of labelled trials.
_MOST_USE = 4.0
#: A price axis that spans more than this factor is logarithmic.
_LOG_RATIO = 4.0
#: Mean width of a character, and height of a line, of labels; drawing units.
_CHARACTER, _LINE = 6.7, 15.0
#: Marks nearer to each other than this cover each other; drawing units, the radius of a mark.
_COINCIDE = 8.0


_Point = tuple[float, float]
#: Left, top, right, bottom.
_Box = tuple[float, float, float, float]


class Size(NamedTuple):
    """Size of the drawing and its margins, drawing units."""

    width: float
    height: float
    left: float = 60.0
    right: float = 14.0
    top: float = 14.0
    bottom: float = 44.0


WIDE = Size(800.0, 372.0)
NARROW = Size(360.0, 340.0, left=54.0)


class Named(NamedTuple):
    """A trial to be labelled. key: names its shape and colour; texts: the label's lines, the first one bold."""

    key: str
    trial: Trial
    texts: tuple[str, ...]


class Mark(NamedTuple):
    """A labelled point, and its label's place. leader: whether a line leads from the one to the other."""

    key: str
    x: float
    y: float
    texts: tuple[tuple[str, float], ...]
    text_x: float
    anchor: str
    leader: tuple[float, float] | None


class Decision(NamedTuple):
    """Data of the template. meets, misses, stairs: SVG paths. bound: y of 100 %, bound_text: its label.

    beyond: number of trials that are not drawn.
    """

    size: Size
    meets: str
    misses: str
    stairs: str
    bound: float
    bound_text: str
    marks: tuple[Mark, ...]
    across: tuple[Tick, ...]
    up: tuple[Tick, ...]
    beyond: int


class _Scale(NamedTuple):
    low: float
    high: float
    log: bool
    start: float
    end: float

    def __call__(self, value: float) -> float:
        low, high, at = (math.log(v) if self.log else v for v in (self.low, self.high, value))
        return round(self.start + (self.end - self.start) * (at - low) / (high - low), 1)


def use_of(trial: Trial) -> float:
    """The used share of the tightest latency bound; 1: exactly at the bound."""
    return 1.0 - trial.worst_margin


def decision(data: ReportInput, named: Sequence[Named], size: Size = WIDE) -> Decision | None:
    """The picture; None with fewer than two trials to draw, or without a latency bound."""
    trials = [trial for trial in data.trials if trial.comparable and _drawable(trial)]
    named = [entry for entry in named if _drawable(entry.trial)]
    if len(trials) < 2 or not named:
        return None
    most = max(_MOST_USE, *(1.1 * use_of(entry.trial) for entry in named))
    shown = [trial for trial in trials if use_of(trial) <= most]
    uses = [*map(use_of, shown), 1.0]
    prices = [trial.metrics["usd_per_hour"] for trial in shown]
    x = _Scale(
        *_padded(min(prices), max(prices), max(prices) / min(prices) > _LOG_RATIO), size.left, size.width - size.right
    )
    y = _Scale(*_padded(min(uses), max(uses), True), size.height - size.bottom, size.top)
    points = {trial.number: (x(trial.metrics["usd_per_hour"]), y(use_of(trial))) for trial in shown}
    bound_text = "SLO bound" if size.width < 500 else "SLO missed above this line"
    ticks = _ticks(x, 5 if size.width < 500 else 9)
    return Decision(
        size,
        _dots(points[trial.number] for trial in shown if trial.feasible),
        _crosses(points[trial.number] for trial in shown if not trial.feasible),
        _stairs(shown, x, y),
        y(1.0),
        bound_text,
        _marks(named, points, size, _text_box(bound_text, y(1.0), size)),
        tuple(Tick(x(value), f"${value:,.6g}") for value in ticks),
        tuple(Tick(y(value), f"{100 * value:,.6g}") for value in _ticks(y, 7)),
        len(trials) - len(shown),
    )


def _drawable(trial: Trial) -> bool:
    price = trial.metrics.get("usd_per_hour", math.nan)
    return math.isfinite(price) and price > 0 and math.isfinite(trial.worst_margin) and use_of(trial) > 0


def _padded(low: float, high: float, log: bool) -> tuple[float, float, bool]:
    if log:
        factor = max((high / low) ** 0.06, 1.03)
        return low / factor, high * factor, True
    pad = 0.07 * (high - low) or 0.1 * high
    return max(low - pad, 0.0), high + pad, False


def _ticks(scale: _Scale, most: int) -> list[float]:
    """Round values within the scale, ``most`` at most."""
    if not scale.log:
        power = 10.0 ** math.floor(math.log10(scale.high - scale.low))
        for step in (power * factor for factor in (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)):
            first, last = math.ceil(scale.low / step), math.floor(scale.high / step)
            if last - first < most:
                return [i * step for i in range(first, last + 1)]
    powers = range(math.floor(math.log10(scale.low)), math.ceil(math.log10(scale.high)) + 1)
    for digits in ((1, 1.5, 2, 3, 4, 5, 7), (1, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,)):
        values = [digit * 10.0**power for power in powers for digit in digits]
        inside = [value for value in values if scale.low <= value <= scale.high]
        if len(inside) <= most:
            return inside
    return []


def _dots(points: Iterable[_Point]) -> str:
    """Points as a path of zero length each, which round line ends make dots of."""
    return "".join(f"M{px:g} {py:g}h0" for px, py in points)


def _crosses(points: Iterable[_Point]) -> str:
    arm = 2.6
    return "".join(
        f"M{px - arm:.1f} {py - arm:.1f}l{2 * arm} {2 * arm}m0 {-2 * arm}l{-2 * arm} {2 * arm}" for px, py in points
    )


def _stairs(trials: Sequence[Trial], x: _Scale, y: _Scale) -> str:
    """The least use at each price or below, as a line of steps."""
    path, least = "", math.inf
    for price, group in itertools.groupby(sorted(trials, key=_price), key=_price):
        use = min(map(use_of, group))
        if use < least:
            path += f"H{x(price):g}V{y(use):g}" if path else f"M{x(price):g} {y(use):g}"
            least = use
    return f"{path}H{x.end:g}"


def _price(trial: Trial) -> float:
    return trial.metrics["usd_per_hour"]


#: Places of a label around its mark, the best first: shift to the right and down, and the text's anchor.
_PLACES = tuple(
    (dx * far, dy * far + 4.0, anchor)
    for far in (1.0, 2.0, 3.2, 4.6, 6.2)
    for dx, dy, anchor in (
        (14.0, 14.0, "start"), (14.0, -22.0, "start"), (-14.0, 14.0, "end"), (-14.0, -22.0, "end"),
        (0.0, 24.0, "middle"), (0.0, -32.0, "middle"), (18.0, -4.0, "start"), (-18.0, -4.0, "end"),
    )
)  # fmt: skip


def _text_box(text: str, y: float, size: Size) -> _Box:
    right = size.width - size.right
    return right - _CHARACTER * len(text) - 6, y - 20, right, y


def together(named: Sequence[Named], points: Mapping[int, _Point]) -> list[Named]:
    """One entry for all whose marks coincide: the first one's, with the names of all in its first line.

    ``Recommended = surer`` is one trial, ``Recommended ≈ cheaper`` are two.

    named: most important first. points: place of each trial's mark, by its number.
    """
    kept: list[Named] = []
    for entry in named:
        at = points[entry.trial.number]
        place = next((i for i, mark in enumerate(kept) if math.dist(points[mark.trial.number], at) < _COINCIDE), None)
        if place is None:
            kept.append(entry)
            continue
        (first, *others), name = kept[place].texts, entry.texts[0].lower()
        same = kept[place].trial.number == entry.trial.number
        kept[place] = kept[place]._replace(texts=(f"{first} {'=' if same else '≈'} {name}", *others))
    return kept


def _marks(named: Sequence[Named], points: Mapping[int, _Point], size: Size, bound_text: _Box) -> tuple[Mark, ...]:
    named, taken = together(named, points), [bound_text]
    for entry in named:
        px, py = points[entry.trial.number]
        taken.append((px - 9, py - 9, px + 9, py + 9))
    marks = []
    for entry in named:
        px, py = points[entry.trial.number]
        boxes = [(_box(entry, px + dx, py + dy, anchor), dx, dy, anchor) for dx, dy, anchor in _PLACES]
        costs = [
            (_cost(box, taken, points.values(), size) + 0.02 * (abs(dx) + abs(dy)), i)
            for i, (box, dx, dy, _) in enumerate(boxes)
        ]
        box, dx, dy, anchor = boxes[min(costs)[1]]
        taken.append(box)
        texts = tuple((text, round(py + dy + _LINE * i, 1)) for i, text in enumerate(entry.texts))
        far = abs(dx) + abs(dy) > 55.0
        end = (min(max(px, box[0]), box[2]), min(max(py, box[1]), box[3]))
        marks.append(Mark(entry.key, px, py, texts, round(px + dx, 1), anchor, end if far else None))
    return tuple(marks)


def _box(entry: Named, x: float, y: float, anchor: str) -> _Box:
    width = _CHARACTER * max(map(len, entry.texts))
    left = {"start": x, "middle": x - width / 2, "end": x - width}[anchor]
    return left - 2, y - 12, left + width + 2, y - 12 + _LINE * len(entry.texts) + 3


def _cost(box: _Box, taken: Sequence[_Box], points: Iterable[_Point], size: Size) -> float:
    left, top, right, bottom = box
    cost = 0.0
    outside = max(size.left - left, 0) + max(right - size.width + 2, 0)
    outside += max(2 - top, 0) + max(bottom - size.height + size.bottom, 0)
    cost += 1000.0 * outside
    for other in taken:
        wide = min(right, other[2]) - max(left, other[0])
        high = min(bottom, other[3]) - max(top, other[1])
        if wide > 0 and high > 0:
            cost += 500.0 + wide * high
    return cost + sum(left < px < right and top < py < bottom for px, py in points)
