"""Verbs on a run folder: ``report``, ``export``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hisearch.cli import options
from hisearch.cli.compilation import note_compilation

if TYPE_CHECKING:
    from hisearch.api.studies.result import StudyResult
    from hisearch.report.data.inputs import ReportInput
    from hisearch.search.model.trial import Trial


def report(
    run_dir: options.RunDir,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File to write; RUN_DIR/report.html where absent.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Write a run's report.html again, or so far.

    Of a run that goes on or was killed the report is marked as `so far`, and lacks what only the end knows; such a run
    is only read, and goes on undisturbed. Where a run that has ended has no closeup.json, as after an interrupt, the
    recommended deployment is looked at first.
    """
    from hisearch.api.run_folder import has_ended, replace_with
    from hisearch.api.studies.reporting import input_so_far
    from hisearch.cli import output
    from hisearch.report.pages.html import write_report
    from hisearch.report.words.templating import simulated_of

    note_compilation()
    ended = has_ended(run_dir)
    data, drift = _of_the_end(run_dir) if ended else (input_so_far(run_dir), ())
    target = out or run_dir / "report.html"
    replace_with(target, lambda path: write_report(data, path))
    at = data.so_far
    if as_json:
        so_far = None if at is None else {"simulations": at.simulations, "budget": at.budget, "stage": at.stage}
        output.print_json({"path": target, "so_far": so_far})
        return
    output.say(str(target))
    output.warn(drift)
    if at is not None:
        how_far = f"{simulated_of(at.simulations, at.budget)}, {at.stage}"
        output.note(f"the run has not ended: so far, {how_far}. If it was killed, go on with: {at.resume}")


def _of_the_end(run_dir: Path) -> tuple[ReportInput, tuple[str, ...]]:
    """Report input of a run that has ended, and what has changed since; a missing closeup is made first."""
    from hisearch.api.run_folder import CLOSEUP, write_text
    from hisearch.api.studies.stored_run import load_run

    result = load_run(run_dir)
    if result.closeup is None:
        result = result.with_closeup()
        if result.closeup is not None:
            write_text(run_dir / CLOSEUP, result.closeup.to_json())
    return result.report_input(), result.drift


def export(
    source: Annotated[
        str, typer.Argument(metavar="RUN_DIR|DEPLOYMENT", help="A run's folder; or a deployment, by path or name.")
    ],
    engine: Annotated[
        str | None,
        typer.Option(metavar="sglang|vllm|trtllm", help="The best deployment on this engine by the study's rule."),
    ] = None,
    trial: Annotated[int | None, typer.Option(min=0, help="A trial by its number instead, feasible or not.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder to write; RUN_DIR/recommended[-ENGINE] or trial-N where absent, of a deployment its name.",
        ),
    ] = None,
    settings: options.Setting = None,
    as_json: options.Json = False,
) -> None:
    """Write a recommendation, or a deployment, as launch scripts.

    For bare machines, Docker Compose, Kubernetes, llm-d, Dynamo, production-stack and AIBrix; of several pools each
    one's servers and the router that knows them. Of a run with benchmarks to check it. An earlier export's own files in
    the folder are replaced; where others are in the way, nothing is written.
    """
    options.check_choice("--engine", engine, ("sglang", "vllm", "trtllm"))
    if engine is not None and trial is not None:
        raise typer.BadParameter("give --engine or --trial, not both")
    run_dir = Path(source)
    if not run_dir.is_dir():
        if engine is not None or trial is not None:
            raise typer.BadParameter(f"--engine and --trial choose among a run's, and {source} is no folder")
        _export_document(source, out, settings or [], as_json=as_json)
        return
    if settings:
        raise typer.BadParameter("--set changes a deployment's document; a run's is exported as the run has it")
    from hisearch.api.studies.stored_run import load_run
    from hisearch.cli import output
    from hisearch.cli.views.terms import terms_to_dict

    note_compilation()
    result = load_run(run_dir)
    name = f"trial-{trial}" if trial is not None else "recommended" + (f"-{engine}" if engine else "")
    (chosen, chosen_by), folder = _chosen(result, engine, trial), out or run_dir / name
    files = result.export_trial(chosen, folder)
    status = result.status_of(chosen)
    if as_json:
        facts = {"folder": folder, "files": files, "trial": chosen.number, "title": status.title}
        facts |= {"chosen_by": chosen_by}
        facts |= {"slice_fraction": chosen.slice_fraction, "load": chosen.load}
        output.print_json({**facts, "feasible": chosen.feasible, "slo": terms_to_dict(chosen.slo)})
        return
    for path in files:
        output.say(str(path))
    output.warn(result.drift)
    if result.kept_in is not None:
        output.note(f"the run goes on, or was killed: this is what it had come to when it ended, in {result.kept_in}")
    best = result.recommendation
    if best is not None and best.trial.number != chosen.number:
        output.note(f"this is {_named(chosen)}; the run recommends {_named(best.trial)}")
    if engine is not None:
        output.note(chosen_by)
    if not (chosen.feasible and chosen.comparable):
        output.warn([f"{status.title}: {'; '.join(status.lines)}"])


def _export_document(source: str, out: Path | None, settings: list[str], *, as_json: bool) -> None:
    """Export a deployment's document, into a folder of its name where none is given."""
    from hisearch.api.export_document import export_document
    from hisearch.cli import output

    folder = out or Path(Path(source).stem)
    files = export_document(source, folder, settings=settings)
    if as_json:
        output.print_json({"folder": folder, "files": files})
        return
    for path in files:
        output.say(str(path))
    output.note("exported as its document has it: `hisearch simulate` says how it does on a workload")


def _named(trial: Trial) -> str:
    """A trial in words, with what it costs where it was simulated."""
    from hisearch.score.quantities import usd
    from hisearch.search.model.deployments import describe

    price = trial.metrics.get("usd_per_hour")
    cost = "" if price is None else f" at {usd(price)} per hour"
    return f"trial {trial.number}, {describe(trial.deployment)}{cost}"


def _chosen(result: StudyResult, engine: str | None, number: int | None) -> tuple[Trial, str]:
    """The trial of that number, or the best feasible one (on that engine), and by what it was chosen.

    Raises:
        ValueError: there is none.
    """
    if number is not None:
        return result.trial(number), f"trial {number}, as named"
    try:
        return result.choice_on(engine)
    except ValueError as error:
        raise ValueError(f"{result.run_dir}: {error}") from None
