"""Classes of a question's traffic, each written as a phrase: ``batch: 20%; priority 1; input 8000; output 300``.

Grammar
    phrase  name ``:`` part, then any number of ``;`` and a further part, each once
    part    a share of the requests such as ``20%``, or ``rate 2``: requests per second beside those of shares
            ``priority 1``; ``tenants 0,1``: numbers in the trace, priority 0 and tenant 0 where absent
            ``input``, ``output``: tokens, as ``workloads.length_phrase`` reads them; ``turns 4``
            ``burst 2``: with a rate, coefficient of variation of the gaps between arrivals
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hisearch.specs.errors import SpecError
from hisearch.specs.wording import unknown


@dataclass(frozen=True)
class TrafficClass:
    """A class of requests. What it leaves None is as of the question.

    share: of the requests at the question's rate, or of those that its users make; or rate: requests per second of its
    own, with ``burst``. priority, tenants: numbers of the trace; requests are dealt to the tenants evenly.
    """

    name: str
    share: float | None = None
    rate: float | None = None
    priority: int = 0
    tenants: tuple[int, ...] = (0,)
    input: str | None = None
    output: str | None = None
    turns: int | None = None
    burst: float | None = None


def parse_class(phrase: str) -> TrafficClass:
    """The class that a phrase states; the module has the grammar.

    Raises:
        SpecError: it reads otherwise; ``key`` is ``classes``.
    """
    name, colon, rest = phrase.partition(":")
    parts = [part.strip() for part in rest.split(";") if part.strip()]
    if not colon or not name.strip() or not parts:
        raise SpecError.at(f"expected NAME: SHARE, such as 'batch: 20%; priority 1', got '{phrase}'", key="classes")
    stated: dict[str, Any] = {}
    for part in parts:
        word, _, value = part.partition(" ")
        key = "share" if part.endswith("%") and word.rstrip("%").replace(".", "").isdigit() else word.lower()
        key = "tenants" if key == "tenant" else key
        if key not in _READ:
            message = f"{name.strip()}: expected a share such as 20%, or {', '.join(_READ)}; got '{part}'"
            raise SpecError.at(f"{message}{unknown(word, list(_READ))}", key="classes")
        if key in stated:
            raise SpecError.at(f"{name.strip()}: {key} is given twice", key="classes")
        try:
            stated[key] = _READ[key]((part if key == "share" else value).strip())
        except ValueError:
            raise SpecError.at(f"{name.strip()}: expected {_EXPECTED[key]}, got '{part}'", key="classes") from None
    return TrafficClass(name.strip(), **stated)


def _share(text: str) -> float:
    share = float(text.removesuffix("%")) / 100.0
    if not 0.0 < share <= 1.0:
        raise ValueError
    return float(f"{share:.15g}")


def _rate(text: str) -> float:
    rate = float(text)
    if not rate > 0.0:
        raise ValueError
    return rate


def _number(text: str) -> int:
    if not text.isdigit():
        raise ValueError
    return int(text)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(_number(part.strip()) for part in text.split(","))


def _tokens(text: str) -> str:
    if not text:
        raise ValueError
    return text


_READ: dict[str, Callable[[str], Any]] = {
    "share": _share, "rate": _rate, "priority": _number, "tenants": _numbers, "input": _tokens, "output": _tokens,
    "turns": _number, "burst": _rate,
}  # fmt: skip
_EXPECTED = {
    "share": "a share above 0 and up to 100%", "rate": "requests per second such as 'rate 2'",
    "priority": "a whole number such as 'priority 1'", "tenants": "whole numbers such as 'tenants 0,1'",
    "input": "tokens such as 'input 2000'", "output": "tokens such as 'output 300'",
    "turns": "a whole number such as 'turns 4'", "burst": "a coefficient of variation such as 'burst 2'",
}  # fmt: skip
