"""Groups of KV blocks that a worker of vLLM keeps for full attention, sliding windows and linear attention."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GroupsPlan:
    """Groups of layers; each has a block of its own for a page of tokens.

    full: groups of full attention. windowed: groups with a window of ``window_tokens`` tokens, at least 2.
    states: groups of linear attention's states, in place of windows.
    retention_tokens: see ``tests.reference.restatement.vllm_groups.GroupsConfig``; None: all blocks.
    checkpoints: see ``tests.reference.restatement.vllm_states.StatesConfig``.
    """

    full: int
    windowed: int
    window_tokens: int
    retention_tokens: int | None = None
    states: int = 0
    checkpoints: bool = False

    @property
    def count(self) -> int:
        """All groups."""
        return self.full + self.windowed + self.states
