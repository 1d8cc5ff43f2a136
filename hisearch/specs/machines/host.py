"""Host work of a serving engine: constants with a physical size, and the range that each must lie in.

An engine's host work comes in three kinds. Work of a step outside its kernels, on the device's clock (``step_s``,
``kernel_s``, ``per_sequence_s``), makes every step longer. Work of the host for a step (``schedule_s``,
``schedule_sequence_s``, ``launch_s``) is hidden where it overlaps with the device: a step then takes the longer of the
two. Work of the front end (``FrontEndTimes``) delays requests and tokens, but no step.

``RANGES`` holds the unit, the plausible range and the source of each constant. Fits stay within it, and no profile
ships with a value outside it: such a constant would stand for something else. Results of fitted profiles with such a
value say so.
"""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from hisearch.specs.base import Count, Evidence, NonNegative, Strict
from hisearch.specs.versions import nearest_version


class Range(NamedTuple):
    """Plausible values of a constant, in its own unit (seconds for each of something), and their source."""

    low: float
    high: float
    per: str
    source: str


#: Measured: vLLM 0.19.1 and 0.32.0, and the front end of SGLang 0.5.9, on two cores of server processors, without a
#: model (docs/notes/2026-11-host-work.md).
RANGES: dict[str, Range] = {
    "step_s": Range(0.0, 1.5e-3, "step", "0.1 to 1 ms of bubble between steps: vLLM issue 6854, TensorRT-LLM 13957"),
    "kernel_s": Range(0.0, 2e-6, "kernel", "about 1 us between kernels of a CUDA graph"),
    "per_sequence_s": Range(0.0, 20e-6, "sequence", "sampling tensors and their copies"),
    "schedule_s": Range(0.2e-3, 6e-3, "step", "0.27 to 0.34 ms measured; 2.5 ms in vLLM pull request 57628"),
    "schedule_sequence_s": Range(4e-6, 30e-6, "sequence", "8.7 to 15.2 us measured"),
    "launch_s": Range(3e-6, 60e-6, "operator", "22 us where 8B runs without graphs; 56 ms a step in vLLM pull 20059"),
    "request_s": Range(1.5e-3, 25e-3, "request", "5.8 to 7.4 ms measured, client included; 7 ms in SGLang"),
    "read_s": Range(0.5e-3, 4e-3, "request", "0.85 to 1.1 ms measured of vLLM in a burst; SGLang's is the same"),
    "prompt_token_s": Range(0.8e-6, 5e-6, "token", "1.5 to 4.1 us measured, 0.4 of it when the first token is read"),
    "stream_s": Range(15e-6, 150e-6, "token", "45 to 60 us of its process measured of vLLM, 1.3 times that of SGLang"),
}


HostProcessor = Literal["x86", "grace"]

#: Time that a Grace takes for an engine's host work, over that of x86 hosts: of SGLang 1.43 to 1.91 by module and
#: accelerator, of TensorRT-LLM 1.45 and 1.48, of vLLM 2.05 and 2.22 (``refit.processors`` measures it in operator
#: tables). Modules in CUDA graphs have 0.94 to 1.0 there. PyTorch's Linear takes 37 us on a GB200 and 13.5 on a DGX
#: H100 (TransformerEngine, issue 2053).
ON_GRACE: dict[str, float] = {"sglang": 1.71, "trtllm": 1.46, "vllm": 2.13}

#: Times of work that the host does for a step, which its processor's speed scales.
OF_HOST = ("schedule_s", "schedule_sequence_s", "launch_s")


def host_scale(processor: HostProcessor, engine: str) -> float:
    """Time of the engine's host work on ``processor`` over that on x86 hosts."""
    return ON_GRACE.get(engine, 1.0) if processor == "grace" else 1.0


class FrontEndTimes(Strict):
    """Time that a request and its tokens spend outside the engine: a client sees it, the scheduler's clock does not."""

    request_s: NonNegative = Field(
        0.0, description="Front end, per request: HTTP, validation, chat template, queues between processes."
    )
    read_s: NonNegative = Field(
        0.0,
        description="Of request_s, the time of the one process that reads requests one after another: a burst waits in "
        "line there.",
    )
    prompt_token_s: NonNegative = Field(
        0.0, description="Front end, per token of the prompt: tokenisation, likewise one prompt after another."
    )
    stream_s: NonNegative = Field(
        0.0,
        description="Front end, per token that a step makes: detokenising, serialising and sending it. The tokens of a "
        "step come out one after another.",
    )


class HostTimes(FrontEndTimes):
    """Host work of an engine: of its steps, and of its front end."""

    step_s: NonNegative = Field(
        description="Per step, on the device's clock whatever overlaps: input copies, sampling, passing results to the "
        "host."
    )
    kernel_s: NonNegative = Field(
        0.0, description="Per kernel of any step, beyond its operator: the gap behind it inside a CUDA graph."
    )
    per_sequence_s: NonNegative = Field(0.0, description="Per sequence in the batch, on the device's clock.")
    schedule_s: NonNegative = Field(
        0.0, description="Host, per step: scheduling, preparing inputs, taking in results. Hidden where they overlap."
    )
    schedule_sequence_s: NonNegative = Field(0.0, description="Likewise, per sequence in the batch.")
    launch_s: NonNegative = Field(
        0.0,
        description="Host, per operator that is dispatched by itself: in steps with prompts, and in those beyond the "
        "largest CUDA graph. Binds where the device is faster.",
    )

    def on_processor(self, scale: float) -> Self:
        """On a host that takes ``scale`` times as long for each operator that it dispatches, and for scheduling.

        Times on the device's clock and of the front end stay.
        """
        return self if scale == 1.0 else self.model_copy(update={name: scale * getattr(self, name) for name in OF_HOST})

    def implausible(self) -> list[str]:
        """Messages on constants outside their ranges; a constant of 0 is absent from the profile."""
        return [
            f"{name} is {value:g} s for each {known.per}: {known.low:g} to {known.high:g} is plausible ({known.source})"
            for name, known in RANGES.items()
            if (value := getattr(self, name)) != 0 and not known.low <= value <= known.high
        ]


class EngineOverhead(HostTimes):
    """Host work of an engine, padding of CUDA graphs, and versions whose host work differs."""

    graph_batches: list[Count] = Field(
        default_factory=list,
        description="Tokens of a step for which CUDA graphs exist, rising: smaller steps are padded to the next one.",
    )
    eager_layer_s: NonNegative = Field(
        0.0, description="Per layer, in steps beyond the largest CUDA graph: gaps between kernels launched one by one."
    )
    launch_share: Annotated[float, Field(ge=0, le=1)] = Field(
        1.0,
        description="Share of the kernels' fitted launch times that a step sees, with estimator scaled; less where a "
        "kernel is launched before the one ahead has ended (programmatic dependent launch).",
    )
    host_scale: Annotated[float, Field(ge=0.2, le=5)] = Field(
        1.0,
        description="Time that the accelerator's host takes for schedule_s, schedule_sequence_s and launch_s, over "
        "that of the x86 hosts on which they were measured.",
    )
    version: str = Field("", description="Of the engine that the figures are of; of none in particular where empty.")
    evidence: Evidence = Field("assumed", description="How the figures are known.")
    versions: dict[str, HostTimes] = Field(
        default_factory=dict, description="Of other versions, by the names that deployments and measurements give them."
    )

    @model_validator(mode="after")
    def _check(self) -> EngineOverhead:
        if self.graph_batches != sorted(set(self.graph_batches)):
            raise ValueError("graph_batches need to rise")
        return self

    def of_version(self, version: str) -> EngineOverhead:
        """With the host work of ``version``, else of a version of the same release; as it is where none is known."""
        name = nearest_version(version, self.versions)
        return self if name is None else self.with_times(self.versions[name])

    def with_times(self, times: HostTimes) -> EngineOverhead:
        """With ``times`` in place of its own."""
        return self.model_copy(update={name: getattr(times, name) for name in HostTimes.model_fields})
