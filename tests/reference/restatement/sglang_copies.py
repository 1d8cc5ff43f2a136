"""The clock of an SGLang worker and the streams that copy KV between device and host."""

from __future__ import annotations

from dataclasses import dataclass

from hisearch.validate.hicache_settings import CopyLaw
from tests.reference.restatement.sglang_tree import RadixNode
from tests.reference.restatement.transfers import Link


@dataclass
class Clock:
    """Time of the worker's scheduler; within a pass only waiting for a copy advances it."""

    now_s: float = 0.0


@dataclass(frozen=True, eq=False)
class Copy:
    """One copy on a stream.

    Attributes:
        tokens: copied tokens.
        end_s: when it is done.
        nodes: last nodes of the copied paths, each locked until the finished copy is processed.
    """

    tokens: int
    end_s: float
    nodes: tuple[RadixNode, ...]


class CopyStream:
    """Copies that run one after another, each starting no earlier than issued.

    Attributes:
        pending: issued copies that have not been processed, in order.
        last_end_s: when the last issued copy is done.
        beyond: a link that all its copies also pass, shared with other streams; None: none.
    """

    def __init__(self, law: CopyLaw, clock: Clock) -> None:
        self.law = law
        self.clock = clock
        self.free_s = 0.0
        self.last_end_s = 0.0
        self.beyond: Link | None = None
        self.pending: list[Copy] = []

    def issue(self, tokens: int, nodes: tuple[RadixNode, ...]) -> Copy:
        """Queue a copy now."""
        self.free_s = max(self.clock.now_s, self.free_s) + self.law.seconds(tokens)
        link_end_s = 0.0 if self.beyond is None else self.beyond.send(self.clock.now_s, tokens)
        self.last_end_s = max(self.free_s, link_end_s)
        copy = Copy(tokens, self.last_end_s, nodes)
        self.pending.append(copy)
        return copy

    def take_finished(self) -> list[Copy]:
        """Remove and return the copies done by now."""
        finished = [copy for copy in self.pending if copy.end_s <= self.clock.now_s]
        self.pending = self.pending[len(finished) :]
        return finished

    def next_end_s(self) -> float | None:
        """When the next unfinished copy is done."""
        return next((copy.end_s for copy in self.pending if copy.end_s > self.clock.now_s), None)
