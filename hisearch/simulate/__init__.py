"""A deployment and a compiled trace in, a ``Result`` out."""

from hisearch.simulate.engine import simulate
from hisearch.simulate.plans.plan import WorkerPlan, plan_worker
from hisearch.simulate.results.result import Outcome, Result

__all__ = ["Outcome", "Result", "WorkerPlan", "plan_worker", "simulate"]
