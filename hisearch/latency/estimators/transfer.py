"""Laws of the nearest measured accelerator, carried over to one without measurements by their sheets.

Each operator family keeps the share of the peaks that its law says, at the other sheet: its memory bandwidth, its
peaks, its multiprocessors. Curves of collectives are not carried: links differ (but see ``pcie``).

``python -m hisearch.latency.estimators.transfer`` leaves each measured accelerator out in turn, with those of its
generation, and prints how far the laws of the nearest other one are from its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from hisearch.hardware.peaks import sheet_peaks
from hisearch.latency.estimators.scaled import ScaledEstimator
from hisearch.latency.priced import PricedWorker
from hisearch.latency.sharding import Parallelism
from hisearch.latency.sheets import of_catalogue
from hisearch.latency.step_cost import step_seconds
from hisearch.specs.base import EngineName
from hisearch.specs.deployments.deployment import EngineSpec
from hisearch.specs.machines.hardware import AcceleratorSpec
from hisearch.specs.machines.host import host_scale
from hisearch.specs.machines.laws import LawsSpec
from hisearch.specs.machines.profile import LatencyProfileSpec, ProfileChoice

#: Relative error of step times by carried laws: the root mean square of what ``left_out`` finds (0.10 under vLLM, 0.14
#: under SGLang) and of the laws' own error (0.10), as a root of squares.
TRANSFERRED_ERROR = 0.18
#: Likewise where the sheet is derated, with another fifth, an assumption: no card of another vendor was left out.
DERATED_ERROR = 0.27
#: Largest ratio of bandwidths, or of peaks, over which laws are carried: about the widest between neighbours that were
#: left out (B200 to H200: 2.3).
WIDEST_RATIO = 3.0

#: Clock that matrix products hold, as a power of the watts above idle: an H200 limited to 500 W is expected to serve
#: 12.4 for 14.4 samples a second at 700 W (Llama-2-70B, ``H200_SXM_141GBx1_MaxQ`` of NVIDIA's configurations in
#: MLCommons' inference_results_v5.0). 1/3 where voltage follows the clock, 1/2 between MI300X and MI325X (AMD,
#: "Measuring Max-Achievable FLOPs").
CLOCK_BY_POWER = 0.39
#: Ratios of peaks of a multiprocessor within which cards are taken to be of one design at different clocks.
ONE_DESIGN = (0.75, 1.0)

#: Ratio of 16-bit peaks within which accelerators are of one generation and class (B200 and GB200: 1.11).
GENERATION = 1.15

#: Steps of ``left_out``: prompt tokens in chunks of 2,048 at most, and decodes with their context.
PROMPTS = (256, 2048, 8192)
DECODES = ((1, 2048), (16, 2048), (64, 2048), (256, 1024))
MODELS = ("llama-3.1-8b", "qwen3-32b", "qwen3-30b-a3b")


def derated(accelerator: AcceleratorSpec) -> AcceleratorSpec:
    """The accelerator with peaks that kernels attain as they attain those of the measured ones."""
    shares = accelerator.derating
    if shares is None:
        return accelerator
    return accelerator.model_copy(
        update={
            "memory_bandwidth_bytes_per_s": shares.bandwidth * accelerator.memory_bandwidth_bytes_per_s,
            "peak_flops": {dtype: shares.flops * peak for dtype, peak in accelerator.peak_flops.items()},
        }
    )


def nearest(accelerator: AcceleratorSpec, choices: Iterable[ProfileChoice]) -> ProfileChoice | None:
    """The measured accelerator that is nearest by ratios of its sheet; None where none is near.

    Ratios are those of the bandwidth, of the 16-bit peak, and of a multiprocessor's peak, which tells designs apart.
    Accelerators that state neither multiprocessors nor a derating are near to none.
    """
    if accelerator.multiprocessors is None and accelerator.derating is None:
        return None
    sheet = derated(accelerator)
    best, least = None, math.inf
    for choice in choices:
        profile = of_catalogue("LatencyProfile", choice.profile)
        if profile.laws is None or profile.evidence == "assumed":
            continue
        ratios = _log_ratios(sheet, of_catalogue("Accelerator", choice.accelerator))
        own = accelerator.multiprocessors or math.exp(ratios[1]) * profile.laws.multiprocessors
        design = ratios[1] + math.log(profile.laws.multiprocessors / own)
        if max(map(abs, ratios)) <= math.log(WIDEST_RATIO) and math.hypot(*ratios, design) < least:
            best, least = choice, math.hypot(*ratios, design)
    return best


def too_far(accelerator: AcceleratorSpec, choices: Iterable[ProfileChoice]) -> str:
    """Why no laws are carried to it, as an addition to a sentence; "" where it does not ask for any."""
    if accelerator.multiprocessors is None and accelerator.derating is None:
        return ""
    sheet = derated(accelerator)
    cards = {choice.accelerator: of_catalogue("Accelerator", choice.accelerator) for choice in choices}
    far = [(max(map(abs, _log_ratios(sheet, card))), name) for name, card in cards.items()]
    if not far:
        return ""
    ratio, name = min(far)
    return (
        f": {name} is nearest, and differs {math.exp(ratio):.2f} times in bandwidth or 16-bit peak; laws are carried "
        f"over {WIDEST_RATIO:g} times at most"
    )


def _log_ratios(first: AcceleratorSpec, second: AcceleratorSpec) -> tuple[float, float]:
    """Logarithms of the ratios of bandwidths and of 16-bit peaks."""
    return (
        math.log(first.memory_bandwidth_bytes_per_s / second.memory_bandwidth_bytes_per_s),
        math.log(sheet_peaks(first)["bf16"] / sheet_peaks(second)["bf16"]),
    )


def _held_clock(laws: LawsSpec, accelerator: AcceleratorSpec) -> float:
    """Share of its sheet's clock that ``accelerator`` holds where the measured one, of the same design, holds all.

    A multiprocessor with fewer watts holds a lower clock; the sheet's may be lower already.
    """
    measured = of_catalogue("Accelerator", laws.accelerator)
    if accelerator.multiprocessors is None:
        return 1.0
    clock = sheet_peaks(accelerator)["bf16"] / accelerator.multiprocessors * laws.multiprocessors / laws.flops
    watts = (accelerator.active_w - accelerator.idle_w) / accelerator.multiprocessors
    watts /= (measured.active_w - measured.idle_w) / laws.multiprocessors
    low, high = ONE_DESIGN
    return min(watts**CLOCK_BY_POWER / clock, 1.0) if low <= clock <= high else 1.0


def carried(profile: LatencyProfileSpec, accelerator: AcceleratorSpec) -> LatencyProfileSpec:
    """``profile`` with its laws at the sheet of ``accelerator``, and its engines' work on that one's host.

    Experts in fp8 of a derated accelerator attain the shares that 16-bit ones do, an assumption.

    Raises:
        ValueError: the profile has no laws.
    """
    if profile.laws is None:
        raise ValueError("only a profile with laws can be carried over to another accelerator")
    sheet, experts = derated(accelerator), dict(profile.laws.moe)
    if accelerator.derating is not None and "bf16" in experts:
        # The fp8 law may be that of a kernel with a scale for each block; another vendor's library has its own.
        experts["fp8"] = experts["bf16"]
    laws = profile.laws.model_copy(
        update={
            "moe": experts,
            "clock_share": profile.laws.clock_share * _held_clock(profile.laws, accelerator),
            "multiprocessors": accelerator.multiprocessors or profile.laws.multiprocessors,
            "flops": sheet_peaks(sheet)["bf16"],
            "memory_bandwidth_bytes_per_s": sheet.memory_bandwidth_bytes_per_s,
            "collectives": None,
            "fused_all_reduce": [],
            "expert_exchange": {},
        }
    )
    error = TRANSFERRED_ERROR if accelerator.derating is None else DERATED_ERROR
    engines = {
        name: overhead.model_copy(update={"host_scale": host_scale(accelerator.host_processor, name)})
        for name, overhead in profile.engines.items()
    }
    carried_over = {"laws": laws, "engines": engines, "evidence": "transferred", "relative_error": error}
    return profile.model_copy(update=carried_over)


def left_out(engine: EngineName, choices: Sequence[ProfileChoice]) -> dict[tuple[str, str], list[float]]:
    """Relative differences of step times: by (accelerator left out, the nearest other), over models and steps."""
    errors = {}
    own_choices = [choice for choice in choices if choice.engine == engine]
    for choice in own_choices:
        profile = of_catalogue("LatencyProfile", choice.profile)
        if profile.laws is None or profile.evidence == "assumed":
            continue
        accelerator = of_catalogue("Accelerator", choice.accelerator).model_copy(
            update={"multiprocessors": profile.laws.multiprocessors}
        )
        sheet = sheet_peaks(accelerator)["bf16"]
        others = [
            rest
            for rest in own_choices
            if not 1 / GENERATION
            < sheet_peaks(of_catalogue("Accelerator", rest.accelerator))["bf16"] / sheet
            < GENERATION
        ]
        other = nearest(accelerator, others)
        if other is None:
            continue
        transferred = carried(of_catalogue("LatencyProfile", other.profile), accelerator)
        pairs = zip(_steps_s(engine, profile, accelerator), _steps_s(engine, transferred, accelerator), strict=True)
        errors[choice.accelerator, other.accelerator] = [theirs / own - 1.0 for own, theirs in pairs]
    return errors


def _steps_s(engine: EngineName, profile: LatencyProfileSpec, accelerator: AcceleratorSpec) -> list[float]:
    """Seconds of each step, for each model, on one rank."""
    seconds = []
    for name in MODELS:
        priced = PricedWorker(
            of_catalogue("Model", name), accelerator, Parallelism(), "bf16", "bf16", EngineSpec(name=engine),
            max_tokens=8192, max_sequences=256, max_context_tokens=600_000,
        )  # fmt: skip
        costs = ScaledEstimator("", profile).compile(priced).seconds
        seconds += [step_seconds(costs, [(min(n, 2048), 0)] * max(1, n // 2048), []) for n in PROMPTS]
        seconds += [step_seconds(costs, [], [context] * sequences) for sequences, context in DECODES]
    return seconds


def main() -> None:
    """Print the differences of each accelerator left out, and of all."""
    everything: list[float] = []
    for (name, other), errors in left_out("vllm", of_catalogue("LatencyProfile", "auto").choices).items():
        everything += errors
        print(
            f"{name:14} by {other:14} median {np.median(np.abs(errors)):6.1%}  bias {np.mean(errors):+6.1%}  "
            f"worst {max(errors, key=abs):+6.1%}"
        )
    print(f"all: median {np.median(np.abs(everything)):.1%}, RMS {np.sqrt(np.mean(np.square(everything))):.1%}")


if __name__ == "__main__":
    main()
