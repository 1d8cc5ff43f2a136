"""A simulation job and its outcome."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from hisearch.score.terms import Check, check_from_json
from hisearch.search.model.trial import Trial, Verdict
from hisearch.specs.deployments.deployment import DeploymentSpec


def job_digest(deployment: Any, slice_fraction: float, load: float, inputs: str) -> str:
    """SHA-256 of a deployment's plain data and the other inputs; see ``Job.digest``."""
    content = {"deployment": deployment, "slice_fraction": slice_fraction, "load": load, "inputs": inputs}
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


@dataclass(frozen=True)
class Job:
    """A deployment to simulate. See ``Trial`` for ``stage``, ``parameters``, ``slice_fraction`` and ``load``."""

    stage: int
    deployment: DeploymentSpec
    parameters: dict[str, Any] = field(default_factory=dict)
    slice_fraction: float = 1.0
    load: float = 1.0

    def digest(self, inputs: str) -> str:
        """Canonical digest of all that decides the outcome: deployment, slice, load, and ``inputs``, the rest's digest.

        The stage and the parameter names are left out: the same deployment is simulated once. Fields at their defaults
        are left out too, so fields added to deployments later do not change the digests of earlier journals.
        """
        deployment = self.deployment.model_dump(mode="json", exclude_defaults=True)
        return job_digest(deployment, self.slice_fraction, self.load, inputs)

    def to_json(self) -> dict[str, Any]:
        """Plain data, without the names of parameters, which follow from the deployment."""
        return {
            "stage": self.stage,
            "deployment": self.deployment.model_dump(mode="json", exclude_defaults=True),
            "slice_fraction": self.slice_fraction,
            "load": self.load,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Job:
        """Inverse of ``to_json``, with the parameters in the deployment's own terms.

        Raises:
            KeyError, TypeError, ValueError: ``data`` is not a result of ``to_json``.
        """
        from hisearch.search.model.deployments import parameters_of
        from hisearch.specs.documents.renamed_keys import current_data

        deployment = DeploymentSpec.model_validate(current_data(data["deployment"], DeploymentSpec))
        fraction, load = float(data["slice_fraction"]), float(data["load"])
        return cls(int(data["stage"]), deployment, parameters_of(deployment), fraction, load)


@dataclass(frozen=True)
class Evaluation(Verdict):
    """Outcome of a job; fields as in ``Trial``.

    lasts: False if memory ran out, which depends on the machine's other work and is no fact about the deployment.
    """

    metrics: dict[str, float] = field(default_factory=dict)
    slo: tuple[Check, ...] = ()
    feasible: bool = False
    error: str = ""
    warnings: tuple[str, ...] = ()
    simulations: int = 1
    lasts: bool = True

    @classmethod
    def failed(cls, error: Exception) -> Evaluation:
        """The outcome of a deployment that cannot be simulated."""
        return cls(error=f"{type(error).__name__}: {error}", lasts=not isinstance(error, MemoryError))

    def to_json(self) -> dict[str, Any]:
        """Plain data; floats survive a round trip exactly."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Evaluation:
        """Inverse of ``to_json``.

        Raises:
            KeyError, TypeError: ``data`` is not a result of ``to_json``.
        """
        return cls(
            # Undefined figures are the object math.nan itself, so that a round trip compares equal.
            metrics={key: math.nan if math.isnan(value) else value for key, value in data["metrics"].items()},
            slo=tuple(check_from_json(check) for check in data["slo"]),
            feasible=data["feasible"],
            error=data["error"],
            warnings=tuple(data["warnings"]),
            simulations=data.get("simulations", 1),
            lasts=data.get("lasts", True),
        )

    def trial(self, number: int, job: Job) -> Trial:
        """The record of this outcome in a study."""
        kept = {name: value for name, value in vars(self).items() if name != "lasts"}
        return Trial(number=number, **vars(job), **kept)


#: Simulates a job. It must be a pure function of the job and may be called from several threads at once.
Evaluate = Callable[[Job], Evaluation]

#: Errors that one bad deployment may raise; anything else is a program defect and ends the study.
TRIAL_ERRORS = (ValueError, ArithmeticError, MemoryError)


def evaluate_safely(evaluate: Evaluate, job: Job) -> Evaluation:
    """Run ``evaluate``; a deployment that cannot be simulated becomes an evaluation with an error (law L9)."""
    try:
        return evaluate(job)
    except TRIAL_ERRORS as error:
        return Evaluation.failed(error)
