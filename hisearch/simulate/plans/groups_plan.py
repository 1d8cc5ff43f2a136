"""How a worker keeps KV beside full attention's: vLLM's groups of blocks, SGLang's pools for windows and states."""

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


@dataclass(frozen=True)
class WindowsPlan:
    """SGLang's pool of its own for the layers with a sliding window.

    window_tokens: that such a layer sees besides the newest. capacity_tokens: of the pool, in full pages.
    """

    window_tokens: int
    capacity_tokens: int


@dataclass(frozen=True)
class StatesPlan:
    """SGLang's pool of states of linear attention.

    capacity: of the pool, in states. slots: states of a request besides its own, between which it keeps those for the
    tree; 0: none. grid_tokens: prompts leave states for the tree behind multiples of so many tokens. interval_tokens:
    decodes at multiples of so many.
    """

    capacity: int
    slots: int
    grid_tokens: int
    interval_tokens: int
