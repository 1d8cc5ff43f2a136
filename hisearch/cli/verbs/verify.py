"""``hisearch verify``: compares a run, or a deployment, with measurements."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hisearch.cli import options
from hisearch.cli.compilation import note_compilation
from hisearch.cli.errors import DISAGREES, MISSES_SLO
from hisearch.specs.wording import format_percent

if TYPE_CHECKING:
    from hisearch.api.verification import Verification


def verify(
    target: Annotated[
        str,
        typer.Argument(metavar="RUN_DIR|DEPLOYMENT", help="Folder of a finished run, or a deployment by name or file."),
    ],
    measured: Annotated[
        list[Path],
        typer.Option(
            "--measured",
            metavar="FILE",
            help="Results of vllm bench serve, sglang.bench_serving, guidellm, AIPerf, inference-perf or k6; may be "
            "given more than once.",
        ),
    ],
    trial: Annotated[
        int | None,
        typer.Option(min=0, help="Of a run: the trial that was measured; the recommendation where absent."),
    ] = None,
    trace: Annotated[
        str | None,
        typer.Option(
            help="Of a deployment: the workload or trace file that was sent; where absent, the requests in FILE."
        ),
    ] = None,
    settings: options.Setting = None,
    predict_with: Annotated[
        Path | None,
        typer.Option(
            "--predict-with",
            metavar="PROFILE",
            help="A latency profile to predict with, such as an earlier --profile; the run's or deployment's own where "
            "absent.",
        ),
    ] = None,
    profile: Annotated[
        Path | None, typer.Option("--profile", metavar="OUT.yaml", help="Write the recalibrated latency profile here.")
    ] = None,
    seed: options.Seed = 0,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Hold a run, or any deployment, against measurements of it.

    Lays what was measured beside what was predicted. The measured requests are simulated again, each term of the model
    corrected in turn; the smallest correction that explains the difference is named, and offered as a latency profile.
    Of a run it says whether the recommendation still meets the SLO under that correction. Of a study of several models
    name the run of one of them, RUN_DIR/models/NAME. Exits with 98 where measured and predicted differ by more than the
    profile's stated error, with 97 where the measured trial misses the SLO under the correction.
    """
    if profile is not None and profile.exists():
        raise FileExistsError(f"{profile}: exists already; it is not overwritten")
    from hisearch.api.verify import verify_deployment, verify_run
    from hisearch.cli import output

    options.check_places(profile)
    of_run = Path(target).is_dir()
    _check_options(of_run, trial=trial, trace=trace, settings=settings)
    note_compilation(quiet)
    if of_run:
        verification = verify_run(target, measured, trial=trial, profile=predict_with)
    else:
        chosen = [f"spec.profile={predict_with}"] if predict_with is not None else []
        verification = verify_deployment(
            target, measured, trace=trace, overrides=[*(settings or ()), *chosen], seed=seed
        )
    written = verification.write_profile(profile) if profile is not None and verification.profiles else []
    output.result(
        as_json,
        lambda: verification.to_dict() | {"profile_path": written[0] if written else None},
        lambda: _show(verification, profile),
    )
    standing = verification.standing
    if standing is not None and standing.stands is False:
        raise typer.Exit(MISSES_SLO)
    if not verification.agrees:
        raise typer.Exit(DISAGREES)


def _check_options(of_run: bool, *, trial: int | None, trace: str | None, settings: list[str] | None) -> None:
    """Refuse options of the other kind of target."""
    if of_run and trace is not None:
        raise typer.BadParameter("a run has its own workload; give a deployment with --trace", param_hint="--trace")
    if of_run and settings:
        raise typer.BadParameter("settings are for a deployment, such as the run's exported one", param_hint="--set")
    if not of_run and trial is not None:
        raise typer.BadParameter("a deployment has no trials; expected the folder of a run", param_hint="--trial")


def _show(verification: Verification, profile: Path | None) -> None:
    from hisearch.cli import output

    for measurement in verification.measurements:
        failed = f", {measurement.failed} of them failed" if measurement.failed else ""
        output.heading(f"{measurement.source}: {measurement.tool}, {measurement.requests:,} requests{failed}")
        for note in (measurement.pacing, *measurement.notes):
            output.say(f"{note[0].upper()}{note[1:]}.")
        rows = [
            (row.figure, _text(row.figure, row.measured), _text(row.figure, row.predicted),
             format_percent(row.error, 1, signed=True), _text(row.figure, row.corrected),
             format_percent(row.corrected_error, 1, signed=True))
            for row in measurement.rows
        ]  # fmt: skip
        output.table(("figure", "measured", "predicted", "error", "corrected", "error"), rows, numbers=(1, 2, 3, 4, 5))
    diagnosis = verification.diagnosis
    output.heading("What is off")
    left = [verification.unexplained] if verification.unexplained is not None else []
    for text in [*verification.findings, *left] or ["Nothing that is worth a correction"]:
        output.say(f"- {text}.")
    for text in verification.overloads:
        output.say(f"- {text}.")
    if diagnosis.alternatives:
        alternatives = " or ".join(term.meaning for term in diagnosis.alternatives)
        output.say(f"  As well explained by {alternatives} alone: these requests cannot tell them apart.")
    output.say(
        f"Difference of TTFT, TPOT and E2E, root mean square: {format_percent(diagnosis.error_before, 1)}; the "
        f"profile states {format_percent(verification.stated_error, 1)}. After the "
        f"correction: {format_percent(diagnosis.error_after, 1)}."
    )
    if diagnosis.steps_before is not None and diagnosis.steps_after is not None:
        output.say(
            "Step times among neighbours, which no queue disturbs: "
            f"{format_percent(diagnosis.steps_before, 1)} from the model's, "
            f"{format_percent(diagnosis.steps_after, 1)} after the correction."
        )
    if verification.cross_check is not None:
        check = verification.cross_check
        output.say(
            f"Cross-checked ({check.how}): {format_percent(check.error_before, 1)} before, "
            f"{format_percent(check.error_after, 1)} after."
        )
    output.heading("Each term alone")
    output.records(
        [
            {
                "term": term.meaning,
                "correction": _alone(term.name, term.value),
                "difference left": format_percent(term.error, 1),
                "with step times": format_percent(term.distance, 1),
            }
            for term in diagnosis.alone
        ]
    )
    _show_standing(verification)
    if not verification.profiles:
        output.say(f"No recalibrated profile: {_no_profile(verification)}.")
    elif profile is not None:
        output.say(f"Recalibrated profile: {profile}")
    else:
        output.say(
            "Write the recalibrated profile with --profile OUT.yaml; name it as profile of a search space, or simulate "
            "with --set spec.profile=OUT.yaml."
        )


def _show_standing(verification: Verification) -> None:
    """Whether the profile and the recommendation still hold."""
    from hisearch.cli import output

    holds = "holds" if verification.agrees else "does not hold"
    output.heading("Does it still hold")
    output.say(
        f"- The latency profile {verification.profile} {holds}: it states an error of "
        f"{format_percent(verification.stated_error, 1)}, and is off by "
        f"{format_percent(verification.diagnosis.error_before, 1)}."
    )
    standing = verification.standing
    if standing is not None:
        verdict = {True: "stands", False: "does not stand", None: "may stand or not"}[standing.stands]
        output.say(
            f"- Trial {standing.trial} {verdict}. Under the correction, on the study's workload: {standing.text}."
        )


def _no_profile(verification: Verification) -> str:
    """Why none is offered."""
    if verification.diagnosis.terms:
        return "what is off is no part of one"
    if verification.unexplained is not None:
        return "no correction explains the difference"
    return "nothing that a latency profile holds is off"


def _text(figure: str, value: float) -> str:
    return f"{1e3 * value:,.4g} ms" if figure.endswith("_s") and "per_s" not in figure else f"{value:,.4g} /s"


def _alone(name: str, value: float) -> str:
    from hisearch.verify.findings import SHARES

    if name == "front_end_s":
        return f"{1e3 * value:+.3g} ms"
    return format_percent(value) if name in SHARES else f"x {value:.3g}"
