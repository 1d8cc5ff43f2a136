"""The proof's tables and figure for docs/notes/2026-11-search-proof.md."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.proof.curves import OURS, SHARE, Curves, Proof
from hisearch.api.bench import machine
from hisearch.api.run_folder import write_text

#: A study's tables lie between a line with its name and this one.
END = "<!-- end -->"

_COLOURS = (OURS, "#d62728"), ("NSGA-II", "#1f77b4"), ("TPE", "#2ca02c"), ("QMC", "#9467bd"), ("random", "#7f7f7f")
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 900, 420, 70, 110, 20, 50
#: Lowest share in the plot.
_FLOOR = 0.6


def as_text(proof: Proof) -> str:
    """Markdown: the space, and a row for every method."""
    budget = proof.budget
    best = _best_flat(proof)
    lines = [
        f"{proof.deployments:,} deployments, {proof.feasible:,} of them within the SLO, {proof.scale.front_points} on "
        f"the exhaustive front of {', '.join(proof.scale.objectives)}. Share of its hypervolume, median "
        f"over {len(proof.ours.values)} seeds (smallest to largest); slices and other loads count as simulations.",
        "",
        f"| method | after 100 | after {budget} | after {best.values.shape[1]:,} | "
        f"simulations to {SHARE:.1%}, median curve (by seed) |",
        "| --- | --- | --- | --- | --- |",
        *(_row(curves, budget, best.values.shape[1]) for curves in (proof.ours, *proof.ablations, *proof.flat)),
        "",
        _verdict(proof, best),
    ]
    return "\n".join(lines)


def _row(curves: Curves, budget: int, longest: int) -> str:
    length = curves.values.shape[1]
    cells = [_share(curves.at(n)) if n <= length else "" for n in (100, budget, longest)]
    by_seed = ", ".join("not" if n is None else f"{n:,}" for n in curves.reached())
    median = curves.median_to()
    reached = "not reached" if median is None else f"{median:,}"
    return f"| {curves.name} | {' | '.join(cells)} | {reached} ({by_seed}) |"


def _share(values: tuple[float, float, float]) -> str:
    median, low, high = values
    return f"{median:.2%} ({low:.2%} to {high:.2%})"


def _best_flat(proof: Proof) -> Curves:
    """The flat method that reaches the goal first, else the one with the highest final share."""
    return min(proof.flat, key=lambda c: (c.median_to() or np.inf, -c.at(c.values.shape[1])[0]))


def _verdict(proof: Proof, best: Curves) -> str:
    """State in one sentence whether the goal is met."""
    mine, theirs = proof.ours.median_to(), best.median_to()
    goal = f"Goal: {SHARE:.1%} within {proof.budget} simulations, where the best flat method needs three times as many"
    if mine is None:
        return f"{goal}. Missed: the median of the seeds ends at {proof.ours.at(proof.budget)[0]:.2%}."
    if theirs is None:
        return f"{goal}. Met: {mine:,} simulations; no flat method is there after {best.values.shape[1]:,}."
    verdict = "Met" if mine <= proof.budget and theirs >= 3 * mine else "Missed"
    return f"{goal}. {verdict}: {mine:,} simulations; {best.name} needs {theirs:,}, {theirs / mine:.1f} times as many."


def figure(proof: Proof) -> str:
    """An SVG of the median curves with bands from the worst to the best seed; simulations on a logarithmic scale."""
    curves = {c.name: c for c in (proof.ours, *proof.flat)}
    most = max(c.values.shape[1] for c in curves.values())
    parts = list(_axes(most))
    for name, colour in _COLOURS:
        if name in curves:
            parts += _band(curves[name], colour, most)
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        'font-family="Arial" font-size="13">\n'
        f'<rect width="100%" height="100%" fill="white"/>\n{body}\n</svg>\n'
    )


def _x(simulations: float, most: int) -> float:
    share = np.log(simulations / 10) / np.log(most / 10)
    return float(_LEFT + (_WIDTH - _LEFT - _RIGHT) * share)


def _y(value: float) -> float:
    share = (max(value, _FLOOR) - _FLOOR) / (1 - _FLOOR)
    return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * share


def _axes(most: int) -> Iterator[str]:
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    for value in (0.6, 0.7, 0.8, 0.9, 1.0):
        yield f'<path d="M{_LEFT} {_y(value):.1f}H{right}" stroke="#ddd"/>'
        yield f'<text x="{_LEFT - 8}" y="{_y(value) + 4:.1f}" text-anchor="end">{value:.0%}</text>'
    for count in (10, 30, 100, 300, 1000):
        if count <= most:
            yield f'<path d="M{_x(count, most):.1f} {_TOP}V{bottom}" stroke="#eee"/>'
            yield f'<text x="{_x(count, most):.1f}" y="{bottom + 18}" text-anchor="middle">{count:,}</text>'
    yield f'<path d="M{_LEFT} {_y(SHARE):.1f}H{right}" stroke="#333" stroke-dasharray="4 3"/>'
    yield f'<text x="{_LEFT + 6}" y="{_y(SHARE) + 16:.1f}" fill="#333">{SHARE:.1%}</text>'
    yield f'<text x="{(_LEFT + right) / 2}" y="{_HEIGHT - 10}" text-anchor="middle">simulations</text>'


def _band(curves: Curves, colour: str, most: int) -> list[str]:
    length = curves.values.shape[1]
    at = np.unique(np.geomspace(10, length, 200).astype(int))
    low, median, high = (np.quantile(curves.values[:, at - 1], q, axis=0) for q in (0.0, 0.5, 1.0))
    upper = " ".join(f"{_x(n, most):.1f},{_y(v):.1f}" for n, v in zip(at, high, strict=True))
    lower = " ".join(f"{_x(n, most):.1f},{_y(v):.1f}" for n, v in reversed(list(zip(at, low, strict=True))))
    line = " ".join(f"{_x(n, most):.1f},{_y(v):.1f}" for n, v in zip(at, median, strict=True))
    dark = np.clip(median[-1], _FLOOR, 1.0)
    return [
        f'<polygon points="{upper} {lower}" fill="{colour}" opacity="0.15"/>',
        f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>',
        f'<text x="{_x(length, most) + 5:.1f}" y="{_y(dark) + (16 if curves.name == OURS else 4):.1f}" fill="{colour}">'
        f"{curves.name}</text>",
    ]


def write_docs(proof: Proof, docs: Path) -> None:
    """Update the study's figure, and the text between its markers in the note.

    Raises:
        ValueError: the page has no markers.
    """
    page = docs / "notes" / "2026-11-search-proof.md"
    text = page.read_text(encoding="utf-8")
    begin = f"<!-- measured: {proof.study} -->"
    if begin not in text:
        raise ValueError(f"{page}: no line '{begin}'")
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(END)
    facts = machine()
    where = f"Measured on {facts['cores']} cores of {facts['cpu']}."
    (docs / "images").mkdir(exist_ok=True)
    write_text(docs / "images" / f"{proof.study}.svg", figure(proof))
    write_text(page, f"{before}{begin}\n{where} {as_text(proof)}\n{END}{after}")
