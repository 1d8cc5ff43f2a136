"""The corrected terms of a diagnosis as sentences."""

from __future__ import annotations

from hisearch.specs.wording import format_percent
from hisearch.verify.correction_search import EXPLAINED
from hisearch.verify.diagnosis import Diagnosis
from hisearch.verify.prediction import POOL, Correction
from hisearch.verify.ranges import TANGLED

#: Terms that are shares.
SHARES = frozenset({"hits_lost", "shared"})
#: Widest range for which a value counts as determined: a share of it (or of prompts), or seconds.
_NARROW_SHARE = 0.1
_NARROW_S = 0.005


def format_finding(name: str, diagnosis: Diagnosis) -> str:
    """A corrected term and how precisely it is known."""
    return f"{_format_value(name, diagnosis.correction)}{_format_uncertainty(name, diagnosis)}"


def unexplained(diagnosis: Diagnosis, stated_error: float) -> str | None:
    """What the corrections leave of a difference that is worth one; None where that is little.

    Args:
        diagnosis: of the measurements.
        stated_error: of the profile; a difference within it needs no explanation.
    """
    enough = max(stated_error, EXPLAINED)
    if diagnosis.error_after <= enough:
        return None
    left = format_percent(diagnosis.error_after)
    if diagnosis.terms:
        return f"The corrected terms leave a difference of {left}, so that something else is off too: {_ELSEWHERE}"
    best = min(diagnosis.alone, key=lambda term: term.error)
    return (
        f"No single term of the model explains the difference of {left}: the best by itself, {best.meaning}, leaves "
        f"{format_percent(best.error)}. Several things differ, or something that is no such term: {_ELSEWHERE}"
    )


def _format_value(name: str, correction: Correction) -> str:
    if name.startswith(POOL):
        pool = name.removeprefix(POOL)
        return _format_factor(f"Steps of pool {pool} take", correction.value(name))
    return _FINDINGS[name](correction)


def _format_uncertainty(name: str, diagnosis: Diagnosis) -> str:
    """The range of values that explain the requests equally well; "" where it is narrow."""
    low, high = diagnosis.ranges.get(name, (0.0, 0.0))
    if is_narrow(name, low, high):
        return ""
    ends = _format_ends(name, low, high)
    text = f". These requests do not tell the value: anything between {ends} explains them as well"
    stand_ins = [term for term in TANGLED if term != name and name in TANGLED and term in diagnosis.ranges]
    for term in stand_ins:
        low, high = diagnosis.ranges[term]
        if not is_narrow(term, low, high):
            text += f", with {_TANGLED_TEXT[term]} between {_format_ends(term, low, high)}"
    return f"{text}; measure at a lower load to tell"


def is_narrow(name: str, low: float, high: float) -> bool:
    """Whether a range is narrow enough for its best value to stand alone."""
    if name in SHARES:
        return high - low <= _NARROW_SHARE
    if name == "front_end_s":
        return high - low <= max(_NARROW_SHARE * high, _NARROW_S)
    return high <= (1.0 + _NARROW_SHARE) * low


def _format_ends(name: str, low: float, high: float) -> str:
    if name in SHARES:
        return f"{format_percent(low)} and {format_percent(high)}"
    if name == "front_end_s":
        return f"{1e3 * low:.3g} and {1e3 * high:.3g} ms"
    return f"{low:.3g} and {high:.3g} times"


_ELSEWHERE = (
    "settings of the server other than the deployment states (overlap, chunk size, batch limits, caching), another "
    "model, format or device, or a client that is itself the limit"
)
_TANGLED_TEXT = {"prefill": "prefill", "hits_lost": "prompts that lose their hits", "shared": "a common beginning"}


def _format_factor(what: str, factor: float) -> str:
    return f"{what} {factor:.3g} times what the profile says"


_FINDINGS = {
    "host": lambda c: _format_factor("Host work of a step (scheduling, input preparation) takes", c.host),
    "prefill": lambda c: _format_factor("Prefill (what grows with a step's tokens) takes", c.prefill),
    "decode": lambda c: _format_factor("Decode (reading weights and KV) takes", c.decode),
    "front_end_s": lambda c: (
        f"Requests wait {1e3 * c.front_end_s:.3g} ms that the simulator does not know, before the scheduler or on the "
        "way back: front end, network, a queue in the client or router"
    ),
    "hits_lost": lambda c: (
        f"{format_percent(c.hits_lost)} of the prompts find nothing in the prefix cache though they should: "
        "caching is off, the cache was flushed, the router scatters sessions, or the prompts sent do not share what "
        "the workload shares"
    ),
    "shared": lambda c: (
        f"Prompts begin alike, with {format_percent(c.shared)} of the mean prompt's tokens, which the prefix cache "
        "has; here they are taken to share nothing: name what was sent with --trace"
    ),
    "hand_over": lambda c: (
        f"KV takes {c.hand_over:.3g} times what the fabric's sheet says from prefill to decode workers"
    ),
}
