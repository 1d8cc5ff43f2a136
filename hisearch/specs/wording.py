"""Small phrases shared by messages, views and reports."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The closest known word; None where none is near."""
    lowered = {name.lower(): name for name in known}
    match = difflib.get_close_matches(word.lower(), lowered, n=1, cutoff=0.6)
    return lowered[match[0]] if match else None


def closest(word: str, known: Iterable[str]) -> str:
    """``"; did you mean 'x'?"`` for what begins with the word, else for the closest; ``""`` where none is near."""
    names = list(known)
    begun = sorted(name for name in names if word and name.lower().startswith(f"{word.lower()}-"))
    near = nearest(word, names)
    suggestions = begun[:3] or ([near] if near is not None else [])
    return f"; did you mean {' or '.join(repr(name) for name in suggestions)}?" if suggestions else ""


def unknown(word: str, known: Iterable[str]) -> str:
    """The tail of a message on an unknown word: the closest match and all that are known."""
    names = list(known)
    hint = closest(word, names)
    return f"{hint or ';'} known: {', '.join(names) or 'none'}"


def described(value: object) -> str:
    """Describe a YAML value for people: ``text 'abc'``, ``3.5``, ``true``, ``nothing``, ``a list``, ``a section``."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f"text '{value if len(value) <= 60 else value[:57] + '...'}'"
    if isinstance(value, (list, tuple)):
        return "a list"
    if isinstance(value, dict):
        return "a section"
    return repr(value)


def counted(count: int, noun: str, plural: str = "") -> str:
    """A number with its noun: ``1 simulation``, ``1,204 requests``; ``plural`` where it is not the noun with an s."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def per_second(rate: str) -> str:
    """A rate as text with its unit: ``1 request/s``, ``18.3 requests/s``."""
    return f"{rate} {'request' if rate == '1' else 'requests'}/s"


def leave_out(window_tokens: int) -> str:
    """How requests beyond a model's window are left out of a trace."""
    return f"`hisearch trace import --max-tokens {window_tokens}` leaves them out"


def listed(parts: Sequence[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    return " and ".join([", ".join(parts[:-1]), parts[-1]]) if len(parts) > 1 else "".join(parts)


def capitalised(text: str) -> str:
    """``text`` as the beginning of a sentence."""
    return text[:1].upper() + text[1:]


#: Probability of meeting the SLO that a recommendation has, if nothing else is required. Reports warn below it.
SURE = 0.9


def format_percent(fraction: float, decimals: int = 0, *, signed: bool = False) -> str:
    """A share for people: ``53 %``, ``6.6 %``, signed ``+10.2 %`` or ``−9.3 %``."""
    return f"{100.0 * fraction:{'+' if signed else ''},.{decimals}f} %".replace("-", "−")
