"""A question without a document: ``hisearch.size(...)``, all that ``hisearch size`` does.

Example::

    result = hisearch.size("llama-3.1-8b", "ttft p95 < 1s, tpot p95 < 50ms", input=1000, output=200, rate=2)
    print(result.recommendation.reason)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from hisearch.api.studies.result import StudyResult
from hisearch.api.studies.study import Study
from hisearch.search.model.trial import Trial
from hisearch.specs.documents.from_question import study_from_question
from hisearch.specs.documents.question import (
    DEFAULT_ENGINES,
    DEFAULT_GPUS,
    DEFAULT_SPREAD,
    DEFAULT_THINK_S,
    Question,
    split_names,
)
from hisearch.specs.documents.question_classes import TrafficClass, parse_class


def size(
    model: str,
    slo: str,
    *,
    input: float | str,  # noqa: A002 - the question's own word
    output: float | str,
    thinking: float | str = "",
    rate: float | None = None,
    concurrency: int | None = None,
    burst: float = 1.0,
    turns: int = 1,
    shared: int = 0,
    think_s: float = DEFAULT_THINK_S,
    spread: float = DEFAULT_SPREAD,
    gpu: str | Sequence[str] = DEFAULT_GPUS,
    engine: str | Sequence[str] = DEFAULT_ENGINES,
    weights: str | Sequence[str] = (),
    kv: str | Sequence[str] = (),
    budget_usd: float | None = None,
    confidence: float | None = None,
    seed: int = 0,
    classes: Sequence[str | TrafficClass] = (),
    overrides: Iterable[str] = (),
    workers: int | None = None,
    run_dir: str | Path | None = None,
) -> StudyResult:
    """The cheapest deployment for a model, a rate, lengths and an SLO; with a run folder, as of a study.

    Args:
        model: a catalogue name, a Hugging Face id of the catalogue, or the path of a config.json.
        slo: a catalogue name, a path, or a phrase: ``"ttft p95 < 1s, tpot p95 < 50ms"``.
        input: prompt tokens that a request adds: their mean, ``"2000 exactly"``, ``"p50=1500,p99=8000"`` or
            ``"mean=1800,p99=6000"``.
        output: output tokens, likewise.
        thinking: tokens that a request makes ahead of them and its client does not see, likewise; "": none.
        rate: requests per second, of all turns.
        concurrency: instead of a rate: users with one request each at any time.
        burst: coefficient of variation of the gaps between arrivals; 1 for Poisson.
        turns: of a conversation, whose context grows.
        shared: tokens of a system prompt that all requests begin with.
        think_s: median seconds between an answer and the next turn.
        spread: standard deviation of ln(tokens), where a mean alone is given; 0: every request is alike.
        gpu: accelerators to try, by name or path.
        engine: engines to try.
        weights: formats of weights to try; the model's own where empty.
        kv: formats of KV to try; the usual one of the model where empty.
        budget_usd: most dollars per hour.
        confidence: recommend the cheapest that meets the SLO with at least this probability.
        seed: of everything random.
        classes: of requests, as phrases (``specs.documents.question_classes``):
            ``["chat: 80%", "batch: 20%; priority 1; input 8000"]``. Terms of the SLO may name their priority or tenant.
        overrides: ``key.path=value`` settings on the study.
        workers: threads; all cores where absent. The result does not depend on it.
        run_dir: the run folder; ``runs/<study>-<UTC time>`` where absent. Its ``study.yaml`` is the study that was run.

    Raises:
        SpecError: the question, or a file that it names, cannot be used; ``key`` is the argument.
        NothingFitsError: no deployment can be built.
    """
    question = Question(
        model=model,
        slo=slo,
        input=as_phrase(input),
        output=as_phrase(output),
        thinking=as_phrase(thinking),
        rate=rate,
        concurrency=concurrency,
        burst=burst,
        turns=turns,
        shared=shared,
        think_s=think_s,
        spread=spread,
        gpu=split_names(gpu),
        engine=split_names(engine),
        weights=split_names(weights),
        kv=split_names(kv),
        budget_usd=budget_usd,
        confidence=confidence,
        seed=seed,
        classes=tuple(parse_class(each) if isinstance(each, str) else each for each in classes),
    )
    return Study(study_from_question(question, overrides=overrides).resolved).run(workers, run_dir)


def as_phrase(tokens: float | str) -> str:
    """Token counts as a phrase."""
    return tokens if isinstance(tokens, str) else f"{tokens:.15g}"


def next_cheaper(result: StudyResult) -> Trial | None:
    """Of cheaper deployments than the recommended one, the nearest to the SLO that was simulated on the whole trace.

    One that meets it, though not likely enough, is nearest of all; the dearest of these.
    """
    from hisearch.search.model.trial import price_of
    from hisearch.search.select.recommend import nearest_miss

    if result.recommendation is None:
        return None
    best = result.recommendation.trial
    cheaper = [trial for trial in result.trials if trial.comparable and price_of(trial) < price_of(best)]
    feasible = [trial for trial in cheaper if trial.feasible]
    if feasible:
        return max(feasible, key=lambda trial: (price_of(trial), -trial.number))
    return nearest_miss(cheaper)
