"""hisearch: which LLM-serving deployment to buy, and how to configure it, found by simulation.

Example::

    import hisearch

    hisearch.load_study("quickstart").run().recommendation.reason
    hisearch.simulate_deployment("qwen3-32b-h100-tp2", "chat-multiturn", slo="interactive-chat").metrics
    hisearch.trace_stats(hisearch.load_trace("trace.jsonl")).ideal_hit_rate

Everything is imported at first use, so that ``import hisearch`` costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hisearch.api.advise import Advice as Advice
    from hisearch.api.advise import advise as advise
    from hisearch.api.compare import compare_deployments as compare_deployments
    from hisearch.api.compare import compare_runs as compare_runs
    from hisearch.api.deployments.deployment import SimulatedDeployment as SimulatedDeployment
    from hisearch.api.deployments.deployment import simulate_deployment as simulate_deployment
    from hisearch.api.deployments.workload import load_trace as load_trace
    from hisearch.api.drive import CalibratedServer as CalibratedServer
    from hisearch.api.drive import calibrate_server as calibrate_server
    from hisearch.api.fleet_study import FleetResult as FleetResult
    from hisearch.api.fleet_study import FleetStudy as FleetStudy
    from hisearch.api.fleet_study import load_fleet_study as load_fleet_study
    from hisearch.api.observe import Observation as Observation
    from hisearch.api.observe import observe_servers as observe_servers
    from hisearch.api.studies.largest import largest_rate as largest_rate
    from hisearch.api.studies.result import StudyResult as StudyResult
    from hisearch.api.studies.size import size as size
    from hisearch.api.studies.stored_run import load_run as load_run
    from hisearch.api.studies.study import Study as Study
    from hisearch.api.studies.study import load_study as load_study
    from hisearch.api.verification import Verification as Verification
    from hisearch.api.verify import verify_deployment as verify_deployment
    from hisearch.api.verify import verify_run as verify_run
    from hisearch.traces.distances import with_distances as with_distances
    from hisearch.traces.stats import trace_stats as trace_stats

#: Public name -> module that defines it.
_HOMES = {
    "Advice": "hisearch.api.advise",
    "CalibratedServer": "hisearch.api.drive",
    "FleetResult": "hisearch.api.fleet_study",
    "FleetStudy": "hisearch.api.fleet_study",
    "Observation": "hisearch.api.observe",
    "SimulatedDeployment": "hisearch.api.deployments.deployment",
    "Study": "hisearch.api.studies.study",
    "StudyResult": "hisearch.api.studies.result",
    "Verification": "hisearch.api.verification",
    "advise": "hisearch.api.advise",
    "calibrate_server": "hisearch.api.drive",
    "compare_deployments": "hisearch.api.compare",
    "compare_runs": "hisearch.api.compare",
    "largest_rate": "hisearch.api.studies.largest",
    "load_fleet_study": "hisearch.api.fleet_study",
    "load_run": "hisearch.api.studies.stored_run",
    "load_study": "hisearch.api.studies.study",
    "load_trace": "hisearch.api.deployments.workload",
    "observe_servers": "hisearch.api.observe",
    "simulate_deployment": "hisearch.api.deployments.deployment",
    "size": "hisearch.api.studies.size",
    "trace_stats": "hisearch.traces.stats",
    "verify_deployment": "hisearch.api.verify",
    "verify_run": "hisearch.api.verify",
    "with_distances": "hisearch.traces.distances",
}

__all__ = ["__version__", *sorted(_HOMES)]  # noqa: PLE0604 - names of _HOMES are strings


def __getattr__(name: str) -> Any:
    import importlib

    if name == "__version__":
        from importlib.metadata import version

        return version("hisearch")
    if name not in _HOMES:
        raise AttributeError(f"module 'hisearch' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
