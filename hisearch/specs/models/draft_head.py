"""A head that drafts tokens, as a model of its own."""

from __future__ import annotations

from pydantic import Field

from hisearch.specs.base import Count
from hisearch.specs.models.model import ModelSpec


class DraftHeadSpec(ModelSpec):
    """A model that a projection precedes: of ``joined`` vectors of the hidden size to one, whole on every rank.

    The vectors are the token's embedding and one or more hidden states of the model for which it drafts (vLLM,
    ``eh_proj`` of ``deepseek_mtp.py``, ``fc`` of ``llama_eagle.py`` and ``llama_eagle3.py``).
    """

    joined: Count = Field(2, description="Vectors that the projection takes.")
