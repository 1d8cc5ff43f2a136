"""Terms of a deployment's model that may be wrong, and how each is searched."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from hisearch.verify.prediction import POOL, Correction, Predictor


class Term(NamedTuple):
    """A term of the model: its field in ``Correction``, its meaning, and how it is searched.

    low, high: of the search's variable, 0 where nothing is corrected. value: variable -> the field's value.
    """

    name: str
    meaning: str
    low: float
    high: float
    value: Callable[[float], float]


#: Factors are searched from 1/8 to 8.
OCTAVES = 3.0


def _factor(octaves: float) -> float:
    return float(2.0**octaves)


TERMS = (
    Term("host", "host time per step", -OCTAVES, OCTAVES, _factor),
    Term("prefill", "prefill rate", -OCTAVES, OCTAVES, _factor),
    Term("decode", "decode rate", -OCTAVES, OCTAVES, _factor),
    # The square root spreads milliseconds and seconds alike.
    Term("front_end_s", "queueing before the scheduler", 0.0, OCTAVES, lambda x: x * x),
    Term("hits_lost", "cache hits", 0.0, 1.0, lambda x: x),
)

#: Instead of lost hits, for requests that nobody says to share anything. Its variable weighs as much as a factor's, so
#: that the profile is corrected where both explain as well.
SHARED = Term("shared", "prompts that begin alike", 0.0, OCTAVES, lambda x: x / OCTAVES)
#: With prefill/decode disaggregation.
HAND_OVER = Term("hand_over", "KV transfer", -OCTAVES, OCTAVES, _factor)
_OF_ALL = {term.name: term for term in (*TERMS, SHARED, HAND_OVER)}

Variables = dict[str, float]


def pool_term(name: str) -> Term:
    """Step times of one of several unequal pools."""
    return Term(f"{POOL}{name}", f"step times of pool {name}", -OCTAVES, OCTAVES, _factor)


def terms_of(predict: Predictor) -> tuple[Term, ...]:
    """Terms of a deployment that may be wrong."""
    hand_over = (HAND_OVER,) if predict.transfers_kv else ()
    hits = () if predict.shares_prompts else (SHARED,)
    terms = tuple(term for term in TERMS if predict.shares_prompts or term.name != "hits_lost")
    return (*terms, *hits, *hand_over, *(pool_term(name) for name in predict.unequal_pools))


def correction_of(variables: Variables) -> Correction:
    """The correction at a point of the search."""
    fields = {name: _OF_ALL[name].value(x) for name, x in variables.items() if name in _OF_ALL}
    pools = tuple((name.removeprefix(POOL), _factor(x)) for name, x in variables.items() if name.startswith(POOL))
    return replace(Correction(), **fields, pools=pools)
