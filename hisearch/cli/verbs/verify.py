"""``hisearch verify``: compares a run with measurements of its deployment."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hisearch.cli import options
from hisearch.cli.compilation import note_compilation
from hisearch.cli.errors import DISAGREES
from hisearch.specs.wording import format_percent

if TYPE_CHECKING:
    from hisearch.api.verify import Verification


def verify(
    run_dir: options.RunDir,
    measured: Annotated[
        list[Path],
        typer.Option(
            "--measured",
            metavar="FILE",
            help="Output of guidellm, sglang.bench_serving or vllm bench serve; may be given more than once.",
        ),
    ],
    trial: Annotated[
        int | None, typer.Option(min=0, help="The trial that was measured; the recommendation where absent.")
    ] = None,
    profile: Annotated[
        Path | None, typer.Option("--profile", metavar="OUT.yaml", help="Write the recalibrated latency profile here.")
    ] = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Hold a run against measurements of its deployment.

    Lays what was measured beside what was predicted. The measured requests are simulated again, each term of the model
    corrected in turn; the smallest correction that explains the difference is named, and offered as a latency profile.
    Of a study of several models name the run of one of them, RUN_DIR/models/NAME. Exits with 98 where measured and
    predicted differ by more than the profile's stated error.
    """
    if profile is not None and profile.exists():
        raise FileExistsError(f"{profile}: exists already; it is not overwritten")
    from hisearch.api.verify import verify_run
    from hisearch.cli import output

    options.check_places(profile)
    note_compilation(quiet)
    verification = verify_run(run_dir, measured, trial=trial)
    written = verification.write_profile(profile) if profile is not None and verification.profiles else []
    output.result(
        as_json,
        lambda: verification.to_dict() | {"profile_path": written[0] if written else None},
        lambda: _show(verification, profile),
    )
    if not verification.agrees:
        raise typer.Exit(DISAGREES)


def _show(verification: Verification, profile: Path | None) -> None:
    from hisearch.cli import output

    for measurement in verification.measurements:
        failed = f", {measurement.failed} of them failed" if measurement.failed else ""
        output.heading(f"{measurement.source}: {measurement.tool}, {measurement.requests:,} requests{failed}")
        rows = [
            (row.figure, _text(row.figure, row.measured), _text(row.figure, row.predicted),
             format_percent(row.error, 1, signed=True), _text(row.figure, row.corrected),
             format_percent(row.corrected_error, 1, signed=True))
            for row in measurement.rows
        ]  # fmt: skip
        output.table(("figure", "measured", "predicted", "error", "corrected", "error"), rows, numbers=(1, 2, 3, 4, 5))
    diagnosis = verification.diagnosis
    output.heading("What is off")
    for text in verification.findings or ["Nothing that is worth a correction."]:
        output.say(f"- {text}.".replace("..", "."))
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
    if not verification.profiles:
        output.say("No recalibrated profile: nothing that a latency profile holds is off.")
    elif profile is not None:
        output.say(f"Recalibrated profile: {profile}")
    else:
        output.say(
            "Write the recalibrated profile with --profile OUT.yaml; name it as profile of a search space, or simulate "
            "with --set spec.profile=OUT.yaml."
        )


def _text(figure: str, value: float) -> str:
    return f"{1e3 * value:,.4g} ms" if figure.endswith("_s") and "per_s" not in figure else f"{value:,.4g} /s"


def _alone(name: str, value: float) -> str:
    if name == "front_end_s":
        return f"{1e3 * value:+.3g} ms"
    return format_percent(value) if name == "hits_lost" else f"x {value:.3g}"
