"""Output of ``hisearch validate cache``."""

from __future__ import annotations

from collections.abc import Sequence

from hisearch.cli import output
from hisearch.specs.wording import format_percent
from hisearch.validate.cache import PolicyPoint
from hisearch.validate.cache_settings import CacheSettings

#: Text of each setting, and the source of its default.
_WORDS = {
    "tail_tokens": ("tlru: a prompt is fast enough with {:,} uncached tokens", ""),
    "turn_tokens": ("tlru: {:,} new tokens expected in a next prompt", "the mean of this trace's follow-ups"),
    "attention_tokens": (
        "gdsf: from a depth of {:,.10g} tokens attention costs a token more than all else",
        "Qwen3-32B on an H100 by the roofline, assumed",
    ),
    "ttl_s": ("ttl: a page expires {:g} s after its last use", ""),
    "reclaim": ("ttl: reclaim {}", "the default"),
    "reclaim_period_s": ("ttl: every {:g} s", ""),
}
#: Columns that are shown where a point has them.
_EXTRA = {"tail_requests": "tail requests", "expired_tokens": "expired tokens", "peak_tokens": "peak tokens"}


def show(points: Sequence[PolicyPoint], settings: CacheSettings, user_settings: CacheSettings) -> None:
    """A table of all points, under the settings that they were made with.

    Args:
        points: rows.
        settings: complete ones.
        user_settings: those that the user gave.
    """
    for key, value in settings.given().items():
        words, source = _WORDS[key]
        output.say(words.format(value) + ("" if key in user_settings.given() else f" ({source})"))
    extra = [key for key in _EXTRA if any(getattr(point, key) is not None for point in points)]
    rows = [
        {
            "capacity (tokens)": f"{point.capacity_tokens:,}",
            "policy": point.policy + (" (oracle)" if point.oracle else ""),
            "hit rate": format_percent(point.hit_rate, 2),
            "hit tokens": f"{point.hit_tokens:,}",
            **{_EXTRA[key]: "" if (value := getattr(point, key)) is None else f"{value:,}" for key in extra},
        }
        for point in points
    ]
    output.records(rows, text=("policy",))
