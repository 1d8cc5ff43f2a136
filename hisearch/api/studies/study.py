"""Studies from Python: ``hisearch.load_study(path).run()``, all that ``hisearch run`` does.

Example::

    result = hisearch.load_study("studies/quickstart.yaml", ["spec.budget.simulations=100"]).run()
    print(result.recommendation.reason)
    result.to_pandas().sort_values("usd_per_hour")
    result.figure.pareto().show()
    result.export("vllm")
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hisearch.api.provenance import hisearch_version, provenance, what_differs
from hisearch.api.run_folder import (
    JOURNAL,
    PROVENANCE,
    check_resumable,
    check_unused,
    check_writable,
    default_run_dir,
    keep_ended,
    open_database,
    remove_parts,
    write_text,
)
from hisearch.api.run_lock import check_not_running, lock_run
from hisearch.api.studies.backends import make_backend
from hisearch.api.studies.result import StudyResult
from hisearch.base.shown import Shown
from hisearch.search.records.interrupts import Interrupts
from hisearch.specs.documents.resolve import load_study as resolve_study
from hisearch.specs.documents.resolved import ResolvedStudy

if TYPE_CHECKING:
    from hisearch.search.driver import SearchOutcome
    from hisearch.search.evaluate.backends import Backend
    from hisearch.search.evaluate.simulation import Simulation
    from hisearch.search.evaluate.world import World
    from hisearch.search.model.population import Population
    from hisearch.search.model.problem import Problem
    from hisearch.search.records.progress import Progress
    from hisearch.simulate.engine import Variant
    from hisearch.traces.changes.continuation import Continuation
    from hisearch.traces.compiled import CompiledTrace


def load_study(path: str | Path, overrides: Iterable[str] = ()) -> Study:
    """Load a study and all it names; its trace is read when it is first needed.

    Args:
        path: a catalogue name or a path.
        overrides: ``key.path=value`` settings, as of ``--set``.

    Raises:
        SpecError: with file, line and key.
    """
    return Study(resolve_study(path, tuple(overrides)))


class Study(Shown):
    """A study that can be run. ``trace`` is compiled at first use."""

    def __init__(self, resolved: ResolvedStudy, trace: CompiledTrace | None = None) -> None:
        """Wrap a resolved study; ``trace`` replaces the workload that it names."""
        self.resolved = resolved
        self._given_trace = trace

    def facts(self) -> dict[str, str]:
        """See ``Shown``."""
        resolved, workload = self.resolved, self.resolved.workload
        traffic = str(workload) if isinstance(workload, Path) else workload.name
        named = {"model": resolved.model_name, "workload": traffic, "SLO": resolved.slo.name}
        return {"name": self.name, **named, "budget": f"{resolved.study.budget.simulations:,} simulations"}

    @property
    def name(self) -> str:
        """The study's name."""
        return self.resolved.name

    @cached_property
    def trace(self) -> CompiledTrace:
        """The compiled workload; of a study in a run folder the run's own copy, should it keep one.

        Raises:
            SpecError, TraceError: the workload cannot be read.
        """
        if self._given_trace is not None:
            return self._given_trace
        from hisearch.api.studies.kept_trace import kept_trace
        from hisearch.traces.load import load_reference
        from hisearch.traces.reading.errors import TraceError

        resolved = self.resolved
        kept = kept_trace(resolved)
        if kept is not None:
            return kept
        try:
            return load_reference(resolved.study.workload, resolved.workload, resolved.study.seed)
        except TraceError as error:
            if not isinstance(resolved.workload, Path):  # the error names the document already
                raise
            named = resolved.document.problem("spec.workload.trace", "")
            if named.path is not None and not named.path.is_file():  # a study without a file, made from given values
                named = replace(named, path=None, line=None, key="--trace")
            raise error.named_by(named) from error

    @property
    def variants(self) -> list[Variant]:
        """The engines that the search may simulate, each with its release and its possible KV connectors."""
        from hisearch.search.model.tier_choices import TierChoices

        space = self.resolved.space.spec
        variants: list[Variant] = [
            (engine, space.execution.versions.get(engine, ""), kv_connector)
            for engine in space.execution.engines
            for kv_connector in TierChoices(space.cache, engine, {}).possible_kv_connectors
        ]
        return [*variants, "decode"] if space.pools.disaggregated is not None else variants

    def world(self) -> World:
        """All inputs that decide the outcome of the study's simulations.

        Raises:
            SpecError, TraceError: the workload cannot be read, or has no request of a class that the SLO bounds.
        """
        from hisearch.score.classes import term_without_requests
        from hisearch.search.evaluate.world import World
        from hisearch.specs.studies.study import AT_OTHER_LOADS

        resolved = self.resolved
        index, problem = term_without_requests(resolved.slo.spec, self.trace.arrays)
        if problem:
            raise resolved.slo.error(("spec", "terms", index), problem)
        return World(
            model=resolved.model.spec,
            slo=resolved.slo.spec,
            profile_name=resolved.profile.name,
            profile=resolved.profile.spec,
            accelerators={name: document.spec for name, document in resolved.accelerators.items()},
            hosts={name: document.spec for name, document in resolved.hosts.items()},
            media={name: document.spec for name, document in resolved.media.items()},
            trace=self.trace,
            load=resolved.study.workload.load,
            seed=resolved.study.seed,
            devices=resolved.hardware.device_specs,
            limits=resolved.study.limits_by_name,
            capacity=not AT_OTHER_LOADS.isdisjoint(resolved.study.objectives),
            fabrics={name: document.spec for name, document in resolved.hardware.fabrics.items()},
            population=self._population(),
            replicas_down=resolved.study.availability.replicas_down,
            continuation=self._continuation(),
        )

    def _continuation(self) -> Continuation | None:
        """How the workload goes on: as it was drawn, if nothing else chose its requests."""
        from hisearch.traces.changes.continuation import continuation_of

        workload = self.resolved.workload
        spec = None if isinstance(workload, Path) or self._given_trace is not None else workload.spec
        return continuation_of(self.trace, spec.generator if spec is not None else None, self.resolved.study.seed)

    def _population(self) -> Population | None:
        """The workload's population of agents, where an objective varies its size.

        Raises:
            SpecError: the workload has no population that can be resized.
        """
        from hisearch.search.model.population import Population
        from hisearch.specs.studies.study import OF_AGENTS

        study, workload = self.resolved.study, self.resolved.workload
        indices = [k for k, name in enumerate(study.objectives) if name in OF_AGENTS]
        if not indices:
            return None
        spec = None if isinstance(workload, Path) else workload.spec.agents
        if spec is not None and spec.graph.model != "edges" and study.workload.limit is None:
            return Population(spec, study.seed)
        message = (
            f"{study.objectives[indices[0]]} needs a workload of section agents whose number can be changed: no graph "
            "from a file, and no limit on its calls"
        )
        raise self.resolved.document.error(("spec", "objectives", indices[0]), message)

    def problem(self, simulation: Simulation) -> Problem:
        """The study as a search problem.

        Raises:
            SpecError: its objective is capacity, and the workload has no load to scale; or it is restricted to
                exportable deployments, and its space has none.
        """
        from hisearch.api.studies.exporting import ExportablePlanner, space_of
        from hisearch.search.model.demand import measure_demand
        from hisearch.search.model.problem import Problem
        from hisearch.specs.base import ENGINE_TITLES
        from hisearch.specs.models.pages import kept_page_tokens
        from hisearch.specs.models.windows import keeps_window_pool
        from hisearch.specs.studies.study import CAPACITY, OF_AGENTS

        study, slo, model = self.resolved.study, self.resolved.slo.spec, self.resolved.model.spec
        demand = measure_demand(self.trace, slo, study.workload.load, window_tokens=model.max_context_tokens)
        if CAPACITY in study.objectives and not demand.scales_with_load and OF_AGENTS.isdisjoint(study.objectives):
            place = study.objectives.index(CAPACITY)
            message = "all first turns of the workload arrive at once: there is no load to scale"
            raise self.resolved.document.error(("spec", "objectives", place), message)
        tells_ttfo = self.trace.arrays.thinking_tokens.any() or any(term.metric == "ttfo_s" for term in slo.terms)
        for place, name in enumerate(study.objectives):
            if name.startswith("ttfo") and not tells_ttfo:
                message = "no request of the workload thinks, so that its TTFO is its TTFT: ask for that"
                raise self.resolved.document.error(("spec", "objectives", place), message)
        if study.workload.load != 1.0 and not demand.scales_with_load:
            message = (
                "all first turns of the workload arrive at once: a closed loop has no arrival rate to multiply; change "
                "the number of its users or agents"
            )
            raise self.resolved.document.error(("spec", "workload", "load"), message)
        planner = ExportablePlanner(self.resolved, simulation) if self.resolved.space.spec.exportable else simulation
        return Problem(
            model=self.resolved.model_name,
            slo=slo,
            space=space_of(self.resolved),
            objectives=tuple(study.objectives),
            budget=study.budget,
            seed=study.seed,
            demand=demand,
            planner=planner,
            refuses=planner.refuses if isinstance(planner, ExportablePlanner) else None,
            scopes={name: document.spec.scope for name, document in self.resolved.media.items()},
            limits=study.limits_by_name,
            kept_page_tokens=kept_page_tokens(model),
            window_pool_engines=frozenset(name for name in ENGINE_TITLES if keeps_window_pool(name, model)),
            checkpoint_dtype=model.weight_dtype,
            replicas_down=study.availability.replicas_down,
            recommend=study.recommend,
            **({"most_load": simulation.world.most_load} if study.recommend.rule == "most_headroom" else {}),
        )

    def run(
        self,
        workers: int | None = None,
        run_dir: str | Path | None = None,
        resume: bool = False,
        progress: Progress | None = None,
        *,
        backend: str = "threads",
        scheduler: str | None = None,
        storage: str | None = None,
        interrupts: Interrupts | None = None,
    ) -> StudyResult:
        """Search, and write the run folder.

        An interrupt from the keyboard ends the search at once. Finished trials are scored, written and returned, and
        ``StudyResult.stopped`` is "interrupted".

        Args:
            workers: threads or processes of this machine; all cores where absent. The result does not depend on it.
            run_dir: the run folder; ``runs/<study>-<UTC time>`` where absent.
            resume: resume the run in ``run_dir``; its finished trials are not simulated again.
            progress: notified of the search's progress.
            backend: where simulations run: ``threads``, ``loky`` (processes) or ``dask``. The result does not depend
                on it.
            scheduler: the Dask scheduler's address, ``tcp://HOST:PORT``.
            storage: address of a PostgreSQL database for the trials, a password included; the study's own where
                absent.
            interrupts: handler of the signals that end the search; of the keyboard alone where absent.

        Raises:
            ValueError: ``resume`` without ``run_dir``, ``workers`` below 1, or a backend and scheduler that do not go
                together.
            BackendError: the backend's workers are unavailable, run other versions, or were lost.
            StorageError: the database cannot be reached or written.
            JournalError: ``run_dir`` holds a run without ``resume``, holds none with it, or holds another study's.
            NothingFitsError: no deployment of the space can be built.
            RunInProgressError: another process is writing to ``run_dir``.
            OSError: ``run_dir`` cannot be used, or holds other files. If the documents cannot be written when the
                search has ended, the result is returned all the same (``StudyResult.unwritten``).
        """
        from hisearch.search.evaluate.simulation import Simulation
        from hisearch.simulate.engine import prepare

        if self.resolved.study.asks_largest_rate:
            raise ValueError("objectives: [capacity]: this study asks for the largest rate; call hisearch.largest_rate")
        if resume and run_dir is None:
            raise ValueError("resume needs the run folder to go on with: run_dir")
        if resume and run_dir is not None:
            check_resumable(Path(run_dir))
        with contextlib.ExitStack() as stack:
            interrupts = interrupts if interrupts is not None else stack.enter_context(Interrupts())
            began = time.monotonic()
            folder = Path(run_dir) if run_dir is not None else default_run_dir(self.name)
            world = self.world()
            simulation = Simulation(world)
            problem, inputs = self.problem(simulation), world.digest(hisearch_version())
            check_writable(folder)
            check_unused(folder)
            check_not_running(folder)
            self._check_journal(folder, inputs, resume)
            workers_backend = stack.enter_context(make_backend(backend, simulation.evaluate, workers, scheduler))
            checked_s = time.monotonic() - began
            # All inputs are read by now: an error in them does not surface after minutes of compiling.
            prepare(self.variants)
            started = time.monotonic() - checked_s
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(lock_run(folder))
            stack.enter_context(interrupts.deferred())
            outcome, run = self._search(
                problem, simulation, folder, inputs, workers_backend, resume, progress, storage, interrupts
            )
            run["wall_time_s"] = round(time.monotonic() - started, 3)
            facts = provenance(self.resolved, outcome, self.trace, run)
            result = StudyResult(self.resolved, outcome, simulation, facts, folder)
            # The search is over: its outcome is written even if interrupted now.
            with contextlib.suppress(KeyboardInterrupt), interrupts.waiting():
                result = result.with_closeup(workers_backend.local_workers, progress)
            try:
                return replace(result, former=result.write(folder))
            except OSError as error:  # the answer is known by now: it is returned and printed
                return replace(result, unwritten=str(error))

    def _check_journal(self, folder: Path, inputs: str, resume: bool) -> None:
        """Refuse a folder that does not match the study or ``resume``; change nothing.

        Raises:
            JournalError: see ``run``.
        """
        from hisearch.search.records.journal import JournalError, OtherInputsError, check_journal

        try:
            check_journal(folder / JOURNAL, inputs, resume=resume)
        except OtherInputsError as error:
            raise JournalError(f"{error}: {what_differs(folder, self.resolved)}; choose another folder") from error

    def _search(
        self,
        problem: Problem,
        simulation: Simulation,
        folder: Path,
        inputs: str,
        backend: Backend,
        resume: bool,
        progress: Progress | None,
        storage: str | None,
        interrupts: Interrupts,
    ) -> tuple[SearchOutcome, dict[str, Any]]:
        """Search with the journal and the database in ``folder``; the outcome, and facts for its provenance."""
        from hisearch.api.studies.conclude import conclude_study
        from hisearch.api.studies.exporting import acceptor
        from hisearch.api.studies.kept_trace import keep_inputs
        from hisearch.report.data.stored import CONFIDENCE
        from hisearch.search.driver import search
        from hisearch.search.evaluate.runner import TrialRunner
        from hisearch.search.evaluate.simulation import SIMULATIONS_OF_CAPACITY
        from hisearch.search.records.journal import Journal
        from hisearch.search.records.search_status import SearchStatus
        from hisearch.specs.studies.study import AT_OTHER_LOADS

        with Journal(folder / JOURNAL, inputs, resume=resume) as journal:
            remove_parts(folder)
            keep_ended(folder)
            keep_inputs(self.resolved, None if self._given_trace is not None else self.trace, folder)
            write_text(folder / "study.yaml", self.resolved.to_yaml())
            (folder / CONFIDENCE).unlink(missing_ok=True)  # of an earlier run
            database = open_database(folder, self.name, problem, storage or self.resolved.study.storage)
            (folder / PROVENANCE).unlink(missing_ok=True)  # of an earlier run: this one has not ended
            runner = TrialRunner(
                simulation.evaluate,
                problem.budget,
                inputs=inputs,
                journal=journal,
                progress=progress,
                simulations_each=1 if AT_OTHER_LOADS.isdisjoint(problem.objectives) else SIMULATIONS_OF_CAPACITY,
                backend=backend,
                interrupts=interrupts,
                status=SearchStatus(problem.objectives),
                keep=database.keep_up,
                accepts=acceptor(self.resolved, simulation),
            )
            with contextlib.closing(database):
                outcome = search(problem, runner, database.write_behind)
                if outcome.stopped != "interrupted":
                    # The search's outcome is written even if interrupted now.
                    searched = outcome
                    outcome = searched.as_interrupted()
                    with contextlib.suppress(KeyboardInterrupt), interrupts.waiting():
                        outcome = conclude_study(
                            self.resolved, problem, simulation, runner, searched, folder, inputs=inputs, resume=resume
                        )
                    database.write_behind(outcome.trials)
        facts = {"workers": runner.workers, "replayed": runner.replayed, "inputs_digest": inputs}
        return outcome, facts | {"backend": backend.facts()}
