"""Experts chosen by a function of one's own: loads of drawn steps, and misses of caches that are run step by step.

The function is called with (tokens, layer, experts, per_token, rng) and returns how many of the tokens choose each
expert, shape (experts,): none more than ``tokens``, ``tokens * per_token`` in all. ``layer`` counts the layers with
experts from 0. ``rng`` is a seeded ``numpy.random.Generator``, the same one from step to step of a layer.
"""

from __future__ import annotations

import importlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from hisearch.base.dtypes import F8
from hisearch.latency.devices import experts
from hisearch.latency.devices.build import DevicesRefused
from hisearch.latency.measured.curves import Curve
from hisearch.specs.machines.devices import ExpertOffloadSpec

Choose = Callable[[int, int, int, int, np.random.Generator], Any]

#: Key of the routing's function, in messages.
KEY = "experts.routing.function"
#: Most layers whose caches are run, spread over all; steps of each, and those that only fill the cache.
CACHED_LAYERS, STEPS, FILLING = 8, 48, 16
#: Draws are more where tokens are few, so that about as many choose; at most so many.
CHOSEN, MOST_DRAWS = 4096, 512
#: Tokens of the steps that tell how popular experts are.
REFERENCE_TOKENS = 4096


@dataclass(frozen=True)
class ChosenExpertLoads(experts.ExpertLoads):
    """Loads and misses where a function chooses; ``layers``: with experts, among which draws take turns."""

    layers: int = 1

    @cached_property
    def probabilities(self) -> F8:
        """Pi, in the mean of all layers."""
        counts = self._counts(REFERENCE_TOKENS, np.random.default_rng((self.spec.routing.seed, self.experts)))
        return np.asarray(counts.mean(axis=0) / REFERENCE_TOKENS)

    def busiest(self, tokens: F8) -> tuple[F8, F8]:
        """See ``ExpertLoads``."""
        picks_of, active_of = self._drawn
        return picks_of(tokens), active_of(tokens)

    def _counts(self, tokens: int, rng: np.random.Generator) -> F8:
        draws = max(experts.DRAWS, min(CHOSEN // tokens, MOST_DRAWS))
        return np.stack([self._step(tokens, draw % self.layers, rng) for draw in range(draws)])

    def _step(self, tokens: int, layer: int, rng: np.random.Generator) -> F8:
        function = self.spec.routing.function
        assert function is not None
        return chosen_counts(function, tokens, layer, self.experts, self.per_token, rng)

    def _needs(self, tokens: F8) -> F8:
        return np.stack([needs_of(tokens) for needs_of in self._needs_of])

    @cached_property
    def _needs_of(self) -> list[Curve]:
        """Share of drawn steps that need each expert, by tokens."""
        rng = np.random.default_rng((self.spec.routing.seed, self.experts, self.ranks))
        shares = np.stack([(self._counts(int(tokens), rng) > 0).mean(axis=0) for tokens in experts.KNOTS], axis=1)
        at = np.concatenate(([0.0], experts.KNOTS))
        return [Curve(at, np.concatenate(([0.0], share))) for share in shares]

    def _drawn_misses(self, offload: ExpertOffloadSpec) -> F8:
        return np.array([self._stepped(int(tokens), offload) for tokens in experts.KNOTS])

    def _stepped(self, tokens: int, offload: ExpertOffloadSpec) -> float:
        """Misses of the rank that has most, in the mean of its layers, with caches run step by step."""
        by_rank, layers = np.zeros(self.ranks), cached_layers(self.layers)
        for layer in layers:
            rng = np.random.default_rng((self.spec.routing.seed, self.experts, layer))
            steps = np.stack([self._step(tokens, layer, rng) for _ in range(STEPS)])
            by_rank += [
                stepped_misses(list(steps[:, held]), self.probabilities[held], offload.resident, offload.eviction)
                for held in self.dealt
            ]
        return float(by_rank.max() / len(layers))


def chosen_counts(name: str, tokens: int, layer: int, count: int, per_token: int, rng: np.random.Generator) -> F8:
    """Tokens that choose each of ``count`` experts in a step, shape (count,).

    Raises:
        DevicesRefused: the function ``MODULE:NAME`` cannot be imported, fails, or returns something else.
    """
    try:
        counts = np.asarray(_imported(name)(tokens, layer, count, per_token, rng), dtype=np.float64)
    except DevicesRefused:
        raise
    except Exception as error:  # whatever a function of somebody else's raises
        raise DevicesRefused(KEY, f"{name} failed for {tokens} tokens of layer {layer}: {error!r}") from error
    if counts.shape != (count,):
        raise DevicesRefused(KEY, f"{name} returned shape {counts.shape}; ({count},) is needed")
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
