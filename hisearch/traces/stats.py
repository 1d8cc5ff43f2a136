"""Statistics of a compiled trace: rates, burstiness, lengths, sessions, and what a prefix cache could hit.

Hit rates count prompt tokens alone, of prompts taken in the trace's order, against what earlier *prompts* left in the
cache; a prompt may hit all of its tokens, its last ones included. (That is how published figures count. An engine
computes at least one token of every prompt, and caches outputs too: its figures differ.)
In ``trace_stats``, as in an engine that serves them, requests of different adapters share nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hisearch.base.dtypes import F8, I8
from hisearch.specs.wording import format_percent, leave_out
from hisearch.traces.adapter_tree import adapter_count, by_adapter
from hisearch.traces.agent_stats import AgentStats, agent_stats
from hisearch.traces.compiled import CompiledTrace
from hisearch.traces.distribution import Distribution

#: Cache sizes at which the curve of ``trace_stats`` is taken, as shares of the tokens of all distinct prompts.
CURVE_FRACTIONS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
#: Block size of caches of a trace that shares by the token: that of vLLM.
DEFAULT_BLOCK_TOKENS = 16
#: Tenths of a decade at which ``curve_capacities`` lie, and how far they reach.
_CURVE_STEPS, _CURVE_DECADES = (10, 15, 20, 30, 50, 70), 4
#: Blocks; a larger cache counts as unlimited.
_MORE_THAN_ANY_TRACE = 1 << 62


@dataclass(frozen=True)
class CachePoint:
    """Hit rate of an LRU cache of ``capacity_tokens``."""

    capacity_tokens: int
    hit_tokens: int
    hit_rate: float


@dataclass(frozen=True)
class TraceStats:
    """Statistics of a trace.

    Attributes:
        requests, follow_ups: counts; a follow-up waits for its predecessor.
        known_arrivals: requests with a recorded (or nominal) arrival; span, rate and burstiness are theirs.
        span_s: from the first to the last of them. rate_rps: their number less one over the span; 0 without a span.
        interarrival_cv: coefficient of variation of the gaps between them.
        fano_10s, fano_60s: variance / mean of counts in windows of that length (1 for a Poisson process); None where
            fewer than two whole windows fit.
        input_tokens, output_tokens, think_s: distributions (think times of follow-ups). thinking_tokens: of the
            requests that think, thinking_fraction of all; None where none does.
        sessions, turns: number of sessions, distribution of requests in them. single_turn_fraction: sessions of one.
        adapters: LoRA adapters that requests ask for.
        unique_prompt_tokens: tokens of all distinct prompts, shared ones counted once (for each adapter).
        ideal_hit_tokens, ideal_hit_rate: of an unlimited cache.
        lru: hit rates against size, of blocks of ``block_tokens``.
        agents: of a trace of agents; None of any other.
        notes: what the trace's file was taken for. warnings: what else a reader should know.
    """

    name: str
    digest: str
    requests: int
    follow_ups: int
    known_arrivals: int
    span_s: float
    rate_rps: float
    interarrival_cv: float | None
    fano_10s: float | None
    fano_60s: float | None
    input_tokens: Distribution
    output_tokens: Distribution
    thinking_tokens: Distribution | None
    thinking_fraction: float
    think_s: Distribution | None
    sessions: int
    turns: Distribution
    single_turn_fraction: float
    adapters: int
    prompt_tokens: int
    unique_prompt_tokens: int
    ideal_hit_tokens: int
    ideal_hit_rate: float
    block_tokens: int
    lru: tuple[CachePoint, ...]
    skipped_rows: int
    agents: AgentStats | None
    notes: tuple[str, ...]
    warnings: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        return asdict(self)


def requests_over_window(trace: CompiledTrace, window_tokens: int | npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Mask of requests that a model with this window, or with each request's own (N,), rejects; shape (N,).

    Their prompt and declared output together exceed the window.
    """
    arrays = trace.arrays
    return np.asarray(arrays.input_tokens + arrays.max_output_tokens > window_tokens)


def window_warning(trace: CompiledTrace, window_tokens: int) -> str | None:
    """Message on the requests that every deployment of a model with this window rejects; None where there are none."""
    over = requests_over_window(trace, window_tokens)
    count = int(over.sum())
    if not count:
        return None
    arrays = trace.arrays
    prompts = int((arrays.input_tokens > window_tokens).sum())
    longest = int((arrays.input_tokens + arrays.max_output_tokens).max())
    return (
        f"{count:,} of {len(trace):,} requests ({format_percent(count / len(trace), 1)}) exceed the model's window of "
        f"{window_tokens:,} tokens with prompt and declared output, {prompts:,} of them with the prompt alone (the "
        f"longest has {longest:,} tokens): every deployment rejects them; {leave_out(window_tokens)}"
    )


def trace_stats(
    trace: CompiledTrace, *, capacities_tokens: Sequence[int] | None = None, block_tokens: int | None = None
) -> TraceStats:
    """All statistics of a trace.

    Args:
        trace: the trace.
        capacities_tokens: cache sizes for the curve; by default shares of the distinct prompts' tokens.
        block_tokens: block size of the cache; see ``default_block_tokens`` where None.

    Raises:
        ValueError: see ``lru_hit_curve``.
    """
    block_tokens = default_block_tokens(trace) if block_tokens is None else block_tokens
    arrays = trace.arrays
    times = np.sort(arrays.arrival_s[np.isfinite(arrays.arrival_s)])
    gaps = np.diff(times)
    span = trace.span_s
    turns = np.bincount(np.unique(arrays.session, return_inverse=True)[1])
    keyed = by_adapter(trace)
    ideal = int(ideal_hit_tokens(keyed).sum())
    unique = trace.prompt_tokens - ideal
    if capacities_tokens is None:
        sizes = (int(fraction * unique) // block_tokens * block_tokens for fraction in CURVE_FRACTIONS)
        capacities_tokens = sorted({max(block_tokens, size) for size in sizes})
    inputs, outputs = Distribution.of(arrays.input_tokens), Distribution.of(arrays.output_tokens)
    turns_of = Distribution.of(turns)
    if inputs is None or outputs is None or turns_of is None:
        raise ValueError("the trace has no requests")
    return TraceStats(
        name=trace.name,
        digest=trace.digest,
        requests=len(trace),
        follow_ups=int((arrays.previous >= 0).sum()),
        known_arrivals=len(times),
        span_s=span,
        rate_rps=(len(times) - 1) / span if span > 0 else 0.0,
        interarrival_cv=float(gaps.std() / gaps.mean()) if len(gaps) > 1 and span > 0 else None,
        fano_10s=fano_factor(times, 10.0),
        fano_60s=fano_factor(times, 60.0),
        input_tokens=inputs,
        output_tokens=outputs,
        thinking_tokens=Distribution.of(arrays.thinking_tokens[arrays.thinking_tokens > 0]),
        thinking_fraction=float((arrays.thinking_tokens > 0).mean()),
        think_s=Distribution.of(arrays.think_s[arrays.previous >= 0]),
        sessions=len(turns),
        turns=turns_of,
        single_turn_fraction=float((turns == 1).mean()),
        adapters=adapter_count(trace),
        prompt_tokens=trace.prompt_tokens,
        unique_prompt_tokens=unique,
        ideal_hit_tokens=ideal,
        ideal_hit_rate=ideal / trace.prompt_tokens,
        block_tokens=block_tokens,
        lru=tuple(lru_hit_curve(keyed, capacities_tokens, block_tokens=block_tokens)),
        skipped_rows=trace.skipped_rows,
        agents=agent_stats(trace, ideal_hit_tokens(trace)),
        notes=trace.notes,
        warnings=trace.cautions,
    )


def fano_factor(times_s: F8, window_s: float) -> float | None:
    """Variance over mean of arrivals per window, whole windows from the first arrival; None for fewer than two."""
    if not len(times_s):
        return None
    windows = int((times_s[-1] - times_s[0]) // window_s)
    if windows < 2:
        return None
    # Windows without arrivals are counted, not kept: a span may hold more of them than memory does.
    window = (times_s - times_s[0]) // window_s
    counts = np.unique(window[window < windows], return_counts=True)[1].astype(np.float64)
    mean = float(counts.sum()) / windows
    squares = float(((counts - mean) ** 2).sum()) + (windows - len(counts)) * mean**2
    return squares / windows / mean


def ideal_hit_tokens(trace: CompiledTrace, *, include_outputs: bool = False) -> I8:
    """Tokens of each prompt that an unlimited cache holds, requests taken one after another in order; shape (N,).

    Args:
        trace: the trace.
        include_outputs: earlier outputs are in the cache too (as they are in an engine's).
    """
    from hisearch.traces import _tree

    arrays = trace.arrays
    hits: I8 = _tree.ideal_hits(
        arrays.parent, arrays.end_tokens, arrays.prompt_node, arrays.output_node, include_outputs
    )
    return hits


def unique_prompt_tokens(trace: CompiledTrace) -> int:
    """Tokens of all distinct prompts, shared ones counted once: what an unlimited cache ends up holding."""
    return trace.prompt_tokens - int(ideal_hit_tokens(trace).sum())


def default_block_tokens(trace: CompiledTrace) -> int:
    """Block size of caches where none is asked for: that of the trace, or 16 where it shares by the token."""
    return trace.block_tokens if trace.block_tokens > 1 else DEFAULT_BLOCK_TOKENS


def lru_hit_curve(
    trace: CompiledTrace,
    capacities_tokens: Sequence[int],
    *,
    block_tokens: int = DEFAULT_BLOCK_TOKENS,
    include_outputs: bool = False,
) -> list[CachePoint]:
    """Hit rates of LRU caches of whole blocks, requests taken one after another in order; one pass for all capacities.

    A cache of C tokens holds C // block_tokens blocks. A prompt's partial last block takes a block too, and is hit by
    a prompt that ends with it. A request first looks up its leading blocks, then uses all of its blocks from last to
    first, so that a chain loses its tail before its head.

    Args:
        trace: the trace.
        capacities_tokens: cache sizes.
        block_tokens: tokens per block.
        include_outputs: outputs are stored too, and, as in an engine, whole blocks alone.

    Raises:
        ValueError: a capacity below 0, or blocks of less than 1 token.
    """
    for capacity in capacities_tokens:
        if capacity < 0:
            raise ValueError(f"a cache cannot hold {capacity} tokens")
    distance, blocks, tokens = _lru_reuses(trace, block_tokens, include_outputs)
    points = []
    for capacity in capacities_tokens:
        held = min(capacity // block_tokens, _MORE_THAN_ANY_TRACE)
        hits = int((np.clip(held - distance, 0, blocks) * tokens).sum())
        points.append(CachePoint(int(capacity), hits, hits / trace.prompt_tokens))
    return points


def curve_capacities(trace: CompiledTrace, *, block_tokens: int = DEFAULT_BLOCK_TOKENS) -> list[int]:
    """Round capacities, about evenly spaced on a logarithmic scale, for an LRU hit-rate curve; tokens, ascending.

    The last one is the first above which nothing more is hit; the others lie within four decades below it.

    Raises:
        ValueError: blocks of less than 1 token.
    """
    distance, blocks, _ = _lru_reuses(trace, block_tokens, include_outputs=False)
    enough = int((distance + blocks).max(initial=1)) * block_tokens
    lowest = max(block_tokens, enough // 10**_CURVE_DECADES)
    steps = {step * 10**decade // 10 for decade in range(len(str(enough)) + 1) for step in _CURVE_STEPS}
    return [*sorted(capacity for capacity in steps if lowest <= capacity < enough), enough]


def _lru_reuses(trace: CompiledTrace, block_tokens: int, include_outputs: bool) -> tuple[I8, I8, I8]:
    """Reuses of runs of blocks: blocks above them in the LRU stack, blocks of the run, tokens of each block."""
    from hisearch.traces._reuse import reuse_distances

    if block_tokens < 1:
        raise ValueError(f"block_tokens must be at least 1, not {block_tokens}")
    arrays = trace.arrays
    tree = (arrays.parent, arrays.start_tokens, arrays.end_tokens, arrays.prompt_node, arrays.output_node)
    reuses: tuple[I8, I8, I8] = reuse_distances(*tree, block_tokens, include_outputs)
    return reuses
