"""When each output token was made, from the log of steps: exact gaps between tokens (inter-token latencies, ITL).

Notation
    N requests, S logged steps, E logged entries, T output tokens of all requests
    slot    a token's place among all T: those of request 0 in order, then those of request 1, ...

An entry samples a token where it computes its request's newest known token. With ``g`` tokens made so far, it ends at
``input_tokens + g``: the first entry that ends there makes the token of slot ``g``. Entries recomputed after a
preemption end earlier, or in chunks that end where a token exists already. Entries beyond
``input_tokens + output_tokens - 1`` make none: SGLang's overlap schedule decodes a request once more after its end.
With drafted tokens the log has how many each entry made instead.
One exception: SGLang's overlap schedule retracts requests while a step makes a token for them, and discards that token;
the resumed request makes it again.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hisearch.base.dtypes import F8, I8
from hisearch.kernels.layout import sim as la
from hisearch.simulate.results.result import Result
from hisearch.simulate.results.tables import StepLog

#: Of a slot: no logged entry makes this token.
NOT_MADE = -1


class LogMissing(ValueError):  # noqa: N818
    """The result has no log of its steps, or one that does not account for all tokens."""


class TokenEntries(NamedTuple):
    """The entry of the log that made each token.

    first: (N + 1,) the slot of each request's first token; the last one is T. entry: (T,) indices of ``log.entries``,
    ``NOT_MADE``: none.
    """

    first: I8
    entry: I8


def step_log(result: Result) -> StepLog:
    """The result's log.

    Raises:
        LogMissing: the simulation kept none.
    """
    if result.log is None:
        raise LogMissing("the result has no log of its steps: simulate with log=True")
    return result.log


def entry_steps(log: StepLog) -> I8:
    """The step of each entry, (E,)."""
    return np.repeat(np.arange(len(log)), log.steps["entries"])


def steps_of(log: StepLog, entries: I8) -> I8:
    """The step of some entries, given by their indices: as ``entry_steps(log)[entries]``, without the full array."""
    return np.searchsorted(np.cumsum(log.steps["entries"], dtype=np.int64), entries, side="right")


def logged_losses(log: StepLog) -> tuple[I8, I8]:
    """(positions in ``log.lost`` that belong to a step, their steps), in order."""
    counts = log.steps["lost"].astype(np.int64)
    total = int(counts.sum())
    within = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.repeat(log.steps["first_lost"], counts) + within, np.repeat(np.arange(len(log)), counts)


def token_entries(result: Result) -> TokenEntries:
    """The entry that made each output token of all requests.

    About 100 ns and 100 bytes per logged entry.

    Raises:
        LogMissing: there is no log.
    """
    log = step_log(result)
    table = result.requests
    request = log.entries["request"]
    first = np.concatenate([[0], np.cumsum(table.output_tokens)])
    index = log.entries["computed"] + log.entries["tokens"] - table.input_tokens[request]
    kept = ~_discarded_tokens(log, len(table.outcome))
    makes = (index >= 0) & (index < table.output_tokens[request]) & kept
    if log.outputs is not None:
        makes &= log.outputs["made"] < 0
    makers = np.flatnonzero(makes)
    unset = len(log.entries)
    entry = np.full(first[-1], unset, np.int64)
    np.minimum.at(entry, first[request[makers]] + index[makers], makers)
    entry[entry == unset] = NOT_MADE
    if log.outputs is not None:
        slots, makers = _counted_tokens(log, first, kept)
        entry[slots] = makers
    return TokenEntries(first, entry)


def _counted_tokens(log: StepLog, first: I8, kept: npt.NDArray[np.bool_]) -> tuple[I8, I8]:
    """(slots, the entry that made each) of tokens whose entries say how many they made; ``kept`` (E,): not in vain."""
    assert log.outputs is not None
    makers = np.flatnonzero((log.outputs["made"] > 0) & kept)
    request = log.entries["request"][makers]
    by_request = np.argsort(request, kind="stable")
    makers, request = makers[by_request], request[by_request]
    made = log.outputs["made"][makers].astype(np.int64)
    # Tokens made before each entry, of all requests and then of its own.
    before = np.cumsum(made) - made
    begins = np.flatnonzero(np.diff(request, prepend=-1))
    before -= np.repeat(before[begins], np.diff(begins, append=len(request)))
    within = np.arange(int(made.sum())) - np.repeat(np.cumsum(made) - made, made)
    return np.repeat(first[request] + before, made) + within, np.repeat(makers, made)


def _discarded_tokens(log: StepLog, count: int) -> npt.NDArray[np.bool_]:
    """(E,) whether the entry's request was retracted by SGLang while the step ran; ``count``: N."""
    discarded = np.zeros(len(log.entries), bool)
    positions, loss_step = logged_losses(log)
    retracted = log.steps["kind"][loss_step] != la.ANY_STEP
    lost, loss_step = log.lost[positions][retracted], loss_step[retracted]
    if not len(lost):
        return discarded
    has_loss = np.zeros(count, bool)
    has_loss[lost] = True
    candidates = np.flatnonzero(has_loss[log.entries["request"]])
    request = log.entries["request"][candidates].astype(np.int64)
    step = entry_steps(log)[candidates]
    # The first loss of the same request in a later step; at most one step is in flight when that is formed.
    losses = np.sort(lost.astype(np.int64) * len(log) + loss_step)
    after = np.searchsorted(losses, request * len(log) + step, side="right")
    next_loss = losses[np.minimum(after, len(losses) - 1)]
    same = (after < len(losses)) & (next_loss // len(log) == request)
    under_way = log.steps["scheduled_s"][next_loss % len(log)] < log.steps["end_s"][step]
    discarded[candidates[same & under_way]] = True
    return discarded


def token_times(result: Result) -> tuple[I8, F8]:
    """(``first`` as in ``TokenEntries``, when each token came out in seconds, (T,), NaN where no step made it).

    That is the end of its step, or of the pass that the engine made before it took in the step's results.

    Raises:
        LogMissing: there is no log, or it lacks a step that made a token of a finished request.
    """
    log = step_log(result)
    first, entry = token_entries(result)
    made = entry != NOT_MADE
    times = np.full(len(entry), np.nan)
    known_s = np.maximum(log.steps["end_s"], log.steps["known_s"])
    times[made] = known_s[entry_steps(log)[entry[made]]]
    lacking = np.flatnonzero(np.repeat(result.requests.finished, np.diff(first)) & ~made)
    if len(lacking):
        slot = int(lacking[0])
        request = int(np.searchsorted(first, slot, side="right")) - 1
        raise LogMissing(f"the log has no step that made output token {slot - first[request]} of request {request}")
    return first, times


def exact_gaps(result: Result) -> F8:
    """Every gap between consecutive output tokens of every finished request, seconds, by request and in order.

    Sum over finished requests of ``output_tokens - 1`` values: each gap counts once, so that long outputs weigh more
    than in TPOT. Tokens that one step made, with drafts, have no gap between them, as a client sees one chunk of text.
    A request cut by the horizon has none: its last gap has no length.

    Raises:
        LogMissing: there is no log.
    """
    first, times = token_times(result)
    starts = np.zeros(len(times) + 1, bool)
    starts[first] = True  # the first token of a request ends no gap
    counted = np.repeat(result.requests.finished, np.diff(first)) & ~starts[:-1]
    if step_log(result).outputs is not None:
        counted[1:] &= times[1:] != times[:-1]
    ends = np.flatnonzero(counted)
    return np.asarray(times[ends] - times[ends - 1])


def itl_percentiles(result: Result, percents: npt.ArrayLike) -> F8:
    """Percentiles of ``exact_gaps``, seconds, linear between order statistics; NaN where there is no gap.

    percents: of shape (Q,), each in [0, 100]. The result needs a log.

    Raises:
        LogMissing: there is no log.
        ValueError: a percentile out of range.
    """
    percentiles = np.atleast_1d(np.asarray(percents, np.float64))
    if not ((percentiles >= 0) & (percentiles <= 100)).all():
        raise ValueError(f"percentiles must be within 0 to 100, not {percentiles.tolist()}")
    gaps = exact_gaps(result)
    return np.asarray(np.percentile(gaps, percentiles)) if len(gaps) else np.full(len(percentiles), np.nan)
