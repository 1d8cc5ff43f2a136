"""A study made from a question in a few numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hisearch.specs.documents.catalogue import Catalogue, is_path
from hisearch.specs.documents.checkpoints import named_model
from hisearch.specs.documents.overrides import apply_overrides
from hisearch.specs.documents.question import THINK_P90, Question, engine_titles, refused
from hisearch.specs.documents.question_sample import Sample, mean_think_s
from hisearch.specs.documents.question_space import space_of
from hisearch.specs.documents.question_turns import Turns
from hisearch.specs.documents.resolve import resolve_study
from hisearch.specs.documents.resolved import ResolvedStudy, study_text
from hisearch.specs.errors import Problem, SpecError, UnknownReferenceError
from hisearch.specs.models.model import ModelSpec
from hisearch.specs.phrases import PhraseError
from hisearch.specs.source import text_source
from hisearch.specs.studies.slo import SloSpec
from hisearch.specs.studies.slo_phrase import is_phrase, parse_slo
from hisearch.specs.studies.study import CAPACITY, StudySpec, WorkloadRef
from hisearch.specs.wording import listed

#: Simulations of a question that is answered within seconds: of the search, and for how sure the answer is. A search
#: of 64 finds the price that one of 400 finds, in eight questions of one to three engines and five accelerators.
_SHORT_TRACE = {"simulations": 96, "draws": 64, "chance_constrained": 160, "search": 200}
_LONG_TRACE = {"simulations": 64, "draws": 48, "chance_constrained": 96, "search": 144}
#: Most requests of a short trace.
_SHORT = 5000

#: Simulations for what would change the answer.
WHAT_IF = 48

#: Wall time of the search, and of the checks of its answer: a net below the limits on simulations, which end both
#: within seconds. An answer that it ended says so.
MOST_SECONDS = 600

_WORKLOAD = "spec.workload.trace.generator"

#: Key of the made study -> the part of the question that set it.
_PARTS = {
    "spec.model": "model",
    "spec.slo": "slo",
    "spec.space.execution.accelerators": "gpu",
    "spec.space.execution.engines": "engine",
    "spec.space.execution.weight_dtypes": "weights",
    "spec.space.execution.kv_dtypes": "kv",
    "spec.limits.usd_per_hour": "budget_usd",
    "spec.confidence.at_least": "confidence",
    "spec.seed": "seed",
    f"{_WORKLOAD}.shared_prefixes": "shared",
    f"{_WORKLOAD}.first_input": "input",
    f"{_WORKLOAD}.output": "output",
    f"{_WORKLOAD}.thinking": "thinking",
    f"{_WORKLOAD}.arrivals": "rate",
    f"{_WORKLOAD}.classes": "classes",
}


@dataclass(frozen=True)
class Asked:
    """A question as a study.

    resolved: the study with all it names. text: its YAML, for keeping and editing; read from any folder. requests: how
    many are simulated, and why, as a sentence. caution: where they are too few, as a sentence; or "". prompts: how long
    they are where a request adds to what was said before; or "".
    """

    question: Question
    resolved: ResolvedStudy
    text: str
    requests: str
    caution: str = ""
    prompts: str = ""


def study_from_question(
    question: Question, *, overrides: Iterable[str] = (), catalogue: Catalogue | None = None
) -> Asked:
    """The study that answers a question.

    Args:
        question: the question.
        overrides: ``key.path=value`` settings on the resulting study.
        catalogue: where names are looked up; the working directory and what ships where None.

    Raises:
        QuestionError: a part of the question cannot be used; PhraseError: the SLO cannot be read;
            UnknownReferenceError: a name leads nowhere. Each has the part's name as key.
        SpecError: a file that is named, or an override, is wrong.
    """
    catalogue, settings = catalogue or Catalogue(), tuple(overrides)
    stated_model, model = named_model(question.model, catalogue)
    slo_ref, slo = _slo(question.slo, catalogue)
    _check_window(question, model.spec)
    sample = Sample.of(question, slo)
    turns = [Turns.of(part, model.spec.max_context_tokens) for part in question.parts]
    effort = _SHORT_TRACE if sample.requests <= _SHORT else _LONG_TRACE
    spec = {
        **stated_model,
        "workload": {"trace": {"generator": _generator(question, model.spec, sample, turns)}},
        "slo": slo_ref,
        "space": space_of(question, catalogue, model.spec),
        "objectives": [CAPACITY] if question.have is not None else _objectives(slo),
        "limits": _limits(question),
        "budget": {"simulations": effort["simulations"], "seconds": MOST_SECONDS},
        "confidence": {
            "at_least": question.confidence,
            "draws": effort["draws"],
            "candidate_draws": 0 if question.confidence is None else 8,
            "fresh_draws": effort["draws"],
            "what_if": WHAT_IF,
            "chance_constrained": effort["chance_constrained"],
            "search": effort["search"],
            "seconds": MOST_SECONDS,
        },
        "seed": question.seed,
    }
    name = f"size-{model.name}"
    description = f"{question.describe()}. {_tried(question)}"
    text = study_text(name, description, _without_none(spec))
    made = catalogue.root / f"{name}.yaml"
    try:
        resolved = resolve_study(apply_overrides(text_source(text, made), "Study", settings), settings, catalogue)
    except SpecError as error:
        raise type(error)(*(_by_part(problem, made) for problem in error.problems)) from None
    if settings:
        text = study_text(name, description, apply_overrides(text_source(text, made), "Study", settings).data["spec"])
    sample = sample.cut(question, resolved)
    return Asked(question, resolved, text, sample.sentence, sample.caution, _prompts(question, turns))


def _prompts(question: Question, turns: Sequence[Turns]) -> str:
    """How long prompts are where a request adds to what was said before, by class; or ""."""
    texts = [
        f"{name}{of_part.describe()}"
        for name, part, of_part in zip(_headings(question), question.parts, turns, strict=True)
        if part.turns > 1 or part.shared
    ]
    return "; ".join(texts)


def _headings(question: Question) -> list[str]:
    return [f"{each.name}: " for each in question.classes] or [""]


def _without_none(spec: dict[str, Any]) -> dict[str, Any]:
    """Without keys that have no value, one section deep."""
    sections = {
        key: {name: item for name, item in value.items() if item is not None} if isinstance(value, dict) else value
        for key, value in spec.items()
    }
    return {key: value for key, value in sections.items() if value is not None}


def _by_part(problem: Problem, made: Path) -> Problem:
    """A problem of the made study, located by the part of the question or its key; any other unchanged."""
    if problem.path != made:
        return problem
    if problem.setting:
        return replace(problem, path=None)
    part = next((part for key, part in _PARTS.items() if f"{problem.key}.".startswith(f"{key}.")), problem.key)
    return replace(problem, path=None, line=None, key=part)


def _slo(ref: str, catalogue: Catalogue) -> tuple[Any, SloSpec]:
    """What a study writes for the SLO, and the SLO."""
    try:
        if not is_phrase(ref):
            document = catalogue.get("SLO", ref)
            return (str(document.path) if is_path(ref) else ref), document.spec
        slo = parse_slo(ref)
    except PhraseError as error:
        raise PhraseError.at(error.message, key="slo") from None
    except UnknownReferenceError as error:
        hint = "" if is_path(ref) else "; or write a phrase such as 'ttft p95 < 1s, tpot p95 < 50ms'"
        raise UnknownReferenceError.at(f"{error.message}{hint}", key="slo") from None
    return slo.model_dump(mode="json", exclude_defaults=True), slo


def _check_window(question: Question, model: ModelSpec) -> None:
    """Refuse requests that are beyond the model's window on average.

    Raises:
        QuestionError: they are.
    """
    for name, part in zip(_headings(question), question.parts, strict=True):
        window, context = model.max_context_tokens, part.mean_context
        if context > window:
            field = "turns" if part.turns > 1 else "input"
            raise refused(
                "classes" if question.classes else field,
                f"{name}prompt and output of {'the last turn' if part.turns > 1 else 'a request'} have {context:,.0f} "
                f"tokens on average, more than the {window:,} of the model's window",
            )


def _generator(question: Question, model: ModelSpec, sample: Sample, turns: Sequence[Turns]) -> dict[str, Any]:
    generator: dict[str, Any] = {"requests": sample.requests, **_arrivals(question, turns), **_lengths(question)}
    if question.thinking_lengths is not None:
        tokens = question.thinking_lengths.model_dump(mode="json", exclude_defaults=True)
        generator["thinking"] = {"tokens": tokens, "share": 1.0}
    if question.turns > 1:
        generator["sessions"] = _sessions(question)
    talking = [part for part in question.parts if part.turns > 1 and part.think_s > 0 and part.rate is not None]
    if talking:
        # The trace begins in the middle of conversations, so that its rate is the one asked for throughout.
        generator["warm_up_s"] = float(max(math.ceil(2 * mean_think_s(each) * (each.turns - 1)) for each in talking))
    if question.shared:
        generator["shared_prefixes"] = [{"name": "system prompt", "tokens": question.shared, "share": 1.0}]
    if question.classes:
        generator["classes"] = _classes(question, turns)
    return generator | {"max_context_tokens": model.max_context_tokens}


def _lengths(question: Question) -> dict[str, Any]:
    lengths = (("first_input", question.input_lengths), ("output", question.output_lengths))
    return {key: of.model_dump(mode="json", exclude_defaults=True) for key, of in lengths}


def _sessions(question: Question) -> dict[str, Any]:
    """Conversations of a question with several turns, or of a class with a single one where others have several."""
    sessions: dict[str, Any] = {"continue_probability": [1.0], "max_turns": question.turns}
    if question.think_s > 0:
        sessions["think"] = {"p50_s": question.think_s, "p90_s": question.think_s * THINK_P90}
    return sessions


def _arrivals(question: Question, turns: Sequence[Turns]) -> dict[str, Any]:
    """Of the conversations at the question's rate, or of its users; {} where every class has a rate of its own."""
    if question.concurrency is not None:
        return {"arrivals": {"process": "closed_loop", "users": question.concurrency}}
    sessions = [
        (part.rate or 0.0) / of_part.mean
        for part, of_part, shared in zip(question.parts, turns, _at_question_rate(question), strict=True)
        if shared
    ]
    return {"arrivals": _process(sum(sessions), question.burst)} if sessions else {}


def _at_question_rate(question: Question) -> list[bool]:
    return [each.share is not None for each in question.classes] or [True]


def _process(sessions_rps: float, burst: float) -> dict[str, Any]:
    sessions = {"rate_rps": float(f"{sessions_rps:.6g}")}
    if burst == 1.0:
        return {"process": "poisson", **sessions}
    return {"process": "gamma", **sessions, "cv": burst}


def _classes(question: Question, turns: Sequence[Turns]) -> list[dict[str, Any]]:
    """Each class as a generator has it, whose shares are of conversations, not of requests."""
    weights = [
        share / of_part.mean if shared else 0.0
        for share, of_part, shared in zip(question.requests_shares, turns, _at_question_rate(question), strict=True)
    ]
    classes = []
    for each, part, of_part, weight in zip(question.classes, question.parts, turns, weights, strict=True):
        stated: dict[str, Any] = {"name": each.name}
        if each.share is not None:
            stated["share"] = weight / sum(weights)
        else:
            stated["arrivals"] = _process((part.rate or 0.0) / of_part.mean, part.burst)
        stated |= {"priority": each.priority, "tenants": list(each.tenants)}
        own = {"first_input": each.input, "output": each.output}
        stated |= {key: value for key, value in _lengths(part).items() if own[key] is not None}
        if part.turns != question.turns:
            stated["sessions"] = _sessions(part)
        classes.append(stated)
    return classes


def _objectives(slo: SloSpec) -> list[str]:
    """The latency that the SLO bounds, and the price."""
    spec = StudySpec(model="-", workload=WorkloadRef(trace="-"), slo="-", space="-").with_objectives_of(slo)
    return [spec.objectives[0], "usd_per_hour"]


def _limits(question: Question) -> dict[str, Any] | None:
    if question.have is not None:
        return {"accelerators": {"at_most": question.have[1]}}
    return {"usd_per_hour": {"at_most": question.budget_usd}} if question.budget_usd is not None else None


def _tried(question: Question) -> str:
    formats = "".join(
        f", {what} in {listed(named)}" for what, named in (("weights", question.weights), ("KV", question.kv)) if named
    )
    tiers = "and tiers of host memory" if question.offers_tiers else "without cache tiers"
    return f"Tried are {listed(question.gpu)} with {engine_titles(question.engine)}{formats}, {tiers}."
