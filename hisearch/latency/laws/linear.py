"""Prompts in linear attention: a chunked delta rule of one layer on one rank, gated or Kimi's, heads of 128 x 128.

    seconds = launch + longest * serial_token + tokens * value heads * head_token

Chunks of a sequence follow each other, sequences and heads run side by side: the longest sequence sets the serial part.
Steps of one token take another kernel, which reads and writes every sequence's state (``operators``).
"""

from __future__ import annotations

import numpy as np

from hisearch.base.dtypes import F8
from hisearch.specs.machines.laws import LawsSpec, LinearTerms


def linear_law(laws: LawsSpec, kind: str) -> LinearTerms | None:
    """The law of prompts in layers of ``kind`` (``LinearAttentionSpec.kind``); None where none is fitted."""
    known = {"gated_delta": laws.linear_attention, "kda": laws.kda}.get(kind, {})
    return known.get("bf16")


def serial_s(terms: LinearTerms, longest: F8) -> F8:
    """The serial part of a step with prompts: launches, and the longest prompt's chunks in turn."""
    return np.asarray(terms.launch_s + longest * terms.serial_token_s)


def parallel_s(terms: LinearTerms, value_heads: float, tokens: F8) -> F8:
    """The parallel part: all tokens of a step."""
    return np.asarray(tokens * (value_heads * terms.head_token_s))
