"""Encoders of images, video and sound beside a language model."""

from __future__ import annotations

from pydantic import Field, NonNegativeInt

from hisearch.specs.base import Count, Strict


class TowersSpec(Strict):
    """Encoders whose output a model reads as tokens, with their projectors. They take memory; no request uses them."""

    parameters: Count = Field(description="Parameters of all of them, which engines keep in 16 bits.")
    item_tokens: NonNegativeInt = Field(
        0, description="Tokens of the largest image, whose encoding vLLM keeps while it measures memory; 0: unknown."
    )
    patches: NonNegativeInt = Field(0, description="Patches of that image, which pass through the encoder; 0: unknown.")
    width: NonNegativeInt = Field(0, description="Width of the encoder of images.")
    intermediate_size: NonNegativeInt = Field(0, description="FFN width of the encoder of images.")
