"""What evaluates a study's trials: threads, processes, or a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hisearch.search.evaluate.backends import Backend
    from hisearch.search.model.job import Evaluate

BACKENDS = ("threads", "loky", "dask")


def make_backend(name: str, evaluate: Evaluate, workers: int | None = None, scheduler: str | None = None) -> Backend:
    """A backend by its name; see ``hisearch.search.evaluate.backends``.

    Raises:
        ValueError: no such backend, workers below 1, or a scheduler with another backend than dask, or none with it.
    """
    if name not in BACKENDS:
        raise ValueError(f"no backend '{name}'; known: {', '.join(BACKENDS)}")
    if (scheduler is not None) != (name == "dask"):
        raise ValueError("the backend dask, and it alone, needs a scheduler's address: tcp://HOST:PORT")
    if scheduler is not None:
        from hisearch.search.evaluate.dask_cluster import DaskCluster

        return DaskCluster(evaluate, scheduler, workers)
    from hisearch.search.evaluate.backends import Processes, Threads

    return Threads(evaluate, workers) if name == "threads" else Processes(evaluate, workers)
