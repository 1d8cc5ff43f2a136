"""Regression: steps of a deployment by the law fitted to its engine's own log (``calibrate.step_fit``).

Notation as there. The law covers the logged worker, host work included. In tables:

    host_s = step_s, host_per_sequence_s = per_sequence_s
    token_s[T] = token_s(T), prompt_s[P] = prompt_s, decode_s(n, c) = context_token_s * c, skew_s = skew_token_s
    chunk_s(new, cached) = pair_s * new * (cached + (new + 1) / 2) + cached_token_s * cached

Each is longer by ``excess.share``, and prompt_s[P] by ``excess.prompt_share`` of step_s + token_s(P) besides: sums of
decode steps, and of steps with prompts, are then those that were logged.
The last is exact for a prompt alone in its step; ``cached`` tokens of several prompts count like one prompt of their
length. A log covers one model, accelerator, engine, split and format: others are refused. Energy is the roofline's.
"""

from __future__ import annotations

import numpy as np

from hisearch.base.dtypes import F8
from hisearch.latency.costs import CompiledCosts, StepCosts
from hisearch.latency.estimator import ProfileEstimator, register
from hisearch.latency.operators import attention_pairs
from hisearch.latency.priced import PricedWorker
from hisearch.latency.tabulate import table_axes
from hisearch.specs.machines.regression import StepRegression


@register("regression")
class RegressionEstimator(ProfileEstimator):
    """Compiles a worker to tables with the law of its own log in a LatencyProfile."""

    def law(self, priced: PricedWorker) -> StepRegression:
        """The law of the worker's own steps.

        Raises:
            ValueError: the profile has none; the message lists the workers that have one.
        """
        worker_key = (priced.model.huggingface_id.lower(), priced.engine.name, priced.loaded_dtype, priced.kv_dtype)
        plain = priced.split.ranks == priced.split.tensor and priced.split.expert == 1
        for law in self.profile.regressions:
            law_key = (law.model.lower(), law.engine, law.weight_dtype, law.kv_dtype)
            same_board = law.memory_bandwidth_bytes_per_s == priced.accelerator.memory_bandwidth_bytes_per_s
            if law_key == worker_key and same_board and plain and law.tensor_parallel == priced.split.tensor:
                return law
        worker_text = _named(
            priced.model.huggingface_id, priced.engine.name, str(priced.split), priced.loaded_dtype, priced.kv_dtype
        )
        known = "; ".join(
            f"{_named(x.model, x.engine, f'tensor_parallel {x.tensor_parallel}', x.weight_dtype, x.kv_dtype)} "
            f"on {x.accelerator}"
            for x in self.profile.regressions
        )
        raise ValueError(
            f"profile {self.profile_name}: steps of {worker_text} on this accelerator were not logged; it has {known}"
        )

    def compile(self, priced: PricedWorker) -> CompiledCosts:
        """See ``LatencyEstimator.compile``."""
        self.refuse_heads(priced)
        law = self.law(priced)
        return self.costs(
            priced,
            _tables(law, priced),
            regime_errors={regime: error.median for regime, error in law.errors.items()},
            warnings=tuple(_warnings(law, priced)),
        )


def _named(model: str, engine: str, split: str, weights: str, kv: str) -> str:
    return f"{model} under {engine} at {split} (weights {weights}, KV {kv})"


def _tables(law: StepRegression, priced: PricedWorker) -> StepCosts:
    axes = table_axes(*priced.limits, priced.model.max_context_tokens)
    longer = 1.0 + law.excess.share
    decode_s = np.repeat(longer * law.context_token_s * axes.context, len(axes.sequences), axis=0)
    decode_s[0, :] = 0.0
    chunk_rate = longer * (law.pair_s + law.cached_token_s * axes.cached / attention_pairs(axes.new, axes.cached))
    token_s = _token_s(law, priced.max_tokens)
    prompt_s = longer * law.prompt_s + law.excess.prompt_share * (law.step_s + token_s)
    return StepCosts(
        host_s=longer * law.step_s,
        host_per_sequence_s=longer * law.per_sequence_s,
        token_s=longer * token_s,
        sequence_s=np.zeros(2),
        chunk_rate=np.ascontiguousarray(chunk_rate),
        decode_s=decode_s,
        skew_s=np.array([longer * law.skew_token_s]),
        prompt_s=prompt_s,
    )


def _token_s(law: StepRegression, limit: int) -> F8:
    """``token_s`` of 0 … ``limit`` tokens, extrapolated with the steeper of its mean and last slopes."""
    knots, values = np.array(law.tokens, dtype=np.float64), np.array(law.token_s)
    tokens = np.arange(limit + 1, dtype=np.float64)
    slope = max((values[-1] - values[-2]) / (knots[-1] - knots[-2]), values[-1] / knots[-1])
    return np.asarray(np.interp(tokens, knots, values) + slope * np.maximum(tokens - knots[-1], 0.0))


def _warnings(law: StepRegression, priced: PricedWorker) -> list[str]:
    """Warnings of loads beyond the log (law L8)."""
    ranges = law.ranges
    pairs = (
        ("tokens", priced.max_tokens, ranges.tokens),
        ("sequences", priced.max_sequences, ranges.sequences),
        ("tokens of context", priced.max_context_tokens, ranges.context_tokens),
    )
    warnings = [
        f"steps of more than {logged:,} {what}: none was logged, the law goes on"
        for what, limit, logged in pairs
        if limit > logged
    ]
    if "mixed" not in law.errors and priced.engine.name != "sglang":
        warnings.append("no step with both prompts and decodes was logged: their costs are added up")
    return warnings
