"""The requests of a measurement, to be simulated: those of a known workload, or as the measured file has them."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from hisearch.specs.wording import counted
from hisearch.traces.changes.replay import Replay
from hisearch.traces.importers.measurement import Measurement, PerRequest

#: Tolerance between the tool's count of prompt tokens and the workload's: a share, and a chat template's tokens.
TOKENS_TOLERANCE = 0.1
TEMPLATE_TOKENS = 64
#: Share of the requests whose prompts have to be within it.
_ALIKE = 0.9
#: Tokens of a block of prompts that share nothing: each is one block.
_WHOLE_PROMPT = 1 << 30


class MeasurementError(ValueError):
    """A measurement that cannot be predicted: its requests, or when they were sent, are not known."""


class Sent(NamedTuple):
    """What a client sent. measurement: without what cannot be simulated. note: where the requests are from."""

    measurement: Measurement
    replay: Replay
    note: str


def requests_of(measurement: Measurement, known: Replay | None, name: str, *, only: bool = False) -> Sent:
    """The requests that were sent.

    Args:
        measurement: a run of a benchmark.
        known: the requests that it was to send; None where nobody says.
        name: of ``known``, for messages.
        only: refuse measurements of other requests than ``known``; else the measured file's own are taken.

    Raises:
        MeasurementError: the requests are not known.
    """
    difference = "" if known is None else _difference(measurement, known, name)
    if known is not None and not difference:
        return Sent(measurement, _first_of(known, measurement), f"requests of {name}")
    requests = measurement.requests
    if difference and only:
        raise MeasurementError(f"{measurement.source}: {difference}: these are other requests")
    if requests is None or (requests.input_tokens < 1).any() or (requests.output_tokens < 1).any():
        reason = difference or "the file does not have the requests one by one with their token counts"
        raise MeasurementError(
            f"{measurement.source}: {reason}: these are other requests than any that are known. Give the trace that "
            "was sent with --trace, or let the tool keep requests (vllm bench serve --save-detailed, "
            "sglang.bench_serving --output-details)"
        )
    other = f"{difference}; " if difference else ""
    failed = f"; {counted(measurement.failed, 'failed request')} left out" if measurement.failed else ""
    own, replay = _own(measurement, requests)
    return Sent(own, replay, f"{other}requests as in the file: their prompts are taken to share nothing{failed}")


def _difference(measurement: Measurement, known: Replay, name: str) -> str:
    """Why these are not the known requests; "" where they are."""
    count = measurement.sent
    if count > len(known):
        return f"{counted(count, 'request')} were sent, {name} has {len(known)}"
    requests = measurement.requests
    if requests is not None and (requests.input_tokens > 0).all():
        expected = known.input_tokens[requests.rows]
        near = np.abs(requests.input_tokens - expected) <= TOKENS_TOLERANCE * expected + TEMPLATE_TOKENS
        if near.mean() < _ALIKE:
            return f"only {int(near.sum())} of {len(near)} prompts have the lengths of {name}"
    if measurement.input_tokens is None:
        return ""
    mean, measured = (
        float(known.input_tokens[:count].mean()),
        measurement.input_tokens / (count - measurement.failed),
    )
    if abs(measured - mean) > TOKENS_TOLERANCE * mean + TEMPLATE_TOKENS:
        return f"its prompts have {measured:,.0f} tokens on average, those of {name} {mean:,.0f}"
    return ""


def _first_of(known: Replay, measurement: Measurement) -> Replay:
    """The known requests that were sent, with the outputs that came back."""
    count, requests = measurement.sent, measurement.requests
    outputs = known.output_tokens[:count].copy()
    if requests is not None:
        made = requests.output_tokens > 0
        outputs[requests.rows[made]] = requests.output_tokens[made]
    return Replay(
        known.arrival_s[:count], known.input_tokens[:count], outputs, known.block_ids[:count], known.block_tokens,
        known.indices[:count],
    )  # fmt: skip


def _own(measurement: Measurement, requests: PerRequest) -> tuple[Measurement, Replay]:
    """The successful requests of the file, numbered anew; each prompt is a block of its own."""
    count = len(requests.rows)
    index = np.arange(count)
    start_s = requests.start_s if requests.start_s is not None else np.zeros(count)
    replay = Replay(
        np.asarray(start_s - start_s.min()), requests.input_tokens, requests.output_tokens,
        tuple((place,) for place in range(count)), _WHOLE_PROMPT, index,
    )  # fmt: skip
    kept = replace(requests, rows=index)
    return replace(measurement, sent=count, failed=0, requests=kept), replay
