"""``hisearch size``: which deployment serves a model at a rate, within an SLO; a question without a document."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hisearch.cli import options
from hisearch.cli.compilation import note_compilation
from hisearch.cli.verbs.largest import run_largest
from hisearch.cli.verbs.running import exit_without_answer, how_to_resume, interruptible, progress_of
from hisearch.kernels.fleet import head_start

if TYPE_CHECKING:
    from hisearch.api.studies.result import StudyResult
    from hisearch.search.records.interrupts import Interrupts
    from hisearch.specs.documents.from_question import Asked

#: Requests per second of the workload whose load is raised where the largest rate is asked for.
_ANY_RATE = 1.0

#: Part of a question -> its option, where they are not called alike.
_OPTIONS = {"think_s": "--think", "budget_usd": "--budget-usd", "classes": "--class"}


def size(
    model: Annotated[
        str, typer.Option(help="A catalogue name, a Hugging Face id of the catalogue, or the path of a config.json.")
    ],
    slo: Annotated[
        str,
        typer.Option(
            metavar="SLO", help='A phrase such as "ttft p95 < 1s, tpot p95 < 50ms, rejected < 1%", a name or a path.'
        ),
    ],
    input_: Annotated[
        str,
        typer.Option(
            "--input",
            metavar="TOKENS",
            help='Prompt tokens that a request adds: their mean, "2000 exactly", "p50=1500,p99=8000" or '
            '"mean=1800,p99=6000".',
        ),
    ],
    output: Annotated[str, typer.Option(metavar="TOKENS", help="Output tokens of a request, likewise.")],
    thinking: Annotated[
        str,
        typer.Option(
            metavar="TOKENS",
            help="Thinking tokens that a request makes ahead of its output, likewise; none where absent. Clients do "
            'not see them: bound the wait for what they see by "ttfo p95 < 8s".',
        ),
    ] = "",
    rate: Annotated[
        float | None, typer.Option(metavar="RPS", help="Requests per second, of all turns of all conversations.")
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option(metavar="USERS", help="Instead of --rate: users with one request each at any time.")
    ] = None,
    turns: Annotated[int, typer.Option(help="Turns of a conversation; the context grows with each.")] = 1,
    shared: Annotated[
        int, typer.Option(metavar="TOKENS", help="System prompt that all requests begin with, before --input.")
    ] = 0,
    think: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS", help="Median time between an answer and the next turn; 10 where absent, 0 for at once."
        ),
    ] = None,
    spread: Annotated[
        float | None,
        typer.Option(
            "--spread",
            "--sigma",
            metavar="SIGMA",
            help="Of lengths given by a mean: standard deviation of ln(tokens); 0.7 where absent, 0 for all alike.",
        ),
    ] = None,
    burst: Annotated[
        float, typer.Option(metavar="CV", help="Coefficient of variation of the gaps between arrivals; 1 is Poisson.")
    ] = 1.0,
    classes: Annotated[
        list[str] | None,
        typer.Option(
            "--class",
            metavar="CLASS",
            help="Of requests; repeat it. A name, its share of the rate or a rate of its own, and what it has of its "
            'own: "batch: 20%; priority 1; input 8000", "agents: rate 2; tenants 3,4; output 500; turns 4; burst 2". '
            "Terms of the SLO may be of a class: for priority 1, for tenant 3.",
        ),
    ] = None,
    gpu: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME,…", help="Accelerators to try (h100: h100-sxm); five common ones where absent."),
    ] = None,
    engine: Annotated[
        list[str] | None, typer.Option(metavar="NAME,…", help="vllm, sglang, trtllm; vllm where absent.")
    ] = None,
    weights: Annotated[
        list[str] | None,
        typer.Option(
            "--weights",
            "--quant",
            metavar="FORMAT,…",
            help="Formats of weights to try, such as bf16,fp8; the model's own where absent.",
        ),
    ] = None,
    kv: Annotated[
        list[str] | None,
        typer.Option(metavar="FORMAT,…", help="Formats of KV to try, such as bf16,fp8; the usual one where absent."),
    ] = None,
    have: Annotated[
        str | None,
        typer.Option(
            metavar="NAME:NUMBER,…",
            help="Instead of --rate: the accelerators that are there, such as h200:8. Finds the largest rate that they "
            "carry with 90 %, and its settings.",
        ),
    ] = None,
    budget_usd: Annotated[
        float | None, typer.Option(metavar="USD", help="Most that the deployment may cost, dollars per hour.")
    ] = None,
    confidence: Annotated[
        float | None,
        typer.Option(
            metavar="P",
            help="Recommend the cheapest that meets the SLO with at least this probability, 0 to 1, and exit with 99 "
            "where none has it; with --have, the rate that holds with it. 0.9 where absent.",
        ),
    ] = None,
    seed: options.Seed = 0,
    settings: options.Setting = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Run folder; runs/size-MODEL-TIME where absent.")
    ] = None,
    keep: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the study that is run to FILE too.")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Threads; all cores where absent.")] = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Size a service: the cheapest deployment for a rate and an SLO.

    Needs no study file: makes a study of the question, and runs it. Answers in 25 lines: what to buy, its settings
    and price, the SLO term by term, headroom, what holds it back, the next cheaper one. The run folder holds the
    study and the report. With --have: the largest rate that the accelerators carry with 90 %, the edge as simulated,
    what binds it, latencies at other rates, how far simpler settings fall short, and what more would bring. Exit codes
    are those of run: 99 where nothing meets the SLO, with the nearest miss.
    """
    head_start.begin()
    from hisearch.specs.documents.from_question import study_from_question
    from hisearch.specs.documents.question import (
        DEFAULT_ENGINES,
        DEFAULT_GPUS,
        DEFAULT_SPREAD,
        DEFAULT_THINK_S,
        Question,
        parse_have,
        refused,
        split_names,
    )
    from hisearch.specs.documents.question_classes import parse_class

    options.check_places(keep)
    with _named_by_option("" if have is None else "have"):
        kinds = parse_have(have) if have is not None else ()
        if kinds and (rate is not None or gpu is not None or budget_usd is not None):
            raise refused("have", "stands in place of --rate, --gpu and --budget-usd; leave them out")
        question = Question(
            model=model,
            slo=slo,
            input=input_,
            output=output,
            thinking=thinking,
            rate=_ANY_RATE if kinds else rate,
            concurrency=concurrency,
            burst=burst,
            turns=turns,
            shared=shared,
            think_s=DEFAULT_THINK_S if think is None else think,
            spread=DEFAULT_SPREAD if spread is None else spread,
            gpu=DEFAULT_GPUS if gpu is None else split_names(gpu),
            engine=DEFAULT_ENGINES if engine is None else split_names(engine),
            weights=split_names(weights),
            kv=split_names(kv),
            budget_usd=budget_usd,
            confidence=confidence,
            seed=seed,
            classes=tuple(parse_class(each) for each in classes or ()),
            have=kinds[0] if kinds else None,
        )
        asked = study_from_question(question, overrides=tuple(settings or ()))
        asked_of = [
            study_from_question(replace(question, have=kind, gpu=kind[:1]), overrides=tuple(settings or ()))
            for kind in kinds
        ]
    if kinds:
        from hisearch.api.studies.study import Study

        run_largest([Study(each.resolved) for each in asked_of], out, workers, as_json, quiet)
        return
    if keep is not None:
        with keep.open("x", encoding="utf-8") as file:
            file.write(asked.text)
    _answer(asked, out, workers, as_json, quiet)


def _answer(asked: Asked, out: Path | None, workers: int | None, as_json: bool, quiet: bool) -> None:
    """Run the study of the question, print its answer, and exit as it came out."""
    from hisearch.cli import output
    from hisearch.cli.views import size as size_view

    with interruptible() as interrupts:
        result = _run(asked, out, workers, interrupts, quiet)
    output.result(as_json, lambda: size_view.to_dict(result, asked), lambda: size_view.show(result, asked))
    output.warn(result.report_input().provenance.warnings, quiet)
    if interrupts.exit_code is not None:
        output.note(how_to_resume(result.run_dir))
        raise typer.Exit(interrupts.exit_code)
    exit_without_answer(result)


@contextmanager
def _named_by_option(gpus: str) -> Iterator[None]:
    """Errors by option: usage errors, except names that lead nowhere and files that are wrong.

    gpus: the option that named the accelerators where it is not --gpu; or "".
    """
    from hisearch.specs.documents.question import QuestionError
    from hisearch.specs.errors import SpecError
    from hisearch.specs.phrases import PhraseError

    try:
        yield
    except (QuestionError, PhraseError) as error:
        raise typer.BadParameter(error.message, param_hint=_option(error.key, gpus)) from None
    except SpecError as error:
        raise SpecError(
            *(
                problem if problem.path or problem.setting else replace(problem, key=_option(problem.key, gpus))
                for problem in error.problems
            )
        ) from None


def _option(part: str, gpus: str = "") -> str:
    """The option of a part of the question; a key of the study stays."""
    part = gpus if gpus and part == "gpu" else part
    return part if "." in part else _OPTIONS.get(part, f"--{part}")


def _run(asked: Asked, out: Path | None, workers: int | None, interrupts: Interrupts, quiet: bool) -> StudyResult:
    from hisearch.api.studies.study import Study

    note_compilation(quiet)
    with progress_of(quiet) as progress:
        return Study(asked.resolved).run(workers, out, progress=progress, interrupts=interrupts)
