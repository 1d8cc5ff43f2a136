"""Requests whose outputs may be looked up while they are still being generated."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hisearch.base.jit import kernel

if TYPE_CHECKING:
    from hisearch.traces.compiled import TraceArrays

_NOBODY, _ANYBODY = -1, -2


@kernel
def prompt_sessions(session, previous, prompt_node, parent, users):
    """Per tree node: the only session with later turns' prompts through it; -1: no prompts; -2: prompts of others."""
    users[:] = _NOBODY
    for r in range(prompt_node.shape[0]):
        user = session[r] if previous[r] >= 0 else _ANYBODY
        s = prompt_node[r]
        users[s] = user if users[s] == _NOBODY or users[s] == user else _ANYBODY
    for s in range(parent.shape[0] - 1, 0, -1):
        above = parent[s]
        if users[s] != _NOBODY:
            users[above] = users[s] if users[above] == _NOBODY or users[above] == users[s] else _ANYBODY


@kernel
def output_owners(session, prompt_node, output_node, parent, users, head, owner, after):
    """Link the requests whose output covers a tree node that also lies on prompts of others, in a list per node.

    Later turns of the same session do not count: they wait for the request's end. Fills ``owner`` and ``after`` as far
    as they reach, and ``head`` (M,), which is -1 before; returns the number of entries.
    """
    count = 0
    for r in range(prompt_node.shape[0]):
        s = output_node[r]
        while s != prompt_node[r]:
            if users[s] == _ANYBODY or (users[s] >= 0 and users[s] != session[r]):
                if count < owner.shape[0]:
                    owner[count] = r
                    after[count] = head[s]
                    head[s] = count
                count += 1
            s = parent[s]
    return count


@kernel
def depth(parent):
    """Depth of the deepest tree node; parents come before their children."""
    depths = np.zeros(len(parent), np.int32)
    deepest = 0
    for s in range(1, len(parent)):
        depths[s] = depths[parent[s]] + 1
        deepest = max(deepest, depths[s])
    return deepest


def find(trace: TraceArrays) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(head, owner, after) of ``output_owners`` for a trace's arrays."""
    users = np.empty(len(trace.parent), np.int32)
    prompt_sessions(trace.session, trace.previous, trace.prompt_node, trace.parent, users)
    entries = 0
    while True:
        head = np.full(len(trace.parent), -1, np.int32)
        owner = np.empty(entries, np.int32)
        after = np.empty(entries, np.int32)
        count = output_owners(
            trace.session, trace.prompt_node, trace.output_node, trace.parent, users, head, owner, after
        )
        if count == entries:
            return head, owner, after
        entries = count
