"""How many tokens a verification step yields with drafted tokens: measured curves of a model, by drafting method."""

from __future__ import annotations

import datetime
from itertools import pairwise
from typing import Annotated, Literal, get_args

from pydantic import Field, model_validator

from hisearch.specs.base import Strict
from hisearch.specs.errors import KeyedError

#: Ways of drafting that are simulated, by vLLM's names (``method`` of its ``--speculative-config``).
DraftMethodName = Literal["mtp", "eagle", "eagle3", "ngram"]

DRAFT_METHODS: tuple[DraftMethodName, ...] = get_args(DraftMethodName)


class AcceptanceCurveSpec(Strict):
    """Mean tokens of a verification step by draft length: the accepted drafts, and the one that the model adds."""

    tokens_per_step: list[Annotated[float, Field(ge=1, allow_inf_nan=False)]] = Field(
        min_length=1, description="Mean tokens of a step with 1, 2, … drafted tokens."
    )
    workload: str = Field(
        min_length=1, description="Text on which it was measured; other text is accepted more or less often."
    )
    draft_weights: str | None = Field(
        None, description="Checkpoint of the head that was measured, which launch scripts name; none of mtp and ngram."
    )
    source: str = Field(min_length=1, description="Measurement or document that it was taken from.")
    as_of: datetime.date = Field(description="Day on which it was looked up.")

    @model_validator(mode="after")
    def _check(self) -> AcceptanceCurveSpec:
        for drafted, mean in enumerate(self.tokens_per_step, 1):
            if mean > drafted + 1:
                message = f"{mean:g} exceeds {drafted + 1}: {drafted} drafted tokens yield no more in a step"
                raise KeyedError(("tokens_per_step", drafted - 1), message)
        return self

    @property
    def accepted_by_position(self) -> tuple[float, ...]:
        """For each draft length k, the probability that all of the first k drafted tokens are accepted.

        It is the mean with k drafts less that with k - 1, where one head drafts at all lengths alike. Where a measured
        curve rises by more than at the position before, or falls, the probability is that before, or 0.
        """
        accepted: list[float] = []
        for before, mean in pairwise([1.0, *self.tokens_per_step]):
            accepted.append(min(max(mean - before, 0.0), accepted[-1] if accepted else 1.0))
        return tuple(accepted)
