"""A deployment and a compiled trace in, a ``Result`` out.

``plans`` compiles specs, ``arrays`` lays the plans out for ``kernels``, ``engine`` runs them, and ``reading`` turns the
arrays into ``results``. Imports ``kernels``, ``latency`` and packages below; ``score`` and ``search`` import it.
"""

from hisearch.simulate.engine import simulate
from hisearch.simulate.plans.plan import WorkerPlan, plan_worker
from hisearch.simulate.results.result import Result
from hisearch.simulate.results.tables import Outcome

__all__ = ["Outcome", "Result", "WorkerPlan", "plan_worker", "simulate"]
