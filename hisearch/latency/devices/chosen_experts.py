"""Experts chosen by a function of one's own: loads of drawn steps, and misses of caches that are run step by step.

The function is called with (tokens, layer, experts, per_token, rng) and returns how many of the tokens choose each
expert, shape (experts,): none more than ``tokens``, ``tokens * per_token`` in all. ``layer`` counts the layers with
experts from 0. ``rng`` is a seeded ``numpy.random.Generator``, the same one from step to step of a layer.
"""

from __future__ import annotations

import importlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hisearch.base.dtypes import F8
from hisearch.latency.devices.build import DevicesRefused

Choose = Callable[[int, int, int, int, np.random.Generator], Any]

#: Key of the routing's function, in messages.
KEY = "experts.routing.function"
#: Most layers whose caches are run, spread over all; steps of each, and those that only fill the cache.
CACHED_LAYERS, STEPS, FILLING = 8, 48, 16


def chosen_counts(name: str, tokens: int, layer: int, experts: int, per_token: int, rng: np.random.Generator) -> F8:
    """Tokens that choose each expert in a step, shape (experts,).

    Raises:
        DevicesRefused: the function ``MODULE:NAME`` cannot be imported, fails, or returns something else.
    """
    try:
        counts = np.asarray(_imported(name)(tokens, layer, experts, per_token, rng), dtype=np.float64)
    except DevicesRefused:
        raise
    except Exception as error:  # whatever a function of somebody else's raises
        raise DevicesRefused(KEY, f"{name} failed for {tokens} tokens of layer {layer}: {error!r}") from error
    if counts.shape != (experts,):
        raise DevicesRefused(KEY, f"{name} returned shape {counts.shape}; ({experts},) is needed")
    if not (np.isfinite(counts).all() and (counts >= 0).all() and (counts <= tokens).all()):
        raise DevicesRefused(KEY, f"{name} returned counts outside 0 to {tokens}, the number of tokens")
    if abs(counts.sum() - tokens * per_token) > 1e-6 * tokens * per_token:
        raise DevicesRefused(
            KEY, f"{name} returned {counts.sum():g} choices for {tokens} tokens; each chooses {per_token}"
        )
    return counts


def _imported(name: str) -> Choose:
    module, _, attribute = name.partition(":")
    try:
        function = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise DevicesRefused(KEY, f"cannot import {name}: {error}; is its folder on PYTHONPATH?") from error
    if not callable(function):
        raise DevicesRefused(KEY, f"{name} is no function")
    choose: Choose = function
    return choose


def cached_layers(layers: int) -> list[int]:
    """Layers whose caches are run: at most ``CACHED_LAYERS``, spread evenly."""
    return [int(layer) for layer in np.unique(np.linspace(0, layers - 1, CACHED_LAYERS).round())]


def stepped_misses(steps: Sequence[F8], popularity: F8, resident: int, eviction: str) -> float:
    """Mean experts missing in a step behind the first ``FILLING``.

    A step needs its experts in order of their numbers; first those that are resident, as in ``experts``.

    Args:
        steps: tokens that choose each of a rank's experts, by step.
        popularity: of each, in any unit.
        resident: places of the cache.
        eviction: ``lru``, ``fifo`` or ``static``, which keeps the most popular.
    """
    missing: list[int] = []
    if eviction == "static":
        popular = np.argsort(-popularity, kind="stable")[:resident]
        missing = [int(np.count_nonzero(np.delete(step, popular))) for step in steps]
        return float(np.mean(missing[FILLING:]))
    cache: OrderedDict[int, None] = OrderedDict()
    for step in steps:
        needed = np.flatnonzero(step).tolist()
        fetched = [expert for expert in needed if expert not in cache]
        if eviction == "lru":
            for expert in needed:
                if expert in cache:
                    cache.move_to_end(expert)
        for expert in fetched if resident else ():
            if len(cache) >= resident:
                cache.popitem(last=False)
            cache[expert] = None
        missing.append(len(fetched))
    return float(np.mean(missing[FILLING:]))
