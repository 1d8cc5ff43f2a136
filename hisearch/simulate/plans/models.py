"""The fleet model that each request of a trace asks for."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hisearch.simulate.plans.fleet import FleetPlan
from hisearch.traces.compiled import CompiledTrace
from hisearch.traces.models import RequestModels
from hisearch.traces.stats import requests_over_window


class ModelNotServed(ValueError):  # noqa: N818
    """A trace asks for a model that no pool serves, or names none of several."""


def models_of_requests(plan: FleetPlan, trace: CompiledTrace) -> RequestModels:
    """The models that the fleet serves, and the index of each request's model.

    Raises:
        ModelNotServed: the trace names a model that no pool serves, or none although several are served.
    """
    served = plan.models
    names = tuple(model.name for model in served)
    if trace.models is None:
        if len(served) > 1:
            raise ModelNotServed(
                f"trace {trace.name} names no model, but the pools serve {', '.join(names)}: a request must say which "
                "it asks for (field model, docs/traces.md)"
            )
        return RequestModels(names, np.zeros(len(trace), np.int32))
    if not any(names) and len(trace.models.names) == 1:
        return RequestModels(names, np.zeros(len(trace), np.int32))
    numbers = []
    for name in trace.models.names:
        index = next((k for k, model in enumerate(served) if name in model.names), None)
        if index is None:
            raise ModelNotServed(
                f"trace {trace.name} asks for model {name!r}, which no pool serves; served: {', '.join(names)}. Other "
                "names of a model go under served_names of the deployment. If it is a LoRA adapter, import the trace "
                f"with --adapters {name}=RANK (docs/traces.md#adapters)"
            )
        numbers.append(index)
    return RequestModels(names, np.array(numbers, np.int32)[trace.models.model])


def window_tokens(plan: FleetPlan) -> tuple[int, ...]:
    """The window of each model that the fleet serves."""
    return tuple(max(p.plan.max_request_tokens for p in plan.pools if p.model == model) for model in plan.models)


def over_windows(plan: FleetPlan, trace: CompiledTrace) -> npt.NDArray[np.bool_]:
    """Mask of the requests that exceed their model's window, shape (N,)."""
    windows = np.array(window_tokens(plan), np.int64)
    return requests_over_window(trace, windows[models_of_requests(plan, trace).model])
