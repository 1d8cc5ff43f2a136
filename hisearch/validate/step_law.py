"""The latency law of a recording, read from its text.

A law is a sum of terms over the requests of a step's batch. Each request computes ``new`` tokens after ``computed``
ones::

    0.005 + 2e-5*sum(new) + 1e-9*sum(new*(computed+(new+1)/2))

The text is arithmetic, multiplied out and then compared. However it is written, it must be a constant, a term per new
token, and a term per ``new * (computed + (new + 1) / 2)``, the attention of a causal chunk. Terms may be absent. The
sign Σ stands for the sum of the product that follows it. Text after a comma is a remark.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

#: Longer texts are refused; this bounds the parser's input.
MAX_CHARACTERS = 1000

UNDERSTOOD = (
    "a sum of a constant, C*sum(new) and C*sum(new*(computed+(new+1)/2)), as in "
    "'0.005 + 2e-5*sum(new) + 1e-9*sum(new*(computed+(new+1)/2))'"
)

#: Coefficients by (sums over the batch around the term, power of computed, power of new).
_Terms = dict[tuple[int, int, int], float]

_VARIABLES: dict[str, _Terms] = {"computed": {(0, 1, 0): 1.0}, "new": {(0, 0, 1): 1.0}}
_CONSTANT, _PER_TOKEN, _PER_PAIR, _PER_SQUARE = (0, 0, 0), (1, 0, 1), (1, 1, 1), (1, 0, 2)


class StepLaw(NamedTuple):
    """``step_s + per_token_s * sum(new) + attention_s * sum(new * (computed + (new + 1) / 2))``, in seconds."""

    step_s: float
    per_token_s: float
    attention_s: float

    def seconds(self, batch: Iterable[tuple[int, int]]) -> float:
        """Latency of a step: ``batch`` has (new, computed) tokens of each request."""
        work = list(batch)
        attention = sum(new * (computed + (new + 1) / 2) for new, computed in work)
        return self.step_s + self.per_token_s * sum(new for new, _ in work) + self.attention_s * attention


def parse_step_law(text: str) -> StepLaw:
    """Read a law.

    Raises:
        ValueError: another form; names the supported one.
    """
    try:
        if len(text) > MAX_CHARACTERS:
            raise ValueError("too long")
        tree = ast.parse(_without_sigma(_without_remark(text)).strip(), mode="eval")
        law = _as_law(_terms(tree.body))
    except (SyntaxError, ValueError, RecursionError, ZeroDivisionError) as error:
        reason = f": {error}" if type(error) is ValueError else ""
        shown = text if len(text) <= 120 else text[:117] + "..."
        raise ValueError(f"cannot read the law '{shown}'{reason}; understood is {UNDERSTOOD}") from None
    return law


def _as_law(terms: _Terms) -> StepLaw:
    pair, square = terms.get(_PER_PAIR, 0.0), terms.get(_PER_SQUARE, 0.0)
    known = {_CONSTANT, _PER_TOKEN, _PER_PAIR, _PER_SQUARE}
    if not set(terms) <= known or not math.isclose(square, pair / 2, rel_tol=1e-12):
        raise ValueError("its sums are of another form, or new and computed are outside any sum")
    # An attention of a per pair includes a / 2 per new token.
    per_token = terms.get(_PER_TOKEN, 0.0) - pair / 2
    if abs(per_token) < 1e-12 * pair:
        per_token = 0.0
    law = StepLaw(terms.get(_CONSTANT, 0.0), per_token, pair)
    if not all(math.isfinite(coefficient) and coefficient >= 0 for coefficient in law):
        raise ValueError("a step cannot take negative or infinite time")
    return law


def _terms(node: ast.expr) -> _Terms:
    """An expression multiplied out: numbers, ``new``, ``computed``, sums over the batch, and arithmetic on them."""
    match node:
        case ast.Constant(value=bool() | complex()):
            raise ValueError("expected numbers")
        case ast.Constant(value=int() | float() as value):
            return {_CONSTANT: float(value)} if value else {}
        case ast.Name(id=name) if name in _VARIABLES:
            return _VARIABLES[name]
        case ast.Call(func=ast.Name(id="sum"), args=[inner], keywords=[]):
            return {(sums + 1, *powers): value for (sums, *powers), value in _terms(inner).items()}  # type: ignore[misc]
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as op, right=right):
            return _added(_terms(left), _terms(right), 1.0 if isinstance(op, ast.Add) else -1.0)
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            return _product(_terms(left), _terms(right))
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            divisor = _terms(right)
            if set(divisor) != {_CONSTANT}:
                raise ValueError("a division by other than a number")
            return {powers: value / divisor[_CONSTANT] for powers, value in _terms(left).items()}
        case ast.BinOp(left=left, op=ast.Pow(), right=ast.Constant(value=2)):
            square = _terms(left)
            return _product(square, square)
    raise ValueError(f"'{ast.unparse(node)}' is not made of sums, new, computed and numbers")


def _added(base: _Terms, addend: _Terms, factor: float) -> _Terms:
    total = dict(base)
    for powers, value in addend.items():
        total[powers] = total.get(powers, 0.0) + factor * value
    return {powers: value for powers, value in total.items() if value}


def _product(left: _Terms, right: _Terms) -> _Terms:
    if any(sums for sums, *_ in (*left, *right)) and set(left) - {_CONSTANT} and set(right) - {_CONSTANT}:
        raise ValueError("a product of sums")
    total: _Terms = {}
    for (s, i, j), value in left.items():
        total = _added(total, {(s + t, i + k, j + m): value * more for (t, k, m), more in right.items()}, 1.0)
    return total


def _without_remark(text: str) -> str:
    """The text up to the first comma outside parentheses."""
    return next((text[:at] for at, depth in _depths(text) if depth == 0 and text[at] == ","), text)


def _without_sigma(text: str) -> str:
    """Each ``Σ`` product as ``sum(product)``; the product ends at the next + or - outside parentheses."""
    before, sign, after = text.partition("Σ")
    if not sign:
        return text
    ends = (at for at, depth in _depths(after) if depth < 0 or (depth == 0 and after[at] in "+-"))
    end = next((at for at in ends if after[:at].strip()), len(after))
    return f"{before} sum({after[:end].strip()}) {_without_sigma(after[end:])}"


def _depths(text: str) -> Iterator[tuple[int, int]]:
    """Each position of the text with how many parentheses are open there."""
    depth = 0
    for at, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        yield at, depth
