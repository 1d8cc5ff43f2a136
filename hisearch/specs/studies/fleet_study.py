"""Kind ``FleetStudy``: which deployments of several models, behind one router, to buy together."""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator

from hisearch.specs.base import Seed, Strict
from hisearch.specs.errors import KeyedError
from hisearch.specs.models.model import ModelSpec, WeightsName
from hisearch.specs.studies.search_space import SearchSpaceSpec
from hisearch.specs.studies.slo import SloSpec
from hisearch.specs.studies.study import (
    OF_AGENTS,
    PRICE,
    AvailabilitySpec,
    BudgetSpec,
    ConfidenceSpec,
    LimitSpec,
    Objective,
    WorkloadRef,
    check_limits,
)

#: Figures of a deployment that are the sum of those of its models.
SUMMED: frozenset[str] = frozenset({"goodput", "usd_per_hour", "accelerators", "mean_w"})
#: Those that are a mean over its models, weighted by the tokens requested of each.
PER_TOKEN: frozenset[str] = frozenset({"usd_per_million_tokens", "joules_per_token"})
#: Those that are the smallest of its models'; all else is the largest.
LEAST: frozenset[str] = frozenset({"capacity"})

#: Most axes of a front.
_MOST_OBJECTIVES = 4


class FleetModelSpec(Strict):
    """One of the models: its own settings; all others are the study's."""

    model: str | ModelSpec | None = Field(
        None,
        description="What is served, as a Study's model; absent: the model of the name under which it stands here.",
    )
    huggingface_id: WeightsName | None = Field(None, description="As a Study's.")
    asked_as: list[str] = Field(
        default_factory=list,
        description="Other names by which requests ask for it, in addition to this one and that of its publisher.",
    )
    workload: WorkloadRef | None = Field(
        None,
        description="Its own traffic, whose requests need not say what they ask for; absent: its share of the study's.",
    )
    slo: str | SloSpec | None = Field(None, description="As a Study's slo; absent: what the study's says of it.")
    space: str | SearchSpaceSpec | None = Field(None, description="As a Study's space; absent: the study's.")


class FleetStudySpec(Strict):
    """The question for several models behind one router, each on workers of its own: which deployment to buy?"""

    models: dict[str, FleetModelSpec] = Field(min_length=2, max_length=8, description="Name -> model.")
    workload: WorkloadRef | None = Field(
        None,
        description="Traffic of models that have none of their own; its requests say which they ask for.",
    )
    slo: str | SloSpec | None = Field(
        None,
        description="The SLO of each model's requests by themselves; its section models has SLOs of single models.",
    )
    space: str | SearchSpaceSpec | None = Field(
        None, description="What may be chosen, of models that say nothing else."
    )
    objectives: list[Objective] = Field(
        default=["ttft_p99", "goodput", "usd_per_hour"],
        min_length=2,
        max_length=_MOST_OBJECTIVES,
        description="Axes of the front, usd_per_hour among them. goodput, usd_per_hour, accelerators and mean_w are "
        "sums over the models; usd_per_million_tokens and joules_per_token means weighted by tokens asked for; "
        "capacity is the smallest, each other one the largest, of any model.",
    )
    limits: dict[Objective, LimitSpec] = Field(
        default_factory=dict,
        description="As a Study's, on the whole deployment; sums and means become axes of each model's front.",
    )
    budget: BudgetSpec = Field(BudgetSpec(), description="How long to search, all models together.")
    confidence: ConfidenceSpec = Field(
        ConfidenceSpec(),
        description="As a Study's, of each model by itself; where limits leave no such combination, the cheapest "
        "within them is taken as simulated, and the answer says so.",
    )
    availability: AvailabilitySpec = Field(
        AvailabilitySpec(), description="As a Study's, of the pools of all models at once."
    )
    seed: Seed = Field(0, description="Of everything random.")

    @model_validator(mode="after")
    def _check(self) -> FleetStudySpec:
        if PRICE not in self.objectives:
            raise KeyedError(("objectives",), f"needs {PRICE}: the cheapest deployment is recommended")
        for index, axis in enumerate(self.objectives):
            if axis in OF_AGENTS:
                raise KeyedError(("objectives", index), "calls of agents cannot be told apart by model")
        if self.workload is not None and self.workload.models:
            raise KeyedError(("workload", "models"), "they are those of section models; leave it out")
        for name, model_spec in self.models.items():
            for key in ("workload", "slo", "space"):
                if getattr(model_spec, key) is None and getattr(self, key) is None:
                    raise KeyedError(("models", name, key), f"needed where the study has no {key}")
        check_limits(self.limits)
        axes = self.axes
        if len(axes) > _MOST_OBJECTIVES:
            message = f"with what limits couple, the models' fronts would have {len(axes)} axes ({', '.join(axes)}); "
            raise KeyedError(("limits",), f"{message}at most {_MOST_OBJECTIVES} are searched: leave an objective out")
        return self

    @property
    def limits_by_name(self) -> dict[str, LimitSpec]:
        """The limits, their names as plain strings."""
        return dict(self.limits.items())

    @property
    def coupling(self) -> tuple[str, ...]:
        """Limited figures that couple the models: what one model's deployment uses is no headroom of another's."""
        return tuple(name for name in self.limits if name in SUMMED | PER_TOKEN)

    @property
    def axes(self) -> tuple[str, ...]:
        """Axes of each model's front: the objectives, and what is limited for all models together."""
        return tuple(dict.fromkeys((*self.objectives, *self.coupling)))

    def own(self, name: str, key: str) -> bool:
        """Whether the model called ``name`` has a ``workload``, ``slo`` or ``space`` of its own."""
        return getattr(self.models[name], key) is not None

    def part(self, name: str) -> dict[str, Any]:
        """The Study that asks for the model called ``name`` alone, as plain data.

        Its budget is an even share. It keeps to limits that hold for each model if they hold for all together: upper
        bounds of sums of what is never negative, and bounds of what is the largest or smallest of any.
        """
        model_spec = self.models[name]
        kept = {
            figure: limit
            for figure, limit in self.limits.items()
            if figure not in SUMMED | PER_TOKEN or (figure in SUMMED and limit.at_most is not None)
        }
        share = len(self.models)
        budget = self.budget.model_copy(
            update={
                "simulations": max(self.budget.simulations // share, 1),
                "seconds": self.budget.seconds / share,
                "usd": None if self.budget.usd is None else self.budget.usd / share,
            }
        )
        requested = {} if self.own(name, "workload") else {"models": [name, *model_spec.asked_as]}
        weights = {} if model_spec.huggingface_id is None else {"huggingface_id": model_spec.huggingface_id}
        return weights | {
            "model": name if model_spec.model is None else _plain(model_spec.model),
            "workload": _plain(self.workload if model_spec.workload is None else model_spec.workload) | requested,
            "slo": _plain(self.slo if model_spec.slo is None else model_spec.slo),
            "space": _plain(self.space if model_spec.space is None else model_spec.space),
            "objectives": list(self.axes),
            "limits": {figure: _plain(limit) for figure, limit in kept.items()},
            "budget": _plain(budget),
            "confidence": _plain(self.confidence),
            "availability": _plain(self.availability),
            "seed": self.seed,
        }


def _plain(value: Any) -> Any:
    return value.model_dump(mode="json", exclude_none=True) if isinstance(value, Strict) else value
