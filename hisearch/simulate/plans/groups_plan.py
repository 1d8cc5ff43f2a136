"""Groups of KV blocks that a worker of vLLM keeps for layers with and without a sliding window."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GroupsPlan:
    """Groups of layers; each has a block of its own for a page of tokens.

    full: groups of full attention. windowed: groups with a window of ``window_tokens`` tokens, at least 2.
    retention_tokens: see ``tests.reference.restatement.vllm_groups.GroupsConfig``; None: all blocks.
    """

    full: int
    windowed: int
    window_tokens: int
    retention_tokens: int | None = None

    @property
    def count(self) -> int:
        """All groups."""
        return self.full + self.windowed
