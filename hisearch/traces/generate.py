"""Synthetic workloads: seeded, vectorised, made of sessions.

Notation
    S   sessions; N requests (turns) of all sessions, session by session, turn by turn; slices of them where cut
    nominal time: a session's start plus the think times before the turn, as if responses took no time
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from hisearch.base.dtypes import F8, I4, I8
from hisearch.specs.workloads.workload import GeneratedAdaptersSpec, GeneratorSpec
from hisearch.traces.adapters import RequestAdapters, chosen
from hisearch.traces.sampling import arrival_times_s, draw_lengths, draw_think_s, stream
from hisearch.traces.sessions import close_loop
from hisearch.traces.trace import Trace, declare_limit, make_trace


@dataclass(frozen=True)
class _Turns:
    """All turns of all sessions, before anything is cut; arrays of length N but for ``starts_s`` (S).

    ``turn`` counts from 0; ``prefix`` is the index of the session's shared prefix, or -1.
    """

    starts_s: F8
    session: I8
    turn: I8
    nominal_s: F8
    think_s: F8
    input_tokens: I8
    output_tokens: I8
    prefix: I4


def generate_trace(spec: GeneratorSpec, *, seed: int = 0, until_s: float | None = None) -> Trace:
    """The workload that ``spec`` describes; ``spec.seed`` and ``seed`` together set its random streams.

    A follow-up waits for its predecessor, thinks, and its prompt is the predecessor's prompt and output followed by new
    tokens. Its ``arrival_s`` is its nominal time (NaN in a closed loop of users).

    Args:
        spec: the workload.
        seed: see above.
        until_s: of arrivals with a clock: draw on, and keep the sessions that start before this time, instead of
            ending where the spec says. What is drawn later comes from streams of its own, so that the first part of a
            longer trace is the shorter one.

    Raises:
        ValueError: ``until_s`` of a closed loop, which has no clock; or there would be no request.
    """
    closed = spec.arrivals.process == "closed_loop"
    if closed and until_s is not None:
        raise ValueError("a closed loop of users has no clock until which it could be drawn on")
    sessions, seeds = _sessions_to_try(spec), (spec.seed, seed)
    while True:
        turns = _draw(spec, sessions, seeds, -spec.warm_up_s)
        kept = _cut_closed(spec, turns) if closed else _cut_open(spec, turns)
        if kept is not None:
            break
        sessions *= 2
    if until_s is not None:
        turns = _drawn_on(spec, turns, seeds, until_s)
        kept = np.flatnonzero((turns.nominal_s >= 0) & (turns.starts_s[turns.session] < until_s))
    trace = _assemble(spec, turns, kept, closed)
    if spec.adapters is not None:
        trace = replace(trace, adapters=_draw_adapters(spec.adapters, turns, kept, stream("adapters", *seeds)))
    return declare_limit(trace, spec.max_output_tokens)


def _draw_adapters(
    spec: GeneratedAdaptersSpec, turns: _Turns, kept: I8, rng: np.random.Generator
) -> RequestAdapters | None:
    """The adapter of each session's requests; names of equal length, so that they sort by popularity."""
    popularity = np.arange(1, spec.count + 1, dtype=np.float64) ** -spec.zipf
    edges = spec.base_share + (1 - spec.base_share) * np.cumsum(popularity) / popularity.sum()
    drawn = rng.random(len(turns.starts_s))
    of_session = np.where(
        drawn < spec.base_share, -1, np.minimum(np.searchsorted(edges, drawn, "right"), spec.count - 1)
    )
    adapter = of_session[turns.session[kept]].astype(np.int32)
    digits = len(str(spec.count))
    names = tuple(f"adapter-{number:0{digits}}" for number in range(1, spec.count + 1))
    rank = np.resize(np.array(spec.ranks or [0], np.int32), spec.count)
    return chosen(RequestAdapters(names, rank, adapter), np.arange(len(kept)))


def _drawn_on(spec: GeneratorSpec, turns: _Turns, seeds: tuple[int, int], until_s: float) -> _Turns:
    """Further sessions behind those of ``turns``, in parts of as many, until one starts at ``until_s`` or later."""
    sessions, parts = len(turns.starts_s), [turns]
    while parts[-1].starts_s[-1] < until_s:
        further = _draw(spec, sessions, (*seeds, len(parts)), float(parts[-1].starts_s[-1]))
        parts.append(replace(further, session=further.session + sessions * len(parts)))
    return _Turns(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in _Turns.__annotations__})


def _mean_turns(spec: GeneratorSpec) -> float:
    """Expected turns of a session, before context limits."""
    chances = np.ones(spec.sessions.max_turns)
    listed = spec.sessions.continue_probability or [0.0]
    steps = min(len(listed), spec.sessions.max_turns - 1)
    chances[1:] = listed[-1]
    chances[1 : steps + 1] = listed[:steps]
    return float(np.cumprod(chances).sum())


def _sessions_to_try(spec: GeneratorSpec) -> int:
    """A first guess at the number of sessions that fill the trace."""
    if spec.arrivals.process == "closed_loop":
        return max(spec.arrivals.users or 1, int(1.1 * (spec.requests or 0) / _mean_turns(spec)) + 16)
    rate = spec.arrivals.rate_rps or 0.0
    span = spec.duration_s if spec.duration_s is not None else (spec.requests or 0) / (rate * _mean_turns(spec))
    expected = rate * (span + spec.warm_up_s)
    return int(expected * 1.1 + 4 * np.sqrt(expected) * max(1.0, spec.arrivals.cv)) + 16


def _draw(spec: GeneratorSpec, sessions: int, seeds: tuple[int, ...], begin_s: float) -> _Turns:
    """Draw ``sessions`` sessions in full, from ``begin_s`` on, context limits applied."""
    counts = _turn_counts(spec, sessions, stream("turns", *seeds))
    first = np.cumsum(counts) - counts
    total = int(counts.sum())
    session = np.repeat(np.arange(sessions), counts)
    turn = np.arange(total) - first[session]
    prefix = _draw_prefixes(spec, sessions, stream("shared prefixes", *seeds))
    prefix_tokens = np.array([p.tokens for p in spec.shared_prefixes] + [0])[prefix]

    output = draw_lengths(spec.output, total, stream("outputs", *seeds))
    user = draw_lengths(spec.sessions.new_input or spec.first_input, total, stream("follow-up inputs", *seeds))
    user[first] = draw_lengths(spec.first_input, sessions, stream("first inputs", *seeds))
    free_tokens = spec.max_context_tokens - prefix_tokens
    output[first] = np.minimum(output[first], free_tokens - 1)
    longest_prompt = spec.max_input_tokens or spec.max_context_tokens
    user[first] = np.minimum(user[first], np.minimum(free_tokens - output[first], longest_prompt - prefix_tokens))
    cumulative = np.cumsum(user + output)
    before_session = (cumulative - user - output)[first]
    prompt = prefix_tokens[session] + cumulative - output - before_session[session]

    think = draw_think_s(spec.sessions.think, total, stream("think", *seeds))
    think[first] = 0.0
    if spec.arrivals.process == "closed_loop":
        starts = np.zeros(sessions)
    else:
        starts = arrival_times_s(spec.arrivals, sessions, begin_s, stream("arrivals", *seeds))
    elapsed = np.cumsum(think)
    nominal = starts[session] + elapsed - elapsed[first][session]
    fits = (prompt <= longest_prompt) & (prompt + output <= spec.max_context_tokens)
    keep = ~_ended(fits, first, session)
    return _Turns(
        starts, session[keep], turn[keep], nominal[keep], think[keep], prompt[keep], output[keep], prefix[session][keep]
    )


def _ended(fits: np.ndarray, first: I8, session: I8) -> np.ndarray:
    """True for a session's first turn that does not fit and all turns after it; shape (N,)."""
    misses = np.cumsum(~fits)
    before_session = (misses - ~fits)[first]
    return np.asarray(misses - before_session[session] > 0)


def _turn_counts(spec: GeneratorSpec, sessions: int, rng: np.random.Generator) -> I8:
    """Turns of each session; shape (S,)."""
    counts = np.ones(sessions, dtype=np.int64)
    listed = spec.sessions.continue_probability
    going = np.arange(sessions)
    for turn in range(1, spec.sessions.max_turns if listed else 1):
        chance = listed[min(turn - 1, len(listed) - 1)]
        going = going[rng.random(len(going)) < chance]
        if not len(going):
            break
        counts[going] += 1
    return counts


def _draw_prefixes(spec: GeneratorSpec, sessions: int, rng: np.random.Generator) -> I4:
    """Index of each session's shared prefix, or -1; shape (S,)."""
    edges = np.cumsum([p.share for p in spec.shared_prefixes])
    drawn = np.searchsorted(edges, rng.random(sessions), side="right")
    return np.where(drawn < len(edges), drawn, -1).astype(np.int32)


def _cut_open(spec: GeneratorSpec, turns: _Turns) -> I8 | None:
    """Turns inside the trace, by nominal time, as indices in order of session; None where more sessions are needed."""
    horizon = turns.starts_s[-1]
    inside = turns.nominal_s >= 0
    if spec.duration_s is not None:
        if horizon < spec.duration_s:
            return None
        return np.flatnonzero(inside & (turns.nominal_s < spec.duration_s))
    target = spec.requests or 0
    candidates = np.flatnonzero(inside)
    order = candidates[np.argsort(turns.nominal_s[candidates], kind="stable")][:target]
    if len(order) < target or turns.nominal_s[order[-1]] > horizon:
        return None
    return np.sort(order)


def _cut_closed(spec: GeneratorSpec, turns: _Turns) -> I8 | None:
    """The first turns of all users' chains, longest chains cut first; None where more sessions are needed."""
    target, users = spec.requests or 0, spec.arrivals.users or 1
    user = turns.session % users
    order = np.argsort(user, kind="stable")
    lengths = np.bincount(user, minlength=users)
    position = np.empty(len(order), dtype=np.int64)
    position[order] = np.arange(len(order)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    chosen = np.lexsort((user, position))[:target]
    if len(chosen) < target or (lengths <= position[chosen[-1]]).any():
        return None
    return np.sort(chosen)


def _assemble(spec: GeneratorSpec, turns: _Turns, kept: I8, closed: bool) -> Trace:
    """The trace of the kept turns: links to predecessors, shared content, arrivals."""
    session, turn, inputs = turns.session[kept], turns.turn[kept], turns.input_tokens[kept]
    count = len(kept)
    if not count:
        raise ValueError("the generator made no request: duration_s is too short for its rate")
    before = np.arange(count) - 1
    follows = np.zeros(count, dtype=bool)
    follows[1:] = (session[1:] == session[:-1]) & (turn[1:] == turn[:-1] + 1)
    previous = np.where(follows, before, -1).astype(np.int32)
    think = np.where(follows, turns.think_s[kept], 0.0)
    total = inputs + turns.output_tokens[kept]
    shares_with, shared = _share_prefixes(spec, turns.prefix[kept])
    shares_with = np.where(follows, before, shares_with)
    shared = np.where(follows, total[np.maximum(before, 0)], shared)
    arrival = turns.nominal_s[kept]
    if closed:
        previous, think, arrival = close_loop(previous, think, session % (spec.arrivals.users or 1))
    return make_trace(
        arrival_s=arrival,
        input_tokens=inputs,
        output_tokens=turns.output_tokens[kept],
        previous=previous,
        think_s=think,
        session=np.unique(session, return_inverse=True)[1],
        shares_with=shares_with,
        shared_tokens=shared,
        open_loop=False,
    )


def _share_prefixes(spec: GeneratorSpec, prefix: I4) -> tuple[I8, I8]:
    """Sharing of first turns by shared prefix: the earliest request with the same prefix, and its length."""
    shares_with = np.full(len(prefix), -1, dtype=np.int64)
    shared = np.zeros(len(prefix), dtype=np.int64)
    for index, shared_prefix in enumerate(spec.shared_prefixes):
        members = np.flatnonzero(prefix == index)
        if len(members):
            shares_with[members[1:]] = members[0]
            shared[members[1:]] = shared_prefix.tokens
    return shares_with, shared
