"""Short phrases that people write instead of a document: their words, and errors that point into them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from hisearch.specs.errors import SpecError


@dataclass(frozen=True)
class Word:
    """A piece of a phrase. kind: the name of its pattern, or "end". at: its offset in the phrase."""

    kind: str
    text: str
    at: int


class PhraseError(SpecError):
    """A phrase that cannot be read; the message marks the place and says what was expected there."""


def phrase_error(phrase: str, word: Word, expected: str) -> PhraseError:
    """The error at a word: ``expected a bound such as 1s, got '<': ttft p95 < [<]``."""
    if word.kind == "end":
        got, marked = "the end", f"{phrase.rstrip()} [ ]"
    else:
        got = f"'{word.text}'"
        marked = f"{phrase[: word.at]}[{word.text}]{phrase[word.at + len(word.text) :]}"
    error = PhraseError.at(f"expected {expected}, got {got} at character {word.at + 1}: {' '.join(marked.split())}")
    assert isinstance(error, PhraseError)
    return error


class Phrase:
    """Reads a phrase word by word.

    Args:
        text: the phrase.
        pattern: alternatives with a named group each; what none of them matches is a word of kind "other".
    """

    def __init__(self, text: str, pattern: re.Pattern[str]) -> None:
        self.text = text
        self._words = list(_words(text, pattern))
        self._next = 0

    @property
    def word(self) -> Word:
        """The next word."""
        return self._words[self._next]

    def take(self) -> Word:
        """The next word, which is then behind."""
        word = self.word
        self._next += word.kind != "end"
        return word

    def take_if(self, *kinds: str) -> Word | None:
        """The next word if it is of one of the kinds, else None."""
        return self.take() if self.word.kind in kinds else None

    def expect(self, expected: str, *kinds: str) -> Word:
        """The next word, of one of the kinds.

        Raises:
            PhraseError: it is of another kind.
        """
        if self.word.kind not in kinds:
            raise self.error(expected)
        return self.take()

    def error(self, expected: str, word: Word | None = None) -> PhraseError:
        """The error at a word, the next one where None."""
        return phrase_error(self.text, word or self.word, expected)


def _words(text: str, pattern: re.Pattern[str]) -> Iterator[Word]:
    place = 0
    while place < len(text):
        if text[place].isspace():
            place += 1
            continue
        match = pattern.match(text, place)
        if match is None or not match.group():
            other = re.compile(r"\w+|.").match(text, place)
            assert other is not None
            yield Word("other", other.group(), place)
            place = other.end()
        else:
            yield Word(match.lastgroup or "other", match.group(), place)
            place = match.end()
    yield Word("end", "", len(text))
