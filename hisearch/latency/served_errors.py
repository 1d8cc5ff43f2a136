"""Errors of TTFT, of step times and of prompts on held-out serving runs.

``served_errors.yaml`` holds, for each engine and situation, quantiles of log(simulated / measured) over measured
serving runs: of their means of TTFT and of time per output token, and of the time that prompts take in steps. The last
is what would explain the error of a request's mean latency in runs of long prompts (``refit.host_fit.prompts``). A mean
TTFT errs by more than prompts do: clients, start-ups and short waits are in it.

The fit held out the part that the situation calls new (``python -m refit hosts``). A situation is what is new in a
deployment, compared with the measured runs. The client and settings (``campaign``) always are; the model or the
accelerator may be too. Errors of runs in the fit are excluded.

Between quantiles a law is linear over normal scores. Beyond the outermost the slope continues: tails stay as heavy.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import yaml
from pydantic import Field, model_validator

from hisearch.specs.base import EngineName, Strict

FILE = Path(__file__).with_name("served_errors.yaml")

Situation = Literal["campaign", "model", "accelerator"]
#: Suffixes of checkpoint names after the model's name.
CHECKPOINT_SUFFIXES = ("-instruct", "-fp8", "-fp4", "-nvfp4", "-hf")
#: Probabilities of the quantiles ``ErrorLaw.logs``, and their normal scores.
SHARES = (0.05, 0.25, 0.5, 0.75, 0.95)
SCORES = (-1.6448536, -0.6744898, 0.0, 0.6744898, 1.6448536)


#: Description of each situation.
NEW: dict[Situation, str] = {
    "campaign": "campaigns that the fit had not",
    "model": "models that the fit had not",
    "accelerator": "accelerators that the fit had not",
}


class ErrorLaw(Strict):
    """Quantiles of log(simulated / measured), at ``SHARES``."""

    logs: tuple[float, float, float, float, float]
    runs: int = Field(description="Measured runs behind them.")

    @model_validator(mode="after")
    def _check(self) -> ErrorLaw:
        if list(self.logs) != sorted(self.logs):
            raise ValueError("logs are quantiles: they need to rise")
        return self

    def at(self, score: float) -> float:
        """log(simulated / measured) at a normal score."""
        logs, scores = self.logs, SCORES
        if score < scores[0]:
            return logs[0] + (score - scores[0]) * (logs[1] - logs[0]) / (scores[1] - scores[0])
        if score > scores[-1]:
            return logs[-1] + (score - scores[-1]) * (logs[-1] - logs[-2]) / (scores[-1] - scores[-2])
        return float(np.interp(score, scores, logs))

    def measured(self, simulated: float, score: float) -> float:
        """Expected measurement where ``simulated`` was, at a normal score: 0 the median, 1.64 the 95th percentile."""
        return float(simulated * np.exp(-self.at(-score)))

    @property
    def median_error(self) -> float:
        """Median absolute relative error: half of a law's mass lies between its quartiles."""
        return float(np.expm1(max(abs(self.logs[2]), 0.5 * (self.logs[3] - self.logs[1]))))

    @property
    def width(self) -> float:
        """Between the outermost quantiles."""
        return self.logs[-1] - self.logs[0]


class ServedErrors(NamedTuple):
    """Errors of a deployment's mean TTFT, of its mean time per output token, and of prompts in its steps."""

    situation: Situation
    ttft: ErrorLaw
    step: ErrorLaw
    prompts: ErrorLaw

    def __str__(self) -> str:
        """A sentence: factors on the simulated means between which 90 % of measured ones lie."""
        spans = (
            f"{name} {law.measured(1.0, SCORES[0]):.2f} to {law.measured(1.0, SCORES[-1]):.2f} times"
            for name, law in (("TTFT", self.ttft), ("TPOT", self.step))
        )
        return f"Served runs of {NEW[self.situation]}: 90 % had {' and '.join(spans)} the simulated mean."

    @property
    def spans(self) -> str:
        """In short: ``of served runs 90 % had TTFT 0.93 to 2.29 and TPOT 0.86 to 1.43 times the simulated``."""
        laws = (("TTFT", self.ttft), ("TPOT", self.step))
        spans = (
            f"{name} {law.measured(1.0, SCORES[0]):.2f} to {law.measured(1.0, SCORES[-1]):.2f}" for name, law in laws
        )
        return f"of served runs 90 % had {' and '.join(spans)} times the simulated"

    def to_dict(self) -> dict[str, object]:
        """The situation, and the factors on the simulated mean between which 90 % of measured ones lie."""
        spans = {
            name: [law.measured(1.0, SCORES[0]), law.measured(1.0, SCORES[-1])]
            for name, law in (("ttft", self.ttft), ("tpot", self.step))
        }
        return {"situation": self.situation, **spans}


class _Laws(Strict):
    ttft: ErrorLaw
    step: ErrorLaw
    prompts: ErrorLaw


class EngineErrors(Strict):
    """Accelerators and models measured under an engine, and the errors by situation."""

    accelerators: list[str] = Field(description="Of the catalogue.")
    models: list[str] = Field(description="See ``plain_name``.")
    situations: dict[Situation, _Laws]

    def of(self, situation: Situation) -> ServedErrors | None:
        """Errors in ``situation``, or in the closest one with errors; None without any."""
        order: list[Situation] = [situation, "campaign", "accelerator", "model"]
        name = next((known for known in order if known in self.situations), None)
        if name is None:
            return None
        laws = self.situations[name]
        return ServedErrors(name, laws.ttft, laws.step, laws.prompts)


def served_errors(engine: EngineName | str, accelerator: str | None, model: str) -> ServedErrors | None:
    """Expected errors of ``model`` on ``accelerator`` under ``engine``: the widest of the situations that apply.

    None where no run of the engine was held out of a fit.

    Args:
        engine: its name.
        accelerator: name in the catalogue; None: not in the catalogue.
        model: see ``plain_name``.
    """
    known = _read().get(str(engine))
    if known is None:
        return None
    new: list[Situation] = ["campaign"]
    if accelerator not in known.accelerators:
        new.append("accelerator")
    if model not in known.models:
        new.append("model")
    candidates = [errors for situation in new if (errors := known.of(situation)) is not None]
    return max(candidates, key=lambda errors: errors.ttft.width, default=None)


def plain_name(name: str) -> str:
    """A checkpoint's name without its owner and ``CHECKPOINT_SUFFIXES``, in lower case."""
    plain = name.rsplit("/", 1)[-1].lower()
    while plain.endswith(CHECKPOINT_SUFFIXES):
        plain = plain[: plain.rindex("-")]
    return plain


@functools.cache
def _read() -> dict[str, EngineErrors]:
    if not FILE.exists():
        return {}
    document = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    return {name: EngineErrors.model_validate(errors) for name, errors in document.items()}
