"""Simulations on the workers of a Dask cluster whose scheduler was started elsewhere.

A worker plugin carries the payload, so that every worker gets it once: present workers, later ones, and those that a
nanny restarts. Dask repeats a simulation if its worker died.

joblib's Dask backend is not used. It does not report a task that Dask gave up (its generator waits for ever). It
batches results that must be journalled one by one, and keeps large arguments only on some workers.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from hisearch.search.evaluate.backends import BackendError, Ended
from hisearch.search.evaluate.payload import (
    Payload,
    ProgramMismatchError,
    evaluate_shipped,
    forget_in_process,
    mismatches,
    program_facts,
    unpack_in_process,
)
from hisearch.search.model.job import Evaluate, Evaluation, Job

if TYPE_CHECKING:
    from distributed import Client, Future

#: Seconds within which a scheduler must answer, and within which it must have a worker.
CONNECT_S = 10.0
FIRST_WORKER_S = 30.0


class NoDaskError(BackendError):
    """The extra with Dask is not installed."""

    def __init__(self) -> None:
        super().__init__("Dask is not installed; pip install 'hisearch[dask]'")


class DaskCluster:
    """The workers of a Dask cluster."""

    def __init__(self, evaluate: Evaluate, scheduler: str, workers: int | None = None) -> None:
        """Prepare without connecting.

        Args:
            evaluate: simulates one job; must be picklable.
            scheduler: address of the scheduler, ``tcp://HOST:PORT`` or ``tls://HOST:PORT``.
            workers: threads of this machine for work that is not sent to the cluster.
        """
        self.workers = 0
        self.local_workers = workers or os.cpu_count() or 1
        self._scheduler = scheduler
        self._payload = Payload.of(evaluate)
        self._client: Client | None = None
        self._submitted = 0

    def facts(self) -> dict[str, Any]:
        """See ``Backend``."""
        return {"name": "dask", "workers": self.workers, "shipped_bytes": len(self._payload.content)}

    def __enter__(self) -> DaskCluster:
        self._client = client = _connect(self._scheduler)
        try:
            _check_workers(client, self._scheduler)
            client.register_plugin(_plugin(self._payload))
            self.workers = sum(client.nthreads().values())
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        client, self._client = self._client, None
        if client is None:
            return
        with contextlib.suppress(Exception):  # the cluster may be gone; there is nothing left to lose
            client.unregister_worker_plugin(_plugin_name(self._payload))
        with _quiet_dask():
            client.close(timeout=2)

    def evaluations(self, jobs: Sequence[Job]) -> Ended:
        """See ``Backend``. A job that repeatedly kills its workers ends as a ``MemoryError``."""
        from distributed import as_completed

        if self._client is None:
            raise RuntimeError("DaskCluster is a context manager: use it in a with statement")
        places: dict[Future, int] = {}
        for index, job in enumerate(jobs):
            self._submitted += 1
            name = f"hisearch-{self._payload.key}-{self._submitted}"
            places[self._client.submit(evaluate_shipped, self._payload.key, job, key=name)] = index
        try:
            for future in as_completed(list(places), loop=self._client.loop):
                yield places.pop(future), _evaluation(future)
        finally:
            if places:
                with contextlib.suppress(Exception):
                    self._client.cancel(list(places), force=True)


def _evaluation(future: Future) -> Evaluation:
    """Outcome of an ended task.

    Raises:
        BackendError: it was lost with the scheduler, or its worker runs other versions.
    """
    from distributed import KilledWorker

    if future.status == "finished":
        return Evaluation.from_json(future.result())
    if future.status != "error":
        raise BackendError("the Dask scheduler was lost; what has finished is kept")
    error = future.exception()
    if isinstance(error, KilledWorker):
        return Evaluation.failed(MemoryError("every Dask worker that simulated it died, perhaps for want of memory"))
    if isinstance(error, ProgramMismatchError):
        raise BackendError(str(error))
    raise error


def _connect(scheduler: str) -> Client:
    try:
        from distributed import Client
    except ModuleNotFoundError as error:
        if error.name not in {"distributed", "dask"}:
            raise
        raise NoDaskError from None
    try:
        with _quiet_dask():
            return Client(scheduler, timeout=CONNECT_S, set_as_default=False)
    except (OSError, ValueError) as error:
        why = " ".join(str(error).split())
        raise BackendError(f"no Dask scheduler answers at {scheduler} within {CONNECT_S:g} s: {why}") from None


def _check_workers(client: Client, scheduler: str) -> None:
    """Check that there are workers, and that they run the same versions as this process.

    Raises:
        BackendError: there are none, or the versions differ.
    """
    try:
        client.wait_for_workers(1, timeout=FIRST_WORKER_S)
    except TimeoutError:
        raise BackendError(
            f"the Dask scheduler at {scheduler} has no worker after {FIRST_WORKER_S:g} s; start some with: "
            f"dask worker {scheduler}"
        ) from None
    for worker, theirs in client.run(program_facts, on_error="return").items():
        if isinstance(theirs, BaseException):
            why = " ".join(str(theirs).split())
            raise BackendError(f"the Dask worker {worker} cannot run hisearch: {type(theirs).__name__}: {why}")
        if differing := mismatches(program_facts(), theirs):
            raise BackendError(f"the Dask worker {worker} runs other versions: {'; '.join(differing)}")


def _plugin_name(payload: Payload) -> str:
    return f"hisearch-{payload.key}"


def _plugin(payload: Payload) -> Any:
    """A plugin that brings a payload to every worker and removes it at the end."""
    from distributed import WorkerPlugin

    class Carrier(WorkerPlugin):  # type: ignore[misc] # untyped
        name = _plugin_name(payload)

        def setup(self, worker: Any) -> None:
            unpack_in_process(payload)

        def teardown(self, worker: Any) -> None:
            forget_in_process(payload.key)

    return Carrier()


@contextlib.contextmanager
def _quiet_dask() -> Iterator[None]:
    """Silence Dask's own log of problems that are reported here or do not matter at the end."""
    logger = logging.getLogger("distributed")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)
