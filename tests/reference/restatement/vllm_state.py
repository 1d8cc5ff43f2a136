"""A vLLM worker's state of a request and of a batch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.reference.restatement.recording import Request, Step


@dataclass(eq=False)
class LiveRequest:
    """An unfinished request of the engine.

    Attributes:
        blocks: held blocks, first to last; the first ``hashed`` of them are findable through this request.
        scheduled_step: number of the newest step that it was put into; 0: none.
        rank: see ``VllmConfig.rank``. decodes: it has made a token since it was admitted.
    """

    request: Request
    generated: int = 0
    computed: int = 0
    in_flight: int = 0
    blocks: list[int] = field(default_factory=list)
    hashed: int = 0
    preemptions: int = 0
    scheduled_step: int = 0
    rank: float = 0.0
    decodes: bool = False

    @property
    def known(self) -> int:
        """Prompt and generated tokens."""
        return self.request.input_tokens + self.generated

    @property
    def waits_for_last_token(self) -> bool:
        """Whether its last output token is known to be in flight: nothing is left to schedule."""
        return self.in_flight > 0 and self.generated + self.in_flight >= self.request.max_output_tokens

    @property
    def urgency(self) -> tuple[float, float, Any]:
        """Order of the waiting queue under the priority policy."""
        return (self.rank, self.request.arrival_s, self.request.id)


@dataclass
class Outstanding:
    """A batch on (or queued for) the device and the requests it makes a token for, in batch order."""

    step: Step
    live: list[LiveRequest]
    sampled: list[LiveRequest]
