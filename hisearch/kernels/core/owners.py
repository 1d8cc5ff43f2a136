"""Which requests' outputs may be asked for while they are still being made."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hisearch.base.jit import kernel

if TYPE_CHECKING:
    from hisearch.traces.compiled import TraceArrays

_NOBODY, _ANYBODY = -1, -2


@kernel
def prompt_sessions(session, previous, prompt_node, parent, users):
    """Per tree node: the session whose later turns' prompts alone go through it; -1: none do; -2: others do."""
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
    """Linked lists of the requests whose output covers a tree node that prompts of others go through.

    A session's own later turns wait for its end and do not count. Fills ``owner`` and ``after`` as far as they reach,
    and ``head`` (M,), -1 before; returns how many entries there are.
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
    """Most nodes between one of the tree's and its root; parents come before their children."""
    below = np.zeros(len(parent), np.int32)
    deepest = 0
    for s in range(1, len(parent)):
        below[s] = below[parent[s]] + 1
        deepest = max(deepest, below[s])
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
