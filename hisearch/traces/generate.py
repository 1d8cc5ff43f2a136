"""Synthetic workloads: seeded, vectorised, made of sessions.

Notation
    N   requests (turns) of all sessions, session by session, turn by turn; slices of them where cut
    nominal time: a session's start plus the think times before the turn, as if responses took no time
    output: all that a turn makes, its thinking included; answer: what the client sees of it
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hisearch.base.dtypes import F8, I8
from hisearch.specs.workloads.workload import ArrivalSpec, GeneratorSpec
from hisearch.traces.adapters import draw_adapters, draw_grammars, named_grammars
from hisearch.traces.sampling import arrival_times_s, draw_lengths, draw_think_s, stream
from hisearch.traces.sessions import close_loop, ended, turn_counts
from hisearch.traces.trace import Trace, declare_limit, make_trace


@dataclass(frozen=True)
class _Turns:
    """Turns of sessions, before anything is cut; arrays of length N.

    ``start_s`` is the session's, ``turn`` counts from 0; ``prefix`` is the index of the session's shared prefix, or -1,
    ``grammar`` likewise of the turn.
    """

    start_s: F8
    session: I8
    turn: I8
    nominal_s: F8
    think_s: F8
    input_tokens: I8
    output_tokens: I8
    thinking_tokens: I8
    prefix: I8
    priority: I8
    tenant: I8
    grammar: I8


@dataclass(frozen=True)
class _Law:
    """What sessions of a class are drawn from.

    spec: the generator, with what the class says instead. suffix: of the names of its random streams. first_prefix:
    index of its first shared prefix among those of all; first_grammar: likewise. share: of its source's sessions.
    """

    spec: GeneratorSpec
    suffix: str = ""
    first_prefix: int = 0
    first_grammar: int = 0
    share: float = 1.0
    priority: int = 0
    tenants: tuple[int, ...] = (0,)

    @property
    def mean_turns(self) -> float:
        """Expected turns of a session, before context limits."""
        sessions = self.spec.sessions
        chances = np.ones(sessions.max_turns)
        listed = sessions.continue_probability or [0.0]
        steps = min(len(listed), sessions.max_turns - 1)
        chances[1:] = listed[-1]
        chances[1 : steps + 1] = listed[:steps]
        return float(np.cumprod(chances).sum())


@dataclass(frozen=True)
class _Source:
    """One arrival process, and the classes of the sessions that it starts."""

    arrivals: ArrivalSpec
    laws: tuple[_Law, ...]
    suffix: str = ""

    @property
    def mean_turns(self) -> float:
        """Expected turns of a session, before context limits."""
        return sum(law.share * law.mean_turns for law in self.laws)

    @property
    def rate_rps(self) -> float:
        """Sessions per second; 0 in a closed loop."""
        return self.arrivals.rate_rps or 0.0


@dataclass(frozen=True)
class _Drawn:
    """Sessions drawn in full, and how many; those that start before ``horizon_s`` are all there."""

    turns: _Turns
    sessions: int
    horizon_s: float


def generate_trace(spec: GeneratorSpec, *, seed: int = 0, until_s: float | None = None) -> Trace:
    """The workload that ``spec`` describes; ``spec.seed`` and ``seed`` together set its random streams.

    A follow-up waits for its predecessor and its think time. Its prompt is the predecessor's prompt and output, without
    thinking where the spec drops it, followed by new tokens. Its ``arrival_s`` is the nominal time (NaN: closed loop).

    Args:
        spec: the workload.
        seed: see above.
        until_s: of arrivals with a clock: draw on, and keep the sessions that start before this time. What is drawn
            later comes from streams of its own, so that the first part of a longer trace is the shorter one.

    Raises:
        ValueError: ``until_s`` of a closed loop, which has no clock; or there would be no request.
    """
    closed = spec.users is not None
    if closed and until_s is not None:
        raise ValueError("a closed loop of users has no clock until which it could be drawn on")
    sources, seeds = _sources(spec), (spec.seed, seed)
    counts = _sessions_to_try(spec, sources)
    while True:
        parts = [
            _draw_sessions(each, count, seeds, -spec.warm_up_s) for each, count in zip(sources, counts, strict=True)
        ]
        drawn = _together(parts)
        kept = _cut_closed(spec, drawn.turns) if closed else _cut_open(spec, drawn)
        if kept is not None:
            break
        counts = [2 * count for count in counts]
    if until_s is not None:
        parts = [_drawn_on(each, part, seeds, until_s) for each, part in zip(sources, parts, strict=True)]
        drawn = _together(parts)
        kept = np.flatnonzero((drawn.turns.nominal_s >= 0) & (drawn.turns.start_s < until_s))
    trace = _assemble(spec, drawn.turns, kept)
    if spec.adapters is not None:
        pairs = zip(sources, parts, strict=True)
        draws = [stream("adapters" + each.suffix, *seeds).random(part.sessions) for each, part in pairs]
        trace = replace(trace, adapters=draw_adapters(spec.adapters, drawn.turns.session[kept], draws))
    trace = replace(trace, grammars=named_grammars(spec, drawn.turns.grammar[kept]))
    return declare_limit(trace, spec.max_output_tokens)


def _sources(spec: GeneratorSpec) -> list[_Source]:
    """The generator's arrival process and those of classes, each with what its sessions are drawn from."""
    if not spec.classes:
        return [_Source(_given(spec.arrivals), (_Law(spec),))]
    shared: list[_Law] = []
    sources: list[_Source] = []
    prefixes = len(spec.shared_prefixes)
    grammars = 0 if spec.structured is None else spec.structured.grammars
    for each in spec.classes:
        stated = {
            name: value
            for name in ("first_input", "output", "sessions", "shared_prefixes", "structured")
            if (value := getattr(each, name)) is not None
        }
        first_prefix = prefixes if each.shared_prefixes is not None else 0
        prefixes += len(each.shared_prefixes or ())
        first_grammar = 0 if each.structured is None else grammars
        grammars += 0 if each.structured is None else each.structured.grammars
        suffix = f" of {each.name}"
        law = _Law(
            spec.model_copy(update=stated), suffix, first_prefix, first_grammar, each.share or 1.0, each.priority,
            tuple(each.tenants),
        )  # fmt: skip
        if each.arrivals is not None:
            sources.append(_Source(each.arrivals, (law,), suffix))
        else:
            shared.append(law)
    return [_Source(_given(spec.arrivals), tuple(shared)), *sources] if shared else sources


def _given(arrivals: ArrivalSpec | None) -> ArrivalSpec:
    """Arrivals whose presence the spec's own check ensures."""
    assert arrivals is not None
    return arrivals


def _together(parts: Sequence[_Drawn]) -> _Drawn:
    """Sessions of several draws as of one, those of each behind those before it."""
    if len(parts) == 1:
        return parts[0]
    before = np.cumsum([0, *(part.sessions for part in parts)])
    moved = [replace(part.turns, session=part.turns.session + at) for part, at in zip(parts, before, strict=False)]
    return _Drawn(_joined(moved), int(before[-1]), min(part.horizon_s for part in parts))


def _joined(parts: Sequence[_Turns]) -> _Turns:
    return _Turns(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in _Turns.__annotations__})


def _drawn_on(source: _Source, first: _Drawn, seeds: tuple[int, int], until_s: float) -> _Drawn:
    """Further sessions behind the first ones, in parts of as many, until one starts at ``until_s`` or later."""
    parts = [first]
    while parts[-1].horizon_s < until_s:
        parts.append(_draw_sessions(source, first.sessions, (*seeds, len(parts)), parts[-1].horizon_s))
    return _together(parts)


def _sessions_to_try(spec: GeneratorSpec, sources: Sequence[_Source]) -> list[int]:
    """A first guess at the number of sessions of each source that fill the trace."""
    if spec.users is not None:
        return [max(spec.users, int(1.1 * (spec.requests or 0) / sources[0].mean_turns) + 16)]
    span = spec.duration_s
    if span is None:
        span = (spec.requests or 0) / sum(each.rate_rps * each.mean_turns for each in sources)
    counts = []
    for each in sources:
        expected = each.rate_rps * (span + spec.warm_up_s)
        counts.append(int(expected * 1.1 + 4 * np.sqrt(expected) * max(1.0, each.arrivals.cv)) + 16)
    return counts


def _draw_sessions(source: _Source, sessions: int, seeds: tuple[int, ...], begin_s: float) -> _Drawn:
    """Draw ``sessions`` sessions of a source in full, from ``begin_s`` on, context limits applied."""
    if source.arrivals.process == "closed_loop":
        starts_s = np.zeros(sessions)
    else:
        starts_s = arrival_times_s(source.arrivals, sessions, begin_s, stream(f"arrivals{source.suffix}", *seeds))
    if len(source.laws) == 1:
        turns = _draw(source.laws[0], np.arange(sessions), starts_s, seeds)
    else:
        edges = np.cumsum([law.share for law in source.laws])[:-1]
        drawn = np.searchsorted(edges, stream("classes", *seeds).random(sessions), side="right")
        of_classes = [_draw(law, np.flatnonzero(drawn == k), starts_s, seeds) for k, law in enumerate(source.laws)]
        turns = _joined(of_classes)
        order = np.argsort(turns.session, kind="stable")
        turns = _Turns(**{name: getattr(turns, name)[order] for name in _Turns.__annotations__})
    return _Drawn(turns, sessions, float(starts_s[-1]))


def _draw(law: _Law, numbers: I8, starts_s: F8, seeds: tuple[int, ...]) -> _Turns:
    """Draw the sessions with these numbers of those that start at ``starts_s``."""
    spec, sessions = law.spec, len(numbers)

    def draws(subsystem: str) -> np.random.Generator:
        return stream(f"{subsystem}{law.suffix}", *seeds)

    counts = turn_counts(spec, sessions, draws("turns"))
    first = np.cumsum(counts) - counts
    total = int(counts.sum())
    session = np.repeat(np.arange(sessions), counts)
    turn = np.arange(total) - first[session]
    prefix = _draw_prefixes(spec, sessions, draws("shared prefixes"))
    prefix_tokens = np.array([p.tokens for p in spec.shared_prefixes] + [0])[prefix]
    prefix = np.where(prefix >= 0, prefix + law.first_prefix, -1)
    tenants = np.array(law.tenants)
    if len(tenants) > 1:
        tenant = tenants[draws("tenants").integers(len(tenants), size=sessions)]
    else:
        tenant = np.full(sessions, tenants[0])

    thinking = _draw_thinking(spec, total, draws)
    output = draw_lengths(spec.output, total, draws("outputs")) + thinking
    user = draw_lengths(spec.sessions.new_input or spec.first_input, total, draws("follow-up inputs"))
    user[first] = draw_lengths(spec.first_input, sessions, draws("first inputs"))
    free_tokens = spec.max_context_tokens - prefix_tokens
    output[first] = np.minimum(output[first], free_tokens - 1)
    thinking[first] = np.minimum(thinking[first], output[first] - 1)
    longest_prompt = spec.max_input_tokens or spec.max_context_tokens
    user[first] = np.minimum(user[first], np.minimum(free_tokens - output[first], longest_prompt - prefix_tokens))
    said = output if _keeps_thinking(spec) else output - thinking
    cumulative = np.cumsum(user + said)
    before_session = (cumulative - user - said)[first]
    prompt = prefix_tokens[session] + cumulative - said - before_session[session]

    think = draw_think_s(spec.sessions.think, total, draws("think"))
    think[first] = 0.0
    elapsed = np.cumsum(think)
    starts = starts_s[numbers]
    nominal = starts[session] + elapsed - elapsed[first][session]
    fits = (prompt <= longest_prompt) & (prompt + output <= spec.max_context_tokens)
    keep = ~ended(fits, first, session)
    session = session[keep]
    return _Turns(
        start_s=starts[session],
        session=numbers[session],
        turn=turn[keep],
        nominal_s=nominal[keep],
        think_s=think[keep],
        input_tokens=prompt[keep],
        output_tokens=output[keep],
        thinking_tokens=thinking[keep],
        prefix=prefix[session],
        priority=np.full(len(session), law.priority),
        tenant=tenant[session],
        grammar=draw_grammars(spec.structured, draws("grammars").random, total, law.first_grammar)[keep],
    )


def _draw_thinking(spec: GeneratorSpec, count: int, draws: Callable[[str], np.random.Generator]) -> I8:
    """Thinking tokens of each turn; shape (N,)."""
    if spec.thinking is None:
        return np.zeros(count, dtype=np.int64)
    thinks = draws("which turns think").random(count) < spec.thinking.share
    return draw_lengths(spec.thinking.tokens, count, draws("thinking")) * thinks


def _keeps_thinking(spec: GeneratorSpec) -> bool:
    """Whether a session's prompts hold the thinking of its earlier turns."""
    return spec.thinking is None or spec.thinking.history == "kept"


def _draw_prefixes(spec: GeneratorSpec, sessions: int, rng: np.random.Generator) -> I8:
    """Index of each session's shared prefix, or -1; shape (S,)."""
    edges = np.cumsum([p.share for p in spec.shared_prefixes])
    drawn = np.searchsorted(edges, rng.random(sessions), side="right")
    return np.where(drawn < len(edges), drawn, -1)


def _cut_open(spec: GeneratorSpec, drawn: _Drawn) -> I8 | None:
    """Turns inside the trace, by nominal time, as indices in order of session; None where more sessions are needed."""
    turns, horizon = drawn.turns, drawn.horizon_s
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
    target, users = spec.requests or 0, spec.users or 1
    user = turns.session % users
    order = np.argsort(user, kind="stable")
    lengths = np.bincount(user, minlength=users)
    position = np.empty(len(order), dtype=np.int64)
    position[order] = np.arange(len(order)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    chosen = np.lexsort((user, position))[:target]
    if len(chosen) < target or (lengths <= position[chosen[-1]]).any():
        return None
    return np.sort(chosen)


def _assemble(spec: GeneratorSpec, turns: _Turns, kept: I8) -> Trace:
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
    outputs, thinking = turns.output_tokens[kept], turns.thinking_tokens[kept]
    # Without the thinking of the turn before, a prompt begins with that turn's prompt alone: the answer's KV differs.
    alike = inputs + (outputs if _keeps_thinking(spec) else np.where(thinking > 0, 0, outputs))
    shares_with, shared = _share_prefixes(spec, turns.prefix[kept])
    shares_with = np.where(follows, before, shares_with)
    shared = np.where(follows, alike[np.maximum(before, 0)], shared)
    arrival = turns.nominal_s[kept]
    if spec.users is not None:
        previous, think, arrival = close_loop(previous, think, session % spec.users)
    return make_trace(
        arrival_s=arrival,
        input_tokens=inputs,
        output_tokens=outputs,
        thinking_tokens=thinking,
        previous=previous,
        think_s=think,
        session=np.unique(session, return_inverse=True)[1],
        tenant=turns.tenant[kept],
        priority=turns.priority[kept],
        shares_with=shares_with,
        shared_tokens=shared,
        open_loop=False,
    )


def _share_prefixes(spec: GeneratorSpec, prefix: I8) -> tuple[I8, I8]:
    """Sharing of first turns by shared prefix: the earliest request with the same prefix, and its length."""
    shares_with = np.full(len(prefix), -1, dtype=np.int64)
    shared = np.zeros(len(prefix), dtype=np.int64)
    own = (shared_prefix for each in spec.classes for shared_prefix in each.shared_prefixes or ())
    for index, shared_prefix in enumerate((*spec.shared_prefixes, *own)):
        members = np.flatnonzero(prefix == index)
        if len(members):
            shares_with[members[1:]] = members[0]
            shared[members[1:]] = shared_prefix.tokens
    return shares_with, shared
