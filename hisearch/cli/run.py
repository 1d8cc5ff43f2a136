"""``hisearch run``: a study, or one made from an SLO."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hisearch.cli import options
from hisearch.cli.errors import INTERRUPTED, NOTHING_FEASIBLE

if TYPE_CHECKING:
    from hisearch.api.study import Study
    from hisearch.search.progress import Progress
    from hisearch.specs.resolved import ResolvedStudy


def run(
    study: Annotated[
        str | None,
        typer.Argument(metavar="STUDY_OR_SLO", help="A study, or an SLO together with --model and --trace."),
    ] = None,
    settings: options.Setting = None,
    model: Annotated[str | None, typer.Option(help="With an SLO: the model.")] = None,
    trace: Annotated[str | None, typer.Option(help="With an SLO: the workload or trace file.")] = None,
    keep: Annotated[
        Path | None, typer.Option(metavar="FILE", help="With an SLO: write the study made from it to FILE.")
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Threads; all cores where absent.")] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Run folder; runs/STUDY-TIME where absent.")] = None,
    resume: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Go on with the run in DIR; STUDY_OR_SLO may then be left out."),
    ] = None,
    confidence: Annotated[
        float | None,
        typer.Option(
            metavar="P",
            help="Recommend the cheapest that meets the SLO with at least this probability, 0 to 1; exit with 99 where "
            "none has it.",
        ),
    ] = None,
    recommend: Annotated[
        str | None,
        typer.Option(
            metavar="RULE", help="cheapest, best_value, lowest_latency or most_headroom (docs/confidence.md)."
        ),
    ] = None,
    usd_per_hour: Annotated[
        float | None, typer.Option(help="Most that the recommendation may cost, where its rule asks for it.")
    ] = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Search a study for the deployment to buy.

    Writes a run folder. Prints the recommended deployment with its percentiles against the SLO, the runner-ups and
    the front. Exits with 0 where a deployment meets the SLO, 99 where none does of those simulated on the whole trace
    (the nearest miss is then printed, term by term), 1 where none was: neither is then known.
    """
    if resume is not None and out is not None:
        raise typer.BadParameter("--resume goes on in its own folder; leave --out away")
    from hisearch.api.run_folder import default_run_dir
    from hisearch.cli import output, run_view

    chosen = (*(settings or ()), *_chosen(confidence, recommend, usd_per_hour))
    question = _question(study, chosen, model, trace, keep, resume, quiet)
    run_dir = resume or out or default_run_dir(question.name)
    if not quiet:
        output.note_compilation(question.variants)
    try:
        with _progress(quiet) as progress:
            result = question.run(workers, run_dir, resume is not None, progress)
    except KeyboardInterrupt:
        output.note(_how_to_resume(run_dir))
        raise typer.Exit(INTERRUPTED) from None
    if as_json:
        output.print_json(run_view.to_dict(result))
    else:
        run_view.show(result)
    if not quiet:
        output.warn(run_view.warnings(result))
    if result.stopped == "interrupted":
        output.note(_how_to_resume(run_dir))
        raise typer.Exit(INTERRUPTED)
    if result.failure is not None:
        if not result.failure.examined:
            raise ValueError(f"{result.failure.text} {result.caution}")
        raise typer.Exit(NOTHING_FEASIBLE)
    if result.unsure:
        raise typer.Exit(NOTHING_FEASIBLE)


def _chosen(confidence: float | None, recommend: str | None, usd_per_hour: float | None) -> list[str]:
    """The options that stand for keys of a study, as settings."""
    found = []
    if recommend is not None:
        found.append(f"spec.recommend={{rule: {recommend}}}")
    if usd_per_hour is not None:
        found.append(f"spec.recommend.usd_per_hour={usd_per_hour:g}")
    return found + ([f"spec.confidence.at_least={confidence:g}"] if confidence is not None else [])


def _question(
    ref: str | None,
    settings: tuple[str, ...],
    model: str | None,
    trace: str | None,
    keep: Path | None,
    resume: Path | None,
    quiet: bool,
) -> Study:
    """The study to run: named, in the folder to resume, or made from an SLO."""
    from hisearch.api.study import Study, load_study

    if ref is None:
        if resume is None:
            raise typer.BadParameter("name a study or an SLO, or a folder to --resume", param_hint="STUDY_OR_SLO")
        ref = str(resume / "study.yaml")
    if _kind(ref) == "SLO":
        if model is None or trace is None:
            raise typer.BadParameter(f"{ref} is an SLO: add --model and --trace", param_hint="STUDY_OR_SLO")
        return Study(_from_slo(ref, model, trace, settings, keep, quiet))
    if model is not None or trace is not None or keep is not None:
        message = (
            "--model, --trace and --keep go with an SLO; for a study use --set spec.model=… or spec.workload.trace=…"
        )
        raise typer.BadParameter(message)
    return load_study(ref, settings)


def _kind(ref: str) -> str:
    """Whether ``ref`` leads to a study or to an SLO.

    Raises:
        SpecError: it leads to neither.
    """
    from hisearch.specs.catalogue import Catalogue, is_path
    from hisearch.specs.document import kind_of
    from hisearch.specs.errors import SpecError

    catalogue = Catalogue()
    if is_path(ref):
        path = catalogue.find_file(ref)
        kind = kind_of(path)
        if kind not in {"Study", "SLO"}:
            raise SpecError.at(f"expected a document of kind Study or SLO, got {kind}", path=path, key="kind")
        return kind
    studies, slos = catalogue.names("Study"), catalogue.names("SLO")
    if ref in studies or ref in slos:
        return "Study" if ref in studies else "SLO"
    raise catalogue.unknown(ref, "Study or SLO", [*studies, *slos])


def _from_slo(
    ref: str, model: str, trace: str, settings: tuple[str, ...], keep: Path | None, quiet: bool
) -> ResolvedStudy:
    """The study made from an SLO; what was filled in is said, and the study written to ``keep``."""
    from hisearch.cli import output
    from hisearch.specs.catalogue import is_path
    from hisearch.specs.from_slo import study_from_slo
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


def _how_to_resume(run_dir: Path) -> str:
    from hisearch.api.run_folder import JOURNAL

    if not (run_dir / JOURNAL).is_file():
        return "interrupted before the first simulation"
    return f"interrupted; what had finished is kept. Go on with: hisearch run --resume {run_dir}"


@contextlib.contextmanager
def _progress(quiet: bool) -> Iterator[Progress | None]:
    """Bars on a terminal, lines elsewhere, nothing if quiet."""
    from hisearch.search.progress import BarProgress, PlainProgress

    if quiet:
        yield None
    elif sys.stderr.isatty():
        with BarProgress() as bars:
            yield bars
    else:
        yield PlainProgress()
