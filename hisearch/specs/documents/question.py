"""A question in a few numbers: which deployment serves this model at this rate, within this SLO?"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import get_args

from hisearch.specs.base import ENGINE_TITLES, MAX_SEED, DType, EngineName
from hisearch.specs.documents.question_classes import TrafficClass
from hisearch.specs.errors import SpecError
from hisearch.specs.phrases import PhraseError
from hisearch.specs.wording import listed, per_second, unknown
from hisearch.specs.workloads.distributions import LengthSpec
from hisearch.specs.workloads.length_phrase import mean_tokens, parse_lengths

#: Accelerators that are tried where none is named: those that clouds rent most, with fitted step times.
DEFAULT_GPUS = ("a100-80gb", "b200", "h100-sxm", "h200", "l40s")

#: What is meant by a name that several accelerators share: the variant that clouds rent most. The answer names it.
USUAL = {"a100": "a100-80gb", "h100": "h100-sxm"}

#: Engine where none is named.
DEFAULT_ENGINES: tuple[EngineName, ...] = ("vllm",)

#: Standard deviation of ln(tokens) where none is given. Public chat traces have 0.8 to 1.2, traffic of one application
#: 0.3 to 0.7. At 0.7 one request in a hundred has four times the mean.
DEFAULT_SPREAD = 0.7
MOST_SPREAD = 3.0

#: Median seconds between an answer and the next turn where none is given; the 90th percentile is three times as long.
DEFAULT_THINK_S = 10.0
THINK_P90 = 3.0

#: Most requests per second, users, turns and tokens that are taken for a question and no slip of the keyboard.
_MOST_RATE, _MOST_USERS, _MOST_TURNS, _MOST_TOKENS = 1e5, 100_000, 1000, 10_000_000


class QuestionError(SpecError):
    """A part of a question that cannot be used; ``key`` is its name in ``Question``."""


def refused(field: str, message: str) -> QuestionError:
    """The error of one part of a question."""
    error = QuestionError.at(message, key=field)
    assert isinstance(error, QuestionError)
    return error


@dataclass(frozen=True)
class Question:
    """What is asked; checked when it is made.

    model: a catalogue name, a Hugging Face id, or the path of a config.json. slo: a catalogue name, a path, or a phrase
    (``specs.studies.slo_phrase``). input, output: tokens of a request, as ``specs.workloads.length_phrase`` reads them;
    input is what a request adds to the shared prompt and to the conversation so far. thinking: tokens that every
    request makes ahead of its output, likewise, and that later turns' prompts lack; "": none.
    rate: requests per second, of all turns; concurrency: users with one request each instead. burst: coefficient of
    variation of the gaps between arrivals, 1 for Poisson. turns: of a conversation. shared: tokens of a system prompt
    that all begin with. think_s: median between an answer and the next turn. spread: of the lengths, see
    ``DEFAULT_SPREAD``. classes: of requests, whose shares add up to 1; a rate is that of the classes with shares.
    have: accelerators that are there, how many of which kind: asks for the largest rate that they carry. A rate is then
    no part of the question, and gpu is their kind.
    gpu, engine, weights, kv: what is tried, gpu also by a name of ``USUAL``; without weights, the model's own format;
    without kv, that in which engines usually hold the model's KV.
    budget_usd: most dollars per hour. confidence: least probability of meeting the SLO, for a recommendation.

    Raises:
        QuestionError: a part cannot be used; PhraseError: a length cannot be read. Both have the part's name as key.
    """

    model: str
    slo: str
    input: str
    output: str
    thinking: str = ""
    rate: float | None = None
    concurrency: int | None = None
    burst: float = 1.0
    turns: int = 1
    shared: int = 0
    think_s: float = DEFAULT_THINK_S
    spread: float = DEFAULT_SPREAD
    gpu: tuple[str, ...] = DEFAULT_GPUS
    engine: tuple[str, ...] = DEFAULT_ENGINES
    weights: tuple[str, ...] = ()
    kv: tuple[str, ...] = ()
    budget_usd: float | None = None
    confidence: float | None = None
    seed: int = 0
    have: tuple[str, int] | None = None
    classes: tuple[TrafficClass, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "gpu", tuple(USUAL.get(name, name) for name in self.gpu))
        if self.have is not None:
            object.__setattr__(self, "have", (USUAL.get(self.have[0], self.have[0]), self.have[1]))
        self._check_traffic()
        for field, known in (("engine", get_args(EngineName)), ("weights", get_args(DType)), ("kv", get_args(DType))):
            for name in getattr(self, field):
                if name not in known:
                    raise refused(field, f"no {_NOUNS[field]} '{name}'{unknown(name, known)}")
        for field in ("gpu", "engine", "weights", "kv"):
            values = getattr(self, field)
            if field in ("gpu", "engine") and not values:
                raise refused(field, f"names no {_NOUNS[field]}")
            if len(set(values)) < len(values):
                raise refused(field, f"names one twice: {', '.join(values)}")
        _check_number("budget_usd", self.budget_usd, 0.0, math.inf, "dollars per hour above 0")
        if self.confidence is not None and not 0.0 < self.confidence < 1.0:
            raise refused("confidence", f"expected a probability above 0 and below 1, got {self.confidence:g}")
        if not 0 <= self.seed <= MAX_SEED:
            raise refused("seed", f"expected 0 to {MAX_SEED}, got {self.seed}")
        _ = self.input_lengths, self.output_lengths, self.thinking_lengths
        if self.classes:
            self._check_classes()

    def _check_traffic(self) -> None:
        if self.have is not None and self.have[1] < 1:
            raise refused("have", f"expected 1 accelerator or more, got {self.have[1]}")
        if self.have is not None and self.concurrency is not None:
            raise refused("concurrency", "users in a closed loop have no largest rate; leave it out")
        if (self.rate is None) == (self.concurrency is None) and (self.rate is not None or self.has_shares):
            message = "expected requests per second, or a concurrency instead" if self.rate is None else _ONE_OF_BOTH
            raise refused("rate", message)
        _check_number("rate", self.rate, 0.0, _MOST_RATE, f"requests per second above 0, up to {_MOST_RATE:,.0f}")
        if self.concurrency is not None and not 1 <= self.concurrency <= _MOST_USERS:
            raise refused("concurrency", f"expected 1 to {_MOST_USERS:,} users, got {self.concurrency:,}")
        if self.concurrency is not None and self.burst != 1.0:
            raise refused("burst", "users with one request each have no bursts; give a rate")
        _check_number("burst", self.burst, 0.0, 10.0, "a coefficient of variation above 0, up to 10; Poisson has 1")
        if not 1 <= self.turns <= _MOST_TURNS:
            raise refused("turns", f"expected 1 to {_MOST_TURNS:,} turns, got {self.turns:,}")
        if not 0 <= self.shared <= _MOST_TOKENS:
            raise refused("shared", f"expected 0 to {_MOST_TOKENS:,} tokens, got {self.shared:,}")
        if not 0.0 <= self.think_s <= 86400.0:
            raise refused("think_s", f"expected 0 to 86,400 seconds, got {self.think_s:g}")
        if not 0.0 <= self.spread <= MOST_SPREAD:
            raise refused("spread", f"expected 0 (all alike) to {MOST_SPREAD:g}, got {self.spread:g}")

    def _check_classes(self) -> None:
        if len({each.name for each in self.classes}) < len(self.classes):
            raise refused("classes", f"two have one name: {', '.join(each.name for each in self.classes)}")
        for each in self.classes:
            if (each.share is None) == (each.rate is None):
                raise refused("classes", f"{each.name}: expected a share such as 20%, or a rate instead")
            if each.rate is None and each.burst is not None:
                raise refused("classes", f"{each.name}: a burst goes with a rate of its own")
            if each.rate is not None and (self.have is not None or self.concurrency is not None):
                other = "the largest rate is asked for" if self.have is not None else "users have no rate"
                raise refused("classes", f"{each.name}: {other}; give a share instead of a rate")
        shares = [each.share for each in self.classes if each.share is not None]
        if shares and abs(sum(shares) - 1.0) > 1e-9:
            raise refused("classes", f"shares add up to {100 * sum(shares):g} %, not to 100 %")
        if not shares and self.rate is not None:
            raise refused("rate", "every class has a rate of its own; leave it out, or give a class a share")
        try:
            _ = self.parts
        except (QuestionError, PhraseError) as error:
            raise refused("classes", f"{error.key}: {error.message}") from None

    @property
    def has_shares(self) -> bool:
        """Whether there is traffic at the question's own rate, or of its users."""
        return not self.classes or any(each.share is not None for each in self.classes)

    @property
    def offers_tiers(self) -> bool:
        """Whether KV of earlier requests may be worth main memory, where the largest rate is asked for."""
        return self.have is not None and (self.shared > 0 or any(part.turns > 1 for part in self.parts))

    @property
    def parts(self) -> tuple[Question, ...]:
        """The traffic of each class as a question of its own; itself where there are no classes."""
        if not self.classes:
            return (self,)
        return tuple(self._part(each) for each in self.classes)

    def _part(self, each: TrafficClass) -> Question:
        users = None if self.concurrency is None else max(round((each.share or 0.0) * self.concurrency), 1)
        rate = each.rate if each.rate is not None or self.rate is None else (each.share or 0.0) * self.rate
        return replace(
            self,
            classes=(),
            have=None,
            rate=rate,
            concurrency=users,
            input=self.input if each.input is None else each.input,
            output=self.output if each.output is None else each.output,
            turns=self.turns if each.turns is None else each.turns,
            burst=self.burst if each.burst is None else each.burst,
        )

    @property
    def requests_shares(self) -> tuple[float, ...]:
        """Share of each part in all requests."""
        if self.concurrency is not None:
            return tuple(each.share or 0.0 for each in self.classes) or (1.0,)
        rates = [part.rate or 0.0 for part in self.parts]
        return tuple(rate / sum(rates) for rate in rates)

    @property
    def total_rate(self) -> float | None:
        """Requests per second of all classes; None with users."""
        return None if self.concurrency is not None else sum(part.rate or 0.0 for part in self.parts)

    @property
    def input_lengths(self) -> LengthSpec:
        """Prompt tokens that a request adds."""
        return self._lengths("input")

    @property
    def output_lengths(self) -> LengthSpec:
        """Output tokens, those of the thinking not included."""
        return self._lengths("output")

    @property
    def thinking_lengths(self) -> LengthSpec | None:
        """Tokens ahead of them; None without thinking."""
        return self._lengths("thinking") if self.thinking else None

    @property
    def mean_thinking(self) -> float:
        """Mean of those tokens; 0 without thinking."""
        return mean_tokens(self.thinking_lengths) if self.thinking_lengths is not None else 0.0

    def _lengths(self, field: str) -> LengthSpec:
        try:
            lengths = parse_lengths(getattr(self, field), self.spread)
        except PhraseError as error:
            raise PhraseError.at(error.message, key=field) from None
        if mean_tokens(lengths) > _MOST_TOKENS:
            raise refused(field, f"expected up to {_MOST_TOKENS:,} tokens on average, got {mean_tokens(lengths):,.0f}")
        return lengths

    @property
    def mean_context(self) -> float:
        """Tokens of the last turn's prompt and output, on average."""
        said = self.turns * (mean_tokens(self.input_lengths) + mean_tokens(self.output_lengths))
        return self.shared + said + self.mean_thinking

    def describe(self) -> str:
        """The traffic in a sentence, with what was assumed."""
        if self.classes:
            parts = zip(self.classes, self.parts, strict=True)
            return ". ".join(f"{each.name}: {part.describe()}" for each, part in parts)
        if self.rate is not None:
            law = "Poisson" if self.burst == 1.0 else f"gaps with a coefficient of variation of {self.burst:g}"
            arrivals = f"{per_second(f'{self.rate:,g}')}, {law}"
        else:
            arrivals = f"{self.concurrency:,} users with one request each at any time"
        prompts = f"{self.shared:,} shared and " if self.shared else ""
        turns = f"; conversations of {self.turns} turns, {self.think_s:g} s between them" if self.turns > 1 else ""
        new = "new " if self.shared or self.turns > 1 else ""
        lengths, outputs = self.input_lengths, self.output_lengths
        if _law(lengths) == _law(outputs):
            tokens = f"{_size(lengths)} {new}tokens in, {_size(outputs)} out ({_law(lengths)})"
        else:
            tokens = f"{_size(lengths)} {new}tokens in ({_law(lengths)}), {_size(outputs)} out ({_law(outputs)})"
        thinking = self.thinking_lengths
        if thinking is not None:
            tokens += f", after {_size(thinking)} of thinking ({_law(thinking)})"
        return f"{arrivals}; {prompts}{tokens}{turns}"


_NOUNS = {"gpu": "accelerator", "engine": "engine", "weights": "format of weights", "kv": "format of KV"}
_ONE_OF_BOTH = "give a rate or a concurrency, not both: one follows from the other"


def _check_number(field: str, value: float | None, above: float, most: float, expected: str) -> None:
    if value is not None and not (math.isfinite(value) and above < value <= most):
        raise refused(field, f"expected {expected}, got {value:g}")


def _size(lengths: LengthSpec) -> str:
    return f"{mean_tokens(lengths):,.0f}"


def _law(lengths: LengthSpec) -> str:
    """``on average, lognormal, spread 0.7``, or ``exactly``."""
    if lengths.distribution == "constant" or not lengths.sigma_log:
        return "exactly"
    return f"on average, lognormal, spread {lengths.sigma_log:.2g}"


def engine_titles(engines: Iterable[str]) -> str:
    """``vLLM and SGLang``."""
    titles: dict[str, str] = {str(name): title for name, title in ENGINE_TITLES.items()}
    return listed([titles.get(name, name) for name in engines])


def parse_have(text: str) -> tuple[tuple[str, int], ...]:
    """Kinds and numbers of accelerators: ``h200:8`` or ``h100-sxm:16,h200:8``.

    Raises:
        QuestionError: it reads otherwise, or names a kind twice.
    """
    kinds: dict[str, int] = {}
    for part in split_names(text):
        name, colon, number = part.rpartition(":")
        if not colon or not name or not number.isdigit() or int(number) < 1:
            raise refused("have", f"expected ACCELERATOR:NUMBER, such as h200:8, got '{part}'")
        name = USUAL.get(name, name)
        if name in kinds:
            raise refused("have", f"names one twice: {name}")
        kinds[name] = int(number)
    if not kinds:
        raise refused("have", "expected ACCELERATOR:NUMBER, such as h200:8")
    return tuple(kinds.items())


def split_names(values: str | Sequence[str] | None) -> tuple[str, ...]:
    """Names of a list, or of a text with commas."""
    texts = [values] if isinstance(values, str) else list(values or ())
    return tuple(name.strip() for text in texts for name in text.split(",") if name.strip())
