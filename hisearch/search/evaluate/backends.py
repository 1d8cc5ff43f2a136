"""Where simulations run: threads or processes of this machine.

See ``hisearch.search.evaluate.dask_cluster`` for other machines.

A backend only yields the outcomes of jobs, in whatever order they end. The trial runner makes a study the same on any
backend with any number of workers (law L6).
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Generator, Iterator, Sequence
from types import TracebackType
from typing import Any, Protocol

from hisearch.search.evaluate.payload import Payload, evaluate_shipped, forget_in_process, unpack_in_process
from hisearch.search.model.job import Evaluate, Evaluation, Job, evaluate_safely

#: Index of a job in the request, and its outcome. The generator may be closed early.
Ended = Generator[tuple[int, Evaluation], None, None]


#: Most workers per core; assumed. Far fewer already only wait for each other.
WORKERS_PER_CORE = 64


class BackendError(ValueError):
    """The workers of a backend are missing, unsuitable or lost; finished simulations are in the journal."""


class Backend(Protocol):
    """Runs jobs. A context manager: workers exist inside it.

    workers: simulations at a time. local_workers: threads for this machine's own work. facts: for provenance.
    """

    workers: int
    local_workers: int

    def evaluations(self, jobs: Sequence[Job]) -> Ended:
        """Run all jobs and yield the outcome of each as it ends.

        Raises:
            BackendError: see the class.
        """

    def facts(self) -> dict[str, Any]:
        """Facts about the backend for provenance."""

    def __enter__(self) -> Backend:
        """Acquire the workers.

        Raises:
            BackendError: see the class.
        """

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release the workers without waiting for those still at work."""


class Threads:
    """Threads of this process, which share the compiled trace and workers. Kernels release the GIL."""

    def __init__(self, evaluate: Evaluate, workers: int | None = None) -> None:
        """Use ``workers`` threads, all cores if absent.

        Raises:
            ValueError: ``workers`` is below 1.
        """
        self.workers = self.local_workers = checked_workers(workers)
        self._evaluate = evaluate

    def __enter__(self) -> Threads:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def facts(self) -> dict[str, Any]:
        """See ``Backend``."""
        return {"name": "threads", "workers": self.workers}

    def evaluations(self, jobs: Sequence[Job]) -> Ended:
        """See ``Backend``."""
        if self.workers == 1 or len(jobs) == 1:
            yield from ((index, evaluate_safely(self._evaluate, job)) for index, job in enumerate(jobs))
        elif jobs:
            from joblib import Parallel, delayed

            pool = Parallel(n_jobs=self.workers, backend="threading", return_as="generator_unordered")
            calls = ((index, evaluate_safely, (self._evaluate, job)) for index, job in enumerate(jobs))
            with contextlib.closing(pool(delayed(_numbered)(*call) for call in calls)) as ended:
                yield from ended


class Processes:
    """Processes of this machine (joblib's loky). Each gets the evaluator and the compiled trace once."""

    def __init__(self, evaluate: Evaluate, workers: int | None = None) -> None:
        """Use ``workers`` processes, all cores if absent; ``evaluate`` must be picklable.

        Raises:
            ValueError: ``workers`` is below 1.
        """
        self.workers = self.local_workers = checked_workers(workers)
        self._payload = Payload.of(evaluate)

    def facts(self) -> dict[str, Any]:
        """See ``Backend``."""
        return {"name": "loky", "workers": self.workers, "shipped_bytes": len(self._payload.content)}

    def __enter__(self) -> Processes:
        unpack_in_process(self._payload)  # joblib runs the calls of a single worker right here
        # Children inherit the mask: a terminal sends Ctrl-C to all, but only this process handles it.
        with _blocked(signal.SIGINT), _quiet_tracker():
            for _ in self._run(_ready, [()] * self.workers):
                pass
        return self

    def __exit__(self, *_: object) -> None:
        from joblib.externals.loky import get_reusable_executor

        forget_in_process(self._payload.key)
        if self.workers > 1:
            get_reusable_executor(kill_workers=True).shutdown(wait=True, kill_workers=True)

    def evaluations(self, jobs: Sequence[Job]) -> Ended:
        """See ``Backend``."""
        for index, content in self._run(evaluate_shipped, [(self._payload.key, job) for job in jobs]):
            yield index, Evaluation.from_json(content)

    def _run(self, function: Any, arguments: Sequence[tuple[Any, ...]]) -> Generator[tuple[int, Any], None, None]:
        """Call ``function`` in the processes; yield (index, result) as they end."""
        from joblib import Parallel, delayed
        from joblib.externals.loky.process_executor import TerminatedWorkerError

        # Larger batches would hold back ended jobs. A new process unpacks the payload before its first call.
        pool = Parallel(
            n_jobs=self.workers,
            backend="loky",
            batch_size=1,
            return_as="generator_unordered",
            initializer=_begin_process,
            initargs=(self._payload, os.getpid()),
        )
        if not arguments:
            return
        calls = (delayed(_numbered)(index, function, call) for index, call in enumerate(arguments))
        try:
            with contextlib.closing(pool(calls)) as ended:
                yield from ended
        except TerminatedWorkerError:
            raise BackendError(
                "a worker process was killed, perhaps for want of memory (fewer --workers take less); "
                "what has finished is kept"
            ) from None


def checked_workers(workers: int | None) -> int:
    """``workers``; all cores if None.

    Raises:
        ValueError: it is below 1, or beyond what the machine could hold.
    """
    cores = os.cpu_count() or 1
    most = WORKERS_PER_CORE * cores
    if workers is not None and not 1 <= workers <= most:
        raise ValueError(f"workers: expected 1 to {most:,}, {WORKERS_PER_CORE} for each core here, got {workers:,}")
    return workers if workers is not None else cores


def _numbered(index: int, function: Any, arguments: tuple[Any, ...]) -> tuple[int, Any]:
    return index, function(*arguments)


def _ready() -> None:
    """Called in every process to wait until it is up."""


def _begin_process(payload: Payload, parent: int) -> None:
    """In a new process: leave interrupts to the parent, exit when the parent does, and unpack."""
    import threading

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(parent,), name="parent", daemon=True).start()
    unpack_in_process(payload)


def _end_with(parent: int, look_every_s: float = 0.5) -> None:
    import time

    while os.getppid() == parent:
        time.sleep(look_every_s)
    os._exit(1)


@contextlib.contextmanager
def _blocked(number: signal.Signals) -> Iterator[None]:
    """Hold a signal back in this thread, if the system supports it."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _quiet_tracker() -> Iterator[None]:
    """Silence loky's shared-memory tracker, which would warn while cleaning up after a stopped run."""
    before = os.environ.get("PYTHONWARNINGS")
    os.environ["PYTHONWARNINGS"] = ",".join(filter(None, (before, "ignore:resource_tracker:UserWarning")))
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONWARNINGS"]
        else:
            os.environ["PYTHONWARNINGS"] = before
