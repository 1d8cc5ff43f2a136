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
    from hisearch.deployment import SimulatedDeployment as SimulatedDeployment
    from hisearch.deployment import simulate_deployment as simulate_deployment
    from hisearch.stored_run import load_run as load_run
    from hisearch.study import Study as Study
    from hisearch.study import StudyResult as StudyResult
    from hisearch.study import load_study as load_study
    from hisearch.traces.stats import trace_stats as trace_stats
    from hisearch.workload import load_trace as load_trace

#: Public name -> module that defines it.
_HOMES = {
    "SimulatedDeployment": "hisearch.deployment",
    "Study": "hisearch.study",
    "StudyResult": "hisearch.study",
    "load_run": "hisearch.stored_run",
    "load_study": "hisearch.study",
    "load_trace": "hisearch.workload",
    "simulate_deployment": "hisearch.deployment",
    "trace_stats": "hisearch.traces.stats",
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
