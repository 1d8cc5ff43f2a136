"""Latency estimators: their protocol, registration, and the cache of compiled costs.

To add an estimator, add one module to ``hisearch/latency/estimators/`` that registers a class under its name (the
value of ``estimator:`` in a LatencyProfile)::

    @register("mine")
    class MyEstimator(ProfileEstimator):
        def compile(self, priced: PricedWorker) -> CompiledCosts: ...

The module is discovered by itself. A profile kind with its own constants is a new member of the spec's union.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

from hisearch.hardware.power import worker_idle_w
from hisearch.latency.corrections import corrected
from hisearch.latency.costs import CompiledCosts, StepCosts
from hisearch.latency.host import front_end_of
from hisearch.latency.priced import PricedWorker
from hisearch.latency.sharding import InvalidParallelism, Parallelism, parallelism_of
from hisearch.latency.workers.prompts import compile_shared
from hisearch.latency.workers.roofline import energy_costs
from hisearch.specs.base import DType
from hisearch.specs.deployments.deployment import EngineSpec
from hisearch.specs.deployments.graphs import capture_sizes
from hisearch.specs.machines.hardware import AcceleratorSpec
from hisearch.specs.machines.host import EngineOverhead
from hisearch.specs.machines.profile import LatencyProfileSpec
from hisearch.specs.models.model import ModelSpec

if TYPE_CHECKING:
    from hisearch.latency.devices.build import WorkerDevices

#: Compiled configurations kept in memory, about 0.3 to 1 MB each.
CACHE_ENTRIES = 64


class LatencyEstimator(Protocol):
    """Prices one engine step of one worker."""

    def compile(self, priced: PricedWorker) -> CompiledCosts:
        """Tables of a worker's step costs: one pass of one attention group's batch through all stages.

        The other groups of a stage are assumed to run equal batches at the same time.

        Raises:
            InvalidParallelism: the model cannot be split so.
            ValueError: the accelerator or the profile lacks a required figure; the message says which.
        """
        ...


class ProfileEstimator:
    """An estimator with the constants of one LatencyProfile.

    prices_shared_context: whether it prices ranks that share each sequence's KV, or prompts.
    """

    prices_shared_context: ClassVar[bool] = False

    def __init__(self, profile_name: str, profile: LatencyProfileSpec) -> None:
        self.profile_name = profile_name
        self.profile = profile

    def overhead(self, priced: PricedWorker) -> EngineOverhead:
        """Host work of the engine in its version, where the profile knows it, with the CUDA graphs that it captures.

        Raises:
            ValueError: the profile has none for it.
        """
        engine, engines = priced.engine, self.profile.engines
        if engine.name not in engines:
            known = ", ".join(sorted(engines))
            raise ValueError(f"profile {self.profile_name}: no overhead for engine '{engine.name}'; known: {known}")
        known_overhead = engines[engine.name]
        stated = known_overhead.of_version(engine.version) if engine.version else known_overhead
        ranks = priced.split.stage_ranks
        sizes = capture_sizes(engine, stated.graph_batches, priced.accelerator.memory_bytes, ranks)
        return stated.model_copy(update={"graph_batches": sizes})

    def check_shared_context(self, priced: PricedWorker) -> None:
        """Refuse ranks that share each sequence's KV, or prompts, where the estimator does not price them.

        Raises:
            InvalidParallelism: with the pool's key.
        """
        shared = {"decode_context_parallel": priced.split.decode_context}
        shared["prefill_context_parallel"] = max(priced.split.prefill_context, priced.prompt_ranks)
        for key, ranks in shared.items():
            if ranks > 1 and not self.prices_shared_context:
                message = f"{key} {ranks} is not priced by profile {self.profile_name}: the roofline and fitted laws do"
                raise InvalidParallelism(message, key)

    def refuse_heads(self, priced: PricedWorker) -> None:
        """Refuse a head that drafts where models are looked up by their names.

        Raises:
            ValueError: says so.
        """
        if priced.is_head:
            raise ValueError(f"profile {self.profile_name} knows whole models alone")

    def costs(self, priced: PricedWorker, seconds: StepCosts, **known: Any) -> CompiledCosts:
        """``seconds`` with energy by the roofline, the profile's evidence, and what else is ``known``.

        Raises:
            InvalidParallelism: ranks share each sequence's KV, or prompts, which this estimator does not price.
        """
        self.check_shared_context(priced)
        return CompiledCosts(
            seconds=seconds,
            joules=energy_costs(self.profile, priced),
            idle_w=worker_idle_w(priced.accelerator, priced.split.group_ranks),
            profile=self.profile_name,
            evidence=self.profile.evidence,
            relative_error=self.profile.relative_error,
            front_end=front_end_of(self.overhead(priced)),
            **known,
        )


Factory = Callable[[str, LatencyProfileSpec], LatencyEstimator]
_Factory = TypeVar("_Factory", bound=Factory)

_FACTORIES: dict[str, Factory] = {}


def register(name: str) -> Callable[[_Factory], _Factory]:
    """Decorator: make a class, or another factory, known as ``estimator: name``.

    Raises:
        ValueError: another factory has the name.
    """

    def keep(factory: _Factory) -> _Factory:
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
    devices: WorkerDevices | None = None,
) -> CompiledCosts:
    """Compile, or return the cached costs of an equal call (see ``PricedWorker`` for the arguments).

    ``tensor_parallel``: ranks of an attention group. ``parallelism``: the split, where it is more than tensor
    parallelism.

    Callers share the arrays: do not write to them. Estimator devices prices attached ``devices`` and accelerators with
    systolic arrays, with the profile's roofline terms.
    """
    split = parallelism_of(tensor_parallel, parallelism)
    priced = PricedWorker(
        model, accelerator, split, weight_dtype, kv_dtype, engine, max_tokens, max_sequences, max_context_tokens
    )
    key = (
        profile_name, profile.model_dump_json(), model.model_dump_json(), accelerator.model_dump_json(),
        split, weight_dtype, kv_dtype, engine.model_dump_json(), *priced.limits,
        devices.key if devices is not None else "",
    )  # fmt: skip

    def compile_worker(worker: PricedWorker) -> CompiledCosts:
        estimator = _estimator(profile_name, profile, accelerator, devices)
        return corrected(estimator.compile(worker), profile.corrections)

    if split.prefill_context > 1:
        return _answer(_Question(key, lambda: compile_shared(compile_worker, priced)))
    return _answer(_Question(key, lambda: compile_worker(priced)))


def forget() -> None:
    """Clear the cache of ``compile_costs``: the next call compiles."""
    _answer.cache_clear()


def _estimator(
    profile_name: str, profile: LatencyProfileSpec, accelerator: AcceleratorSpec, devices: WorkerDevices | None
) -> LatencyEstimator:
    if devices is None and accelerator.systolic is None:
        return build_estimator(profile_name, profile)
    module = importlib.import_module("hisearch.latency.estimators.devices")
    estimator: LatencyEstimator = module.DevicesEstimator(profile_name, profile, devices)
    return estimator


@dataclass(frozen=True)
class _Question:
    """A compilation; two are equal when all their inputs are."""

    key: tuple[object, ...]
    compile: Callable[[], CompiledCosts] = field(compare=False)


@functools.lru_cache(maxsize=CACHE_ENTRIES)
def _answer(question: _Question) -> CompiledCosts:
    return question.compile()


@functools.cache
def _discover() -> None:
    package = importlib.import_module("hisearch.latency.estimators")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
