"""Tables of a simulation's result: requests, workers, and the log of steps."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from hisearch.base.dtypes import F8, I4, I8


class Outcome(enum.IntEnum):
    """How a request ended (law L1)."""

    IN_FLIGHT = 0  #: still queued or running at the horizon
    FINISHED = 1
    TOO_LARGE = 2  #: rejected: prompt and output exceed the model's window, or a worker's entire KV memory
    UNREACHED = 3  #: had not arrived by the horizon (its predecessor never finished, or it arrives later)
    SHED = 4  #: rejected by the router's admission control
    LOST = 5  #: rejected: its worker died, or none was up, once too often


@dataclass(frozen=True)
class RequestTable:
    """Per request, arrays of length N in the trace's order; NaN or -1 for events that did not happen.

    arrival_s: when it reached the router (for follow-ups: predecessor's finish + think time + front end delay).
    scheduled_s: when it was first put into a batch.
    first_token_s, finish_s: end of the step that made its first, its last token.
    worker: index of the worker that served it; prefill_worker: of the worker that computed its prompt, the same unless
        prefill and decode are disaggregated.
    hit_tokens: prompt tokens found in HBM at first admission; host_hit_tokens: loaded back from the host tier;
        storage_hit_tokens: likewise, after a fetch for the request from a tier behind the host tier.
    preemptions: times it lost its KV (vLLM preemption, SGLang retraction).
    outcome: an ``Outcome``.
    priority, tenant: classes of requests, as the trace has them; None if it is not known.
    thinking_tokens: the first of its output tokens, which the client does not see. first_visible_s: end of the step
        that made its first visible token; NaN if it makes none, and of those in flight at a horizon if the step is not
        accounted for by then. Both are None if no request thinks.
    kv_arrived_s: when its KV had arrived at its decode worker; None without KV transfers.
    front_end_s: from the client's send until ``arrival_s``. first_delivery_s, last_delivery_s: from ``first_token_s``
        and ``finish_s`` until the client has the token; visible_delivery_s: likewise from ``first_visible_s``. None if
        the latency profile has no front end.

    TTFT, TTFO, TPOT and E2E are measured at the client; names with the prefix ``engine_`` are at the scheduler.
    """

    arrival_s: F8
    scheduled_s: F8
    first_token_s: F8
    finish_s: F8
    worker: I4
    prefill_worker: I4
    hit_tokens: I8
    host_hit_tokens: I8
    storage_hit_tokens: I8
    preemptions: I4
    outcome: I4
    input_tokens: I8
    output_tokens: I8
    kv_arrived_s: F8 | None = None
    front_end_s: F8 | None = None
    first_delivery_s: F8 | None = None
    last_delivery_s: F8 | None = None
    priority: I4 | None = None
    tenant: I4 | None = None
    thinking_tokens: I8 | None = None
    first_visible_s: F8 | None = None
    visible_delivery_s: F8 | None = None

    @property
    def finished(self) -> np.ndarray:
        """Boolean mask of finished requests."""
        return np.asarray(self.outcome == Outcome.FINISHED)

    @property
    def sent_s(self) -> F8:
        """When the client sends it; a follow-up: its think time after the predecessor's finish."""
        return np.asarray(self.arrival_s if self.front_end_s is None else self.arrival_s - self.front_end_s)

    @property
    def delivered_s(self) -> F8:
        """When the client has its last token."""
        return _later(self.finish_s, self.last_delivery_s)

    @property
    def ttft_s(self) -> F8:
        """Time to first token, seconds."""
        return _later(self.engine_ttft_s, self.front_end_s, self.first_delivery_s)

    @property
    def ttfo_s(self) -> F8:
        """Time to first output token that the client sees, seconds; NaN if it sees none. TTFT without thinking."""
        if self.first_visible_s is None:
            return self.ttft_s
        return _later(self.first_visible_s - self.arrival_s, self.front_end_s, self.visible_delivery_s)

    @property
    def engine_ttft_s(self) -> F8:
        """From the scheduler's first sight of a request to the end of the step with its first token, seconds."""
        return np.asarray(self.first_token_s - self.arrival_s)

    @property
    def tpot_s(self) -> F8:
        """Mean time per output token after the first, seconds; 0 for one-token outputs."""
        gaps = np.maximum(self.output_tokens - 1, 1)
        first_s = _later(self.first_token_s, self.first_delivery_s)
        return np.asarray((self.delivered_s - first_s) / gaps * (self.output_tokens > 1))

    @property
    def e2e_s(self) -> F8:
        """The client's send to its last token, seconds."""
        return _later(self.engine_e2e_s, self.front_end_s, self.last_delivery_s)

    @property
    def engine_e2e_s(self) -> F8:
        """From the scheduler's first sight of a request to the end of the step with its last token, seconds."""
        return np.asarray(self.finish_s - self.arrival_s)

    def columns(self) -> dict[str, np.ndarray]:
        """The arrays that are not None, by name."""
        columns = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {name: values for name, values in columns.items() if values is not None}

    def to_pandas(self) -> pd.DataFrame:
        """One row per request, with the derived latencies."""
        frame = pd.DataFrame(self.columns())
        frame["outcome"] = [Outcome(code).name.lower() for code in self.outcome]
        frame = frame.assign(ttft_s=self.ttft_s, tpot_s=self.tpot_s, e2e_s=self.e2e_s)
        return frame if self.first_visible_s is None else frame.assign(ttfo_s=self.ttfo_s)


def _later(seconds: F8, *delays: F8 | None) -> F8:
    """``seconds`` plus the known ``delays``."""
    for delay in delays:
        if delay is not None:
            seconds = seconds + delay
    return np.asarray(seconds)


@dataclass(frozen=True)
class WorkerTable:
    """Per worker, arrays of length W.

    steps, preemptions, requests: counts. busy_s: device time. energy_j: joules above idle; attached_j: of these, those
    of devices attached to its accelerators; link_j: those of links between its devices, None where no worker has any.
    prefill_tokens, decode_tokens: tokens computed. peak_kv_tokens: most KV tokens held at once.
    host_hit_tokens: tokens loaded back. evicted_tokens: cached tokens dropped from HBM.
    begun_s, gone_s: when it started, and had gone; NaN if it never started, or stayed to the end.
    standby_s: seconds that accelerators spent in standby. ffn_standby_s: likewise FFN accelerators that stand apart,
    None where no worker has any.

    For a worker with several schedulers (``kernels.engine.schedulers``) counts are summed, busy_s is their mean and
    peak_kv_tokens the highest of a scheduler's memory. busiest_s: device time of its busiest attention group; busy_s of
    a worker without several.
    """

    steps: I8
    requests: I8
    preemptions: I8
    busy_s: F8
    energy_j: F8
    prefill_tokens: I8
    decode_tokens: I8
    peak_kv_tokens: I8
    evicted_tokens: I8
    host_hit_tokens: I8
    begun_s: F8
    gone_s: F8
    standby_s: F8 = field(default_factory=lambda: np.zeros(1))
    attached_j: F8 = field(default_factory=lambda: np.zeros(1))
    busiest_s: F8 = field(default_factory=lambda: np.zeros(1))
    ffn_standby_s: F8 | None = None
    link_j: F8 | None = None

    def columns(self) -> dict[str, np.ndarray]:
        """The arrays that are not None, by name."""
        columns = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {name: values for name, values in columns.items() if values is not None}


@dataclass(frozen=True)
class StepLog:
    """Every step of a run, in launch order; structured arrays as in ``kernels.layout.sim``.

    steps (STEP_LOG): times, worker, kind, memory; ``first_entry``, ``entries`` and ``first_lost``, ``lost`` are ranges
        of the other two.
    entries (ENTRY_LOG): request index, tokens computed before and in the step, in batch order.
    lost: indices of requests that were preempted (vLLM) or retracted (SGLang), in order.
    fetches (FETCH_LOG): events of each fetch from storage, in order.
    outputs (OUTPUT_LOG): beside entries, tokens made and whether it is a decode; -1: their place tells, see ``gaps``.
        None: so do all.
    """

    steps: np.ndarray
    entries: np.ndarray
    lost: np.ndarray
    fetches: np.ndarray
    outputs: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.steps)

    def batch(self, step: int) -> np.ndarray:
        """Entries of a step."""
        first = self.steps["first_entry"][step]
        return self.entries[first : first + self.steps["entries"][step]]

    def lost_in(self, step: int) -> np.ndarray:
        """Requests lost while a step was formed."""
        first = self.steps["first_lost"][step]
        return self.lost[first : first + self.steps["lost"][step]]
