"""Another trace that the same traffic might have been: sessions of a compiled trace, drawn anew.

Notation
    N   requests; S sessions: requests that follow one another (``previous``) or carry the same session number, so that
        a user in a closed loop, all sessions one behind the other, is one
    s   a session's start: the arrival of its first request

Two ways to draw, both with replacement and both near the place that is filled, so that rush hours stay where they are,
and so do conversations that a window cut out of a running service has in their middle at its beginning:

``sessions``  Every start of the trace stays. At each of them a session begins that is drawn from those that start
              about then: ``NEIGHBOURHOOD`` of all of them to either side in the order of starts. The arrival process
              is the recorded one; who arrives when is not.
``blocks``    The span of starts is cut into blocks of equal length. In the place of each comes a piece of the trace as
              long as a block that begins at most ``REACH`` blocks away, anywhere, with all sessions that start in it,
              at their places: the local block bootstrap (Paparoditis and Politis, Statistica Sinica 12, 2002). Bursts
              shorter than a block stay, with who is in them; how many there are varies.

A session comes whole: its requests keep their times after its start, or their think times. What only its own sequences
hold becomes new tokens in each further copy, so that a session drawn twice does not hit its own copy in a cache. What
sessions share, copies share too.

A drawn trace ends when the original does: what its sessions would send later is cut off, as the window cut it off that
took the original out of a service. Else sessions from earlier places would go on behind the end, at a fraction of the
load. Where some arrivals are not recorded, nothing says when a session would end, and none is cut.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from hisearch.base.dtypes import F8, I8
from hisearch.traces.adapters import chosen as chosen_named
from hisearch.traces.compiled import REQUEST_COLUMNS, ChosenIds, CompiledTrace, TraceArrays, with_tree
from hisearch.traces.compiler import freeze
from hisearch.traces.models import chosen
from hisearch.traces.trace import moved, roots_of

Scheme = Literal["sessions", "blocks"]

#: Most blocks of a span, and the fewest sessions that a block holds on average.
MOST_BLOCKS = 24
LEAST_SESSIONS_OF_BLOCK = 4

#: Blocks by which a piece may be away from the place that it fills.
REACH = 3

#: Share of all sessions, to either side, from which a start's session is drawn; never fewer than so many.
NEIGHBOURHOOD = 1 / 16
LEAST_NEIGHBOURS = 8


@dataclass(frozen=True)
class SessionTable:
    """A trace's sessions, ready to be drawn.

    of: session of each request, shape (N,). start_s: of each session, shape (S,). request: requests by session, each
    one's in order, shape (N,); first: where each one's begin in it, shape (S + 1,). owner: the session whose sequences
    alone pass each node of the tree, or -1; shape (M,). schemes: ways to draw it.
    """

    trace: CompiledTrace
    of: I8
    start_s: F8
    request: I8
    first: I8
    owner: I8
    schemes: tuple[Scheme, ...]
    blocks: int

    def __len__(self) -> int:
        return len(self.start_s)


def session_table(trace: CompiledTrace) -> SessionTable | None:
    """The sessions of a trace; None where it cannot be drawn anew because agents wait for each other across sessions.

    ``schemes`` has no sessions where no session has two requests: who belongs together is then not known, and what a
    request finds in a cache was left by others. It has no blocks where there are too few sessions for two of them, or
    all start at once.
    """
    if trace.agents is not None:
        return None
    arrays = trace.arrays
    of = _sessions(arrays)
    count = int(of.max()) + 1
    request = np.argsort(of, kind="stable").astype(np.int64)
    first = np.searchsorted(of[request], np.arange(count + 1)).astype(np.int64)
    start_s = np.full(count, np.inf)
    roots = np.flatnonzero(arrays.previous < 0)
    np.minimum.at(start_s, of[roots], arrays.arrival_s[roots])
    blocks = min(MOST_BLOCKS, count // LEAST_SESSIONS_OF_BLOCK) if np.ptp(start_s) > 0 else 0
    schemes: list[Scheme] = ["sessions"] if count < len(of) or blocks < 2 else []
    schemes += ["blocks"] if blocks >= 2 else []
    return SessionTable(trace, of, start_s, request, first, _owners(arrays, of), tuple(schemes), blocks)


def _sessions(arrays: TraceArrays) -> I8:
    """Session of each request, numbered from 0 by first request: what chains and session numbers join."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    count = len(arrays.arrival_s)
    _, by_number, label = np.unique(arrays.session, return_index=True, return_inverse=True)
    ends = np.concatenate((roots_of(arrays.previous), by_number[label]))
    links = coo_array((np.ones(2 * count, np.int8), (np.tile(np.arange(count), 2), ends)), shape=(count, count))
    component = connected_components(links, directed=False)[1]
    _, at, label = np.unique(component, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(at))[label].astype(np.int64)


def _owners(arrays: TraceArrays, of: I8) -> I8:
    """The session that alone passes each node, -1 where several do; -2 of the root and where none does."""
    owner = np.full(len(arrays.parent), -2, np.int64)
    ends, sessions = np.concatenate((arrays.prompt_node, arrays.output_node)), np.tile(of, 2)
    low = np.full(len(owner), np.iinfo(np.int64).max)
    high = np.full(len(owner), -1, np.int64)
    np.minimum.at(low, ends, sessions)
    np.maximum.at(high, ends, sessions)
    parent, lows, highs = arrays.parent.tolist(), low.tolist(), high.tolist()
    for node in range(len(owner) - 1, 0, -1):  # children before parents
        above = parent[node]
        lows[above] = min(lows[above], lows[node])
        highs[above] = max(highs[above], highs[node])
    low, high = np.array(lows, np.int64), np.array(highs, np.int64)
    passed = high >= 0
    owner[passed] = np.where(low[passed] == high[passed], low[passed], -1)
    owner[0] = -1
    return owner


def resample(table: SessionTable, scheme: Scheme, rng: np.random.Generator) -> CompiledTrace:
    """A trace drawn from ``table``; it starts when the original does, and is named like it.

    Raises:
        ValueError: ``scheme`` is not one of the table's.
    """
    if scheme not in table.schemes:
        raise ValueError(f"this trace cannot be drawn by {scheme}; expected {' or '.join(table.schemes)}")
    drawn, start_s = _by_session(table, rng) if scheme == "sessions" else _by_block(table, rng)
    return assemble(table, drawn, start_s)


def _by_session(table: SessionTable, rng: np.random.Generator) -> tuple[I8, F8]:
    """A session from about the same time for every start."""
    count = len(table)
    order = np.argsort(table.start_s, kind="stable")
    near = min(max(round(count * NEIGHBOURHOOD), LEAST_NEIGHBOURS), count)
    place = np.arange(count)
    low, high = np.maximum(place - near, 0), np.minimum(place + near + 1, count)
    return order[rng.integers(low, high)], table.start_s[order]


def _by_block(table: SessionTable, rng: np.random.Generator) -> tuple[I8, F8]:
    """Pieces of the trace in the places of its blocks; drawn again where all of them are empty."""
    first_s = float(table.start_s.min())
    # The span ends one mean gap after the last start, so that a piece at its end is as long as any other.
    span_s = float(np.ptp(table.start_s)) * len(table) / (len(table) - 1)
    length_s = span_s / table.blocks
    order = np.argsort(table.start_s, kind="stable")
    at_s = table.start_s[order] - first_s
    while True:
        drawn, starts = [], []
        for place in range(table.blocks):
            low = max(place - REACH, 0) * length_s
            high = min(place + REACH, table.blocks - 1) * length_s
            begin_s = float(rng.uniform(low, high))
            inside = slice(*np.searchsorted(at_s, (begin_s, begin_s + length_s)))
            drawn.append(order[inside])
            starts.append(first_s + place * length_s + at_s[inside] - begin_s)
        sessions, start_s = np.concatenate(drawn), np.concatenate(starts)
        if len(sessions) and start_s.min() <= _end_s(table.trace):
            return sessions, start_s


def _end_s(trace: CompiledTrace) -> float:
    """When the window of a trace ends: its last arrival; infinite where one is not recorded."""
    last = float(np.max(trace.arrays.arrival_s))
    return math.inf if math.isnan(last) else last


def _cut(arrival_s: F8, previous: I8, end_s: float) -> np.ndarray:
    """True of requests behind the end, and of those that follow one; shape (N,)."""
    late = arrival_s > end_s
    while True:
        follows = late | np.where(previous >= 0, late[previous], False)
        if (follows == late).all():
            return late
        late = follows


def assemble(table: SessionTable, drawn: I8, start_s: F8) -> CompiledTrace:
    """The trace of the sessions ``drawn``, shape (D,), each as often as it stands there, starting at ``start_s``."""
    from hisearch.traces import _tree

    trace, arrays = table.trace, table.trace.arrays
    sizes = table.first[drawn + 1] - table.first[drawn]
    begins = np.concatenate(([0], np.cumsum(sizes)))
    copy_of = np.repeat(np.arange(len(drawn)), sizes)
    source = table.request[table.first[drawn][copy_of] + np.arange(begins[-1]) - begins[copy_of]]
    place = np.empty(len(trace), np.int64)  # of a request among those of its session
    place[table.request] = np.arange(len(trace)) - table.first[table.of[table.request]]
    before = arrays.previous[source]
    previous = np.where(before >= 0, begins[copy_of] + place[np.maximum(before, 0)], -1)
    arrival_s = arrays.arrival_s[source] + (start_s - table.start_s[drawn])[copy_of]
    # Earliest arrival first, as traces are compiled; a chain's requests stand in their order before it.
    keys = _tree.arrival_keys(arrival_s, previous.astype(np.int32), arrays.think_s[source])
    order = np.argsort(keys, kind="stable")
    order = order[~_cut(arrival_s, previous, _end_s(trace))[order]]
    parent, start, end, prompt_node, output_node = _tree_of_copies(table, drawn, copy_of, source)
    tree = _tree.finish_tree(parent, start, end, prompt_node[order], output_node[order])
    columns = {name: getattr(arrays, name)[source][order] for name in REQUEST_COLUMNS}
    columns |= {"arrival_s": arrival_s[order], "previous": moved(previous, order), "session": copy_of[order]}
    ids = ChosenIds(trace.request_ids, source[order], copy_of[order])
    models = chosen(trace.models, source[order])
    drawn_arrays = with_tree(columns, tree)
    skipped, cautions = trace.skipped_rows, trace.cautions
    return freeze(
        trace.name, drawn_arrays, ids, skipped, cautions, trace.block_tokens, models=models, notes=trace.notes,
        ignore_eos=trace.ignore_eos, adapters=chosen_named(trace.adapters, source[order]),
        grammars=chosen_named(trace.grammars, source[order]),
    )  # fmt: skip


def _tree_of_copies(table: SessionTable, drawn: I8, copy_of: I8, source: I8) -> tuple[np.ndarray, ...]:
    """The tree with a branch of its own for every further copy of a session.

    Returns:
        parent, start and end of every node, and the nodes at which each request's prompt and output end.
    """
    arrays, owner = table.trace.arrays, table.owner
    nodes = len(owner)
    owned = np.flatnonzero(owner >= 0)
    by_owner = owned[np.argsort(owner[owned], kind="stable")]  # parents before children in each
    first = np.searchsorted(owner[by_owner], np.arange(len(table) + 1))
    further = _further_copies(drawn)
    sizes = np.where(further, (first[1:] - first[:-1])[drawn], 0)
    begins = np.concatenate(([0], np.cumsum(sizes)))
    of_copy = np.repeat(np.arange(len(drawn)), sizes)
    copied = by_owner[first[drawn][of_copy] + np.arange(begins[-1]) - begins[of_copy]]
    place = np.full(nodes, -1, np.int64)  # of a node among those of its owner
    place[by_owner] = np.arange(len(by_owner)) - first[owner[by_owner]]

    def placed(node: np.ndarray, copy: np.ndarray) -> np.ndarray:
        """Where a node of a copy is: in its own branch where it is a further one's own, else where it was."""
        return np.where(further[copy] & (owner[node] >= 0), nodes + begins[copy] + place[node], node)

    parent = np.concatenate((arrays.parent, placed(arrays.parent[copied], of_copy))).astype(np.int32)
    return (
        parent,
        np.concatenate((arrays.start_tokens, arrays.start_tokens[copied])),
        np.concatenate((arrays.end_tokens, arrays.end_tokens[copied])),
        placed(arrays.prompt_node[source], copy_of).astype(np.int32),
        placed(arrays.output_node[source], copy_of).astype(np.int32),
    )


def _further_copies(drawn: I8) -> np.ndarray:
    """True of every copy of a session but its first, shape (D,)."""
    further = np.ones(len(drawn), dtype=bool)
    further[np.unique(drawn, return_index=True)[1]] = False
    return further


def describe_schemes(table: SessionTable | None) -> str:
    """Describe how a trace is drawn anew."""
    if table is None:
        return (
            "the trace as it is (its own number of agents, who wait for each other, so that no part of it can be drawn "
            "anew)"
        )
    if len(table) == 1:
        return "the trace as it is: it has one session"
    words = {
        "sessions": f"{len(table):,} sessions at the recorded starts",
        "blocks": f"{table.blocks} blocks of {np.ptp(table.start_s) / max(table.blocks, 1):.3g} s",
    }
    return f"the trace drawn anew ({', or '.join(words[scheme] for scheme in table.schemes)})"
