"""``hisearch observe``: what running servers do."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hisearch.cli import options

if TYPE_CHECKING:
    from hisearch.api.observe import Observation

Token = Annotated[
    str | None,
    typer.Option("--token", metavar="TOKEN", envvar="HISEARCH_TOKEN", help="Sent as bearer token; never written."),
]
Headers = Annotated[
    list[str] | None, typer.Option("--header", metavar="NAME: VALUE", help="A further header; never written.")
]
Ca = Annotated[Path | None, typer.Option("--ca", metavar="FILE", help="Certificates to trust, of an own authority.")]
ModelName = Annotated[
    str | None, typer.Option("--model", metavar="NAME", help="Name or path of the Model; found by its name if absent.")
]
AcceleratorName = Annotated[
    str | None,
    typer.Option(
        "--accelerator", metavar="NAME", help="Name or path of the Accelerator; as the server tells if absent."
    ),
]


def observe(
    urls: Annotated[list[str], typer.Argument(metavar="URL…", help="Addresses of the engines: replicas of one model.")],
    seconds: Annotated[float, typer.Option("--seconds", min=1, help="How long to watch.")] = 60.0,
    interval: Annotated[float, typer.Option("--interval", min=0.2, help="Seconds between two looks.")] = 1.0,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="Folder to write.")] = Path("observed"),
    model: ModelName = None,
    accelerator: AcceleratorName = None,
    profile: Annotated[str, typer.Option("--profile", help="LatencyProfile of the deployment written.")] = "auto",
    arguments: Annotated[
        Path | None,
        typer.Option("--arguments", metavar="FILE", help="Launch arguments, for settings that servers do not tell."),
    ] = None,
    logs: Annotated[
        Path | None, typer.Option("--logs", metavar="DIR", help="Folder of vllm_step_log: its trace and its steps.")
    ] = None,
    token: Token = None,
    headers: Headers = None,
    ca: Ca = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Watch running servers, and write what a study needs.

    Asks vLLM, SGLang or TensorRT-LLM by GET alone for settings and figures. Writes observation.json, deployment.yaml,
    a trace or a workload fitted to histograms, and steps where they are told. Says how the servers fare, and what is
    odd in their settings. Of requests numbers alone are kept. Ctrl-C ends it early, and keeps what was seen.
    """
    from hisearch.api.observe import OBSERVATION, observe_servers
    from hisearch.cli import output
    from hisearch.cli.verbs.running import progress_of

    if (out / OBSERVATION).exists():
        raise FileExistsError(f"{out / OBSERVATION}: exists already; it is not overwritten")
    with progress_of(quiet) as progress:
        if progress is not None:
            progress.started("watching, seconds", round(seconds))
        passed = 0

        def report(passed_s: float) -> None:
            nonlocal passed
            if progress is not None and int(passed_s) > passed:
                progress.advanced(int(passed_s) - passed)
                passed = int(passed_s)

        observation = observe_servers(
            urls, seconds=seconds, interval_s=interval, model=model, accelerator=accelerator, profile=profile,
            arguments=arguments, logs=logs, token=token, headers=headers or (), ca=ca, report=report,
        )  # fmt: skip
        if progress is not None:
            progress.finished()
    written = observation.write(out)
    output.result(as_json, observation.to_dict, lambda: _show(observation))
    if not as_json:
        output.say()
        output.say(f"Written: {', '.join(str(path) for path in written)}")


def _show(observation: Observation) -> None:
    from hisearch.cli import output

    facts = observation.facts()
    output.say(f"{facts['servers']}, model {facts['model']}", bold=True)
    for title, sentences in (
        ("How it fares", observation.fares),
        ("What is odd", observation.odd or ("Nothing in its settings.",)),
        ("Notes", observation.notes),
    ):
        if sentences:
            output.heading(title)
            for text in sentences:
                output.say(f"- {text if text.endswith('.') else text + '.'}")
