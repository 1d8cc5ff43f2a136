"""``hisearch run``: a study, or one made from an SLO."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hisearch.api.run_folder import JOURNAL
from hisearch.cli import options
from hisearch.cli.compilation import note_compilation
from hisearch.cli.verbs.choosing import choose_study
from hisearch.cli.verbs.largest import run_largest
from hisearch.cli.verbs.running import (
    Place,
    exit_without_answer,
    how_to_resume,
    interruptible,
    place_of,
    progress_of,
)
from hisearch.kernels.fleet import head_start

#: Kinds of document that can be run.
_RUN = ("Study", "FleetStudy", "SLO")
_RUN_KINDS = "Study, FleetStudy or SLO"

if TYPE_CHECKING:
    from hisearch.api.studies.result import StudyResult
    from hisearch.api.studies.study import Study
    from hisearch.search.records.interrupts import Interrupts
    from hisearch.specs.documents.resolved import ResolvedStudy


def run(
    study: Annotated[
        str | None,
        typer.Argument(
            metavar="STUDY_OR_SLO",
            help="A study; or an SLO, by name or as a phrase, with --model and --trace. Without one: a list to choose "
            "from.",
        ),
    ] = None,
    settings: options.Setting = None,
    model: Annotated[str | None, typer.Option(help="With an SLO: the model.")] = None,
    trace: Annotated[str | None, typer.Option(help="With an SLO: the workload or trace file.")] = None,
    keep: Annotated[
        Path | None, typer.Option(metavar="FILE", help="With an SLO: write the study made from it to FILE.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Threads or processes of this machine; all cores where absent.")
    ] = None,
    backend: Annotated[
        str | None,
        typer.Option(metavar="threads|loky|dask", help="Where simulations run: threads, processes, or a Dask cluster."),
    ] = None,
    scheduler: Annotated[
        str | None,
        typer.Option(metavar="tcp://HOST:PORT", help="The Dask cluster's scheduler; implies --backend dask."),
    ] = None,
    storage: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            envvar="HISEARCH_STORAGE",
            help="PostgreSQL database for the trials, postgresql://USER@HOST:PORT/DATABASE; study.db where absent.",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Run folder; runs/STUDY-TIME where absent.")] = None,
    resume: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Go on with the run in DIR; STUDY_OR_SLO may then be left out."),
    ] = None,
    confidence: Annotated[
        float | None,
        typer.Option(
            metavar="P",
            help="Recommend the first by its rule that meets the SLO with at least this probability, 0 to 1; exit with "
            "99 where none has it.",
        ),
    ] = None,
    recommend: Annotated[
        str | None,
        typer.Option(
            metavar="RULE",
            help="cheapest, best_value, lowest_latency, most_headroom or least_energy (docs/confidence.md).",
        ),
    ] = None,
    usd_per_hour: Annotated[
        float | None, typer.Option(help="Most that the recommendation may cost, where its rule asks for it.")
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Print reasons, figures, runner-ups and the front as well.")
    ] = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Search a study for the deployment to buy.

    Writes a run folder. Prints the recommended deployment with its cautions, its percentiles against the SLO, and what
    a cheaper, a surer and a faster one costs. Exits with 0 where a deployment meets the SLO, 99 where none does of
    those simulated on the whole trace (the nearest miss is then printed, term by term), 1 where none was: neither is
    then known.
    """
    if resume is not None and out is not None:
        raise typer.BadParameter("--resume goes on in its own folder; leave --out away")
    head_start.begin()
    from hisearch.cli import output

    place = place_of(workers, backend, scheduler, storage)
    if study is None and resume is None:
        study = choose_study()
    ref = study if study is not None else str(Path(str(resume)) / "study.yaml")
    kind = _kind(ref)
    if kind == "FleetStudy":
        from hisearch.cli.verbs.run_fleet import run_fleet

        of_one_model = {"--model": model, "--trace": trace, "--keep": keep, "--storage": storage}
        _refuse_for_fleet(of_one_model | {"--recommend": recommend, "--usd-per-hour": usd_per_hour})
        overrides = (*(settings or ()), *_recommendation_overrides(confidence, None, None))
        run_fleet(ref, overrides, resume, out, place, as_json, quiet)
        return
    chosen = (*(settings or ()), *place.settings, *_recommendation_overrides(confidence, recommend, usd_per_hour))
    with interruptible() as interrupts:
        resolved_study = _resolve_study(ref, kind, chosen, model, trace, keep, quiet)
        if resolved_study.resolved.study.asks_largest_rate:
            if resume is not None:
                raise typer.BadParameter(
                    "a search for the largest rate takes a minute, and is not resumed", param_hint="--resume"
                )
            run_largest([resolved_study], out, place.workers, as_json, quiet)
            return
        result = _search(resolved_study, resume, out, place, interrupts, quiet)
    _print_answer(result, verbose, as_json, quiet)
    if interrupts.exit_code is not None:
        output.note(how_to_resume(result.run_dir) if result.stopped == "interrupted" else "interrupted; all is written")
        raise typer.Exit(interrupts.exit_code)
    exit_without_answer(result)


def _print_answer(result: StudyResult, verbose: bool, as_json: bool, quiet: bool) -> None:
    """Print the answer, its notes and its warnings.

    Raises:
        OSError: it could not be written to the run's folder.
    """
    from hisearch.cli import output
    from hisearch.cli.views import run as run_view

    output.result(as_json, lambda: run_view.to_dict(result), lambda: run_view.show(result, verbose))
    for text in () if quiet else result.provenance["trace"].get("notes", ()):
        output.note(text)
    output.warn(run_view.warnings(result), quiet)
    if result.unwritten:
        again = how_to_resume(result.run_dir).partition("kept. ")[2]
        raise OSError(f"the answer could not be written: {result.unwritten}. Simulations are kept: {again}")


def _recommendation_overrides(confidence: float | None, recommend: str | None, usd_per_hour: float | None) -> list[str]:
    """Options of the command as overrides of study keys."""
    overrides = []
    if recommend is not None:
        overrides.append(f"spec.recommend={{rule: {recommend}}}")
    if usd_per_hour is not None:
        overrides.append(f"spec.recommend.usd_per_hour={usd_per_hour:g}")
    return overrides + ([f"spec.confidence.at_least={confidence:g}"] if confidence is not None else [])


def _search(
    resolved_study: Study, resume: Path | None, out: Path | None, place: Place, interrupts: Interrupts, quiet: bool
) -> StudyResult:
    """Run the study, or go on with it.

    Raises:
        ValueError: workers or database were lost; says how to go on.
    """
    from hisearch.api.run_folder import default_run_dir, has_ended
    from hisearch.cli import output
    from hisearch.search.evaluate.backends import BackendError
    from hisearch.search.records.storage import StorageError

    run_dir = resume or out or default_run_dir(resolved_study.name)
    if resume is not None and has_ended(resume) and not quiet:
        output.note(
            f"{resume} holds an answer: its report, recommended/ and tables are written anew; where another "
            "deployment is recommended now, the former report and scripts are kept beside them"
        )
    note_compilation(quiet)
    try:
        with progress_of(quiet) as progress:
            return resolved_study.run(
                place.workers,
                run_dir,
                resume is not None,
                progress,
                backend=place.backend,
                scheduler=place.scheduler,
                storage=place.storage,
                interrupts=interrupts,
            )
    except (BackendError, StorageError) as error:
        if not (run_dir / JOURNAL).is_file():
            raise
        raise ValueError(f"{error}; go on with: hisearch run --resume {shlex.quote(str(run_dir))}") from None


def _refuse_for_fleet(options: Mapping[str, object]) -> None:
    """Refuse options that a study of several models does not take."""
    used = [name for name, value in options.items() if value is not None]
    if used:
        raise typer.BadParameter(f"{', '.join(used)}: not for a study of several models (kind FleetStudy)")


def _resolve_study(
    ref: str,
    kind: str,
    settings: tuple[str, ...],
    model: str | None,
    trace: str | None,
    keep: Path | None,
    quiet: bool,
) -> Study:
    """The study to run: named, in the folder to resume, or made from an SLO."""
    from hisearch.api.studies.study import Study, load_study

    if kind == "SLO":
        if model is None or trace is None:
            raise typer.BadParameter(f"{ref} is an SLO: add --model and --trace", param_hint="STUDY_OR_SLO")
        return Study(_from_slo(ref, model, trace, settings, keep, quiet))
    if model is not None or trace is not None or keep is not None:
        raise typer.BadParameter(
            "--model, --trace and --keep go with an SLO; for a study use --set spec.model=… or spec.workload.trace=…"
        )
    return load_study(ref, settings)


def _kind(ref: str) -> str:
    """Whether ``ref`` leads to a study, to one of several models, or to an SLO.

    Raises:
        SpecError: it leads to none of them.
    """
    from hisearch.specs.documents.catalogue import Catalogue, is_path
    from hisearch.specs.documents.document import kind_of
    from hisearch.specs.errors import SpecError
    from hisearch.specs.studies.slo_phrase import is_phrase

    catalogue = Catalogue()
    if is_phrase(ref):
        return "SLO"
    if is_path(ref):
        path = catalogue.find_file(ref)
        kind = kind_of(path)
        if kind not in _RUN:
            message = f"expected a document of kind {_RUN_KINDS}, got {kind}"
            raise SpecError.at(message, path=path, key="kind")
        return kind
    catalogue_names = {kind: catalogue.names(kind) for kind in _RUN}
    for kind, names in catalogue_names.items():
        if ref in names:
            return kind
    raise catalogue.unknown(ref, _RUN_KINDS, [name for names in catalogue_names.values() for name in names])


def _from_slo(
    ref: str, model: str, trace: str, settings: tuple[str, ...], keep: Path | None, quiet: bool
) -> ResolvedStudy:
    """The study made from an SLO; notes the defaults filled in, and writes the study to ``keep``."""
    from hisearch.cli import output
    from hisearch.specs.documents.catalogue import is_path
    from hisearch.specs.documents.from_slo import study_from_slo
    from hisearch.specs.wording import counted

    resolved, text = study_from_slo(Path(ref) if is_path(ref) else ref, model, trace, overrides=settings)
    if keep is not None:
        with keep.open("x", encoding="utf-8") as file:
            file.write(text)
    if not quiet:
        study = resolved.study
        output.note(
            f"study {resolved.name} made from the SLO: space {resolved.space.name}, "
            f"objectives {', '.join(study.objectives)}, {counted(study.budget.simulations, 'simulation')} or "
            f"{study.budget.wall_s:g} s, load {study.workload.load:g}, seed {study.seed}; change any with --set, "
            f"{f'kept in {keep}' if keep is not None else 'keep it with --keep FILE'}"
        )
    return resolved
