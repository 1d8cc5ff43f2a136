"""A deployment and a compiled trace in, a ``Result`` out.

``plans`` compiles what is simulated, ``arrays`` lays it out for ``kernels``, ``engine`` runs them, ``reading`` takes
what came of it into ``results``. Imports ``kernels``, ``latency`` and what is below; ``score`` and ``search`` import
from here.
"""

from hisearch.simulate.engine import simulate
from hisearch.simulate.plans.plan import WorkerPlan, plan_worker
from hisearch.simulate.results.result import Outcome, Result

__all__ = ["Outcome", "Result", "WorkerPlan", "plan_worker", "simulate"]
