"""Latency estimators: what they promise, how they are found, and the cache of what they compiled.

To add an estimator, add one module to ``hisearch/latency/estimators/`` that registers a factory under its name (the
value of ``estimator:`` in a LatencyProfile)::

    @register("mine")
    def build(profile_name: str, profile: LatencyProfileSpec) -> LatencyEstimator: ...

It is found by itself. A profile kind with constants of its own is a new member of the spec's union.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from hisearch.latency.costs import CompiledCosts
from hisearch.latency.sharding import Parallelism, parallelism_of
from hisearch.specs.base import DType
from hisearch.specs.deployment import EngineSpec
from hisearch.specs.hardware import AcceleratorSpec
from hisearch.specs.model import ModelSpec
from hisearch.specs.profile import LatencyProfileSpec

#: Compiled configurations kept in memory, about 0.3 to 1 MB each.
CACHE_ENTRIES = 64


class LatencyEstimator(Protocol):
    """Prices one engine step of one worker."""

    def compile(
        self,
        model: ModelSpec,
        accelerator: AcceleratorSpec,
        *,
        tensor_parallel: int,
        parallelism: Parallelism | None = None,
        weight_dtype: DType | None,
        kv_dtype: DType,
        engine: EngineSpec,
        max_tokens: int,
        max_sequences: int,
        max_context_tokens: int,
    ) -> CompiledCosts:
        """Tables of a worker's step costs: one pass of one attention group's batch through all stages.

        The other groups of a stage are taken to run batches of the same make-up at the same time.

        Args:
            model: architecture.
            accelerator: what each rank runs on.
            tensor_parallel: ranks of an attention group.
            parallelism: how the model is split where that is more than tensor parallelism; None, where it is not.
            weight_dtype: format of the weights; None is the model's own.
            kv_dtype: format of the KV cache.
            engine: serving engine; its name chooses the host overhead.
            max_tokens: most tokens in a step.
            max_sequences: most sequences in a step.
            max_context_tokens: most tokens of context that the decodes of one step read together.

        Raises:
            InvalidParallelism: the model cannot be split so.
            ValueError: the accelerator or the profile lacks a figure that is needed; the message says which.
        """
        ...


Factory = Callable[[str, LatencyProfileSpec], LatencyEstimator]

_FACTORIES: dict[str, Factory] = {}


def register(name: str) -> Callable[[Factory], Factory]:
    """Decorator: make a factory known as ``estimator: name``.

    Raises:
        ValueError: another factory has the name.
    """

    def keep(factory: Factory) -> Factory:
        if name in _FACTORIES:
            raise ValueError(f"estimator '{name}' is registered twice")
        _FACTORIES[name] = factory
        return factory

    return keep


def estimators() -> dict[str, Factory]:
    """All known estimators by name."""
    _discover()
    return dict(_FACTORIES)


def build_estimator(profile_name: str, profile: LatencyProfileSpec) -> LatencyEstimator:
    """The estimator that ``profile`` asks for, with its constants.

    Raises:
        ValueError: no estimator has that name.
    """
    known = estimators()
    if profile.estimator not in known:
        raise ValueError(
            f"profile {profile_name}: no estimator named '{profile.estimator}'; known: {', '.join(sorted(known))}"
        )
    return known[profile.estimator](profile_name, profile)


def compile_costs(
    profile_name: str,
    profile: LatencyProfileSpec,
    model: ModelSpec,
    accelerator: AcceleratorSpec,
    *,
    tensor_parallel: int,
    parallelism: Parallelism | None = None,
    weight_dtype: DType | None,
    kv_dtype: DType,
    engine: EngineSpec,
    max_tokens: int,
    max_sequences: int,
    max_context_tokens: int,
) -> CompiledCosts:
    """Compile, or return what the same question compiled before (see ``LatencyEstimator.compile`` for the arguments).

    The arrays are shared between callers: read them only.
    """
    limits = {"max_tokens": max_tokens, "max_sequences": max_sequences, "max_context_tokens": max_context_tokens}
    key = (
        profile_name, profile.model_dump_json(), model.model_dump_json(), accelerator.model_dump_json(),
        parallelism_of(tensor_parallel, parallelism), weight_dtype, kv_dtype, engine.model_dump_json(),
        *limits.values(),
    )  # fmt: skip
    question = _Question(
        key,
        lambda: build_estimator(profile_name, profile).compile(
            model,
            accelerator,
            tensor_parallel=tensor_parallel,
            parallelism=parallelism,
            weight_dtype=weight_dtype,
            kv_dtype=kv_dtype,
            engine=engine,
            **limits,
        ),
    )
    return _answer(question)


@dataclass(frozen=True)
class _Question:
    """A compilation, equal to another when everything it depends on is."""

    key: tuple[object, ...]
    compile: Callable[[], CompiledCosts] = field(compare=False)


@functools.lru_cache(maxsize=CACHE_ENTRIES)
def _answer(question: _Question) -> CompiledCosts:
    return question.compile()


def forget_compiled() -> None:
    """Forget what ``compile_costs`` keeps, so that the next question compiles."""
    _answer.cache_clear()


@functools.cache
def _discover() -> None:
    package = importlib.import_module("hisearch.latency.estimators")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
