"""Sums over layers whose attention is of several kinds: all tokens, a window alone, compressed entries, or blocks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hisearch.base.dtypes import F8
from hisearch.latency.laws.entries import layer_launch_s
from hisearch.latency.matrices.entries import EntriesShape
from hisearch.latency.operators import AttentionShape
from hisearch.specs.machines.laws import EntriesTerms


def layers_of_window_alone(shape: AttentionShape) -> int:
    """Layers that read a window alone, in a model whose other layers read entries too."""
    return max(shape.window_layers - sum(kind.layers for kind in shape.entries), 0)


def kinds_s(shape: AttentionShape, full_s: Callable[[], F8], kind_s: Callable[[EntriesShape | None], F8]) -> F8:
    """Seconds of all layers. ``full_s``: of one that reads all tokens; ``kind_s``: of another, None for a window."""
    total = shape.full_layers * full_s() if shape.full_layers else np.zeros(1)
    if windowed := layers_of_window_alone(shape):
        total = total + windowed * kind_s(None)
    for kind in shape.entries:
        total = total + kind.layers * kind_s(kind)
    return np.asarray(total)


def kinds_launch_s(shape: AttentionShape, terms: EntriesTerms, full_launch_s: float) -> float:
    """Launches of attention that every step pays, in all layers."""
    total = shape.full_layers * full_launch_s + layers_of_window_alone(shape) * layer_launch_s(terms, None)
    return total + sum(kind.layers * layer_launch_s(terms, kind) for kind in shape.entries)
