"""Transfers of KV between tiers: their times, and links that serve one after another."""

from __future__ import annotations

from collections.abc import Iterable

from hisearch.validate.hicache_settings import CopyLaw

__all__ = ["CopyLaw", "Link", "send_over"]


class Link:
    """A link in one direction; a transfer begins when the previous one has ended.

    Attributes:
        free_s: when all transfers have ended.
        tokens, busy_s: sent so far.
    """

    def __init__(self, law: CopyLaw) -> None:
        self.law = law
        self.free_s = 0.0
        self.tokens = 0
        self.busy_s = 0.0

    def send(self, ready_s: float, tokens: int) -> float:
        """Send ``tokens`` tokens' KV at ``ready_s``; returns when they have arrived."""
        seconds = self.law.seconds(tokens)
        self.free_s = max(ready_s, self.free_s) + seconds
        self.tokens += tokens
        self.busy_s += seconds
        return self.free_s


def send_over(links: Iterable[Link], ready_s: float, tokens: int) -> float:
    """Send over several links at once; returns when the last one has ended."""
    return max((link.send(ready_s, tokens) for link in links), default=ready_s)
