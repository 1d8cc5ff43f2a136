"""How many turns the conversations of a question have, and how long their prompts are, within a model's window."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from hisearch.specs.documents.question import Question
from hisearch.specs.wording import format_percent
from hisearch.specs.workloads.distributions import LengthSpec

#: Turns that are drawn, in at least so many conversations: their mean number of turns is known to a few per mille, for
#: the longest ones to 3 %.
_DRAWN, _LEAST_CONVERSATIONS = 200_000, 1000


@dataclass(frozen=True)
class Turns:
    """Of a question's conversations.

    mean: turns of each. prompt_tokens: of a request, with all that came before, on average. cut: share of
    conversations that end because the next turn would not fit into the window.
    """

    mean: float
    prompt_tokens: float
    cut: float

    @classmethod
    def of(cls, question: Question, window: int) -> Turns:
        """Draw conversations as a trace's generator does, within a window of so many tokens; thinking is dropped."""
        rng = np.random.default_rng(0)
        conversations = max(_DRAWN // question.turns, _LEAST_CONVERSATIONS)
        shape = (conversations, question.turns)
        new, output = (_drawn(lengths, shape, rng) for lengths in (question.input_lengths, question.output_lengths))
        thinking = np.zeros(shape)
        if question.thinking_lengths is not None:
            thinking = _drawn(question.thinking_lengths, shape, rng)
        free = window - question.shared
        made = np.minimum(output[:, 0] + thinking[:, 0], free - 1)
        thinking[:, 0] = np.minimum(thinking[:, 0], made - 1)
        output[:, 0] = made - thinking[:, 0]
        new[:, 0] = np.minimum(new[:, 0], free - made)
        context = question.shared + np.cumsum(new + output, axis=1)
        kept = np.minimum.accumulate(context + thinking <= window, axis=1)
        return cls(
            float(kept.sum() / conversations), float((context - output)[kept].mean()), float(1.0 - kept[:, -1].mean())
        )

    def describe(self) -> str:
        """``18,207 tokens on average, with what came before``."""
        text = f"{self.prompt_tokens:,.0f} tokens on average, with what came before"
        if self.cut < 0.005:
            return text
        return f"{text}; {format_percent(self.cut)} of conversations end early, at the model's window"


def _drawn(lengths: LengthSpec, shape: tuple[int, int], rng: np.random.Generator) -> np.ndarray:
    """Token counts of the laws that a question may have, lognormal or constant."""
    if lengths.distribution == "constant":
        values = np.full(shape, lengths.scale_tokens or 0.0)
    else:
        values = np.exp(rng.normal(lengths.mean_log or 0.0, lengths.sigma_log or 0.0, shape))
    most = math.inf if lengths.max_tokens is None else lengths.max_tokens
    return np.asarray(np.clip(np.rint(values), lengths.min_tokens, most))
