"""A trace in memory, as read or generated, before it is compiled.

Notation
    N   requests; one that another refers to (``previous``, ``shares_with``) comes before it

A trace records only which content prompts and outputs share. In order, every sequence (prompt followed by output)
begins with ``shared_tokens`` tokens of one earlier sequence, ``shares_with``. It has nothing more in common with any
earlier one. Any set of sequences can be written this way, whether given by block hashes, token ids or the structure of
sessions. Two columns hold it, however long the prompts are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace

import numpy as np
import numpy.typing as npt

from hisearch.base.dtypes import F8, I4, I8
from hisearch.traces.adapters import RequestAdapters, RequestGrammars, check_named
from hisearch.traces.agents import AgentArrays, check_agents
from hisearch.traces.models import RequestModels, check_models


@dataclass(frozen=True)
class Trace:
    """Columns of length N.

    Attributes:
        request_ids: names, for people.
        arrival_s: seconds from the trace's start; NaN where unknown, which only a follow-up's may be.
        input_tokens, output_tokens: lengths, at least 1.
        max_output_tokens: limit that the client declares, at least ``output_tokens``.
        previous: index of the request that this one follows up, or -1.
        think_s: seconds from the predecessor's last token to this arrival; NaN where unknown, 0 without a predecessor.
        session, tenant, priority: small integers, at least 0; lower priority value goes first.
        thinking_tokens: the first tokens of the output, at most all of it, which the client does not see.
        shares_with: index of the earlier request whose sequence this one begins with, or -1.
        shared_tokens: for how many tokens.
        open_loop: follow-ups are best replayed at their recorded times (else ``think_s`` after their predecessor).
        skipped_rows: rows left out: broken ones, and those that are no requests. warnings: what a reader of results
            should know. notes: what the trace's file was taken for; empty where it comes from none. import_notes: which
            rows were left out, and what was warned of, when the trace was read; a written file keeps them.
        block_tokens: size of the blocks by which sharing is known; 1 where it is known to the token.
        agents: whose requests they are, models: which models they ask for, adapters: which LoRA adapters, grammars:
            which grammars their outputs follow, where known. Agents say themselves which adapters they have.
    """

    request_ids: list[str]
    arrival_s: F8
    input_tokens: I8
    output_tokens: I8
    max_output_tokens: I8
    previous: I4
    think_s: F8
    session: I4
    tenant: I4
    priority: I4
    thinking_tokens: I8
    shares_with: I4
    shared_tokens: I8
    open_loop: bool = True
    skipped_rows: int = 0
    warnings: tuple[str, ...] = field(default=())
    block_tokens: int = 1
    agents: AgentArrays | None = None
    models: RequestModels | None = None
    adapters: RequestAdapters | None = None
    grammars: RequestGrammars | None = None
    notes: tuple[str, ...] = field(default=())
    import_notes: tuple[str, ...] = field(default=())

    def __len__(self) -> int:
        return len(self.arrival_s)

    def __post_init__(self) -> None:
        """Check what everything downstream relies on.

        Raises:
            ValueError: columns of different lengths, no requests, or a broken rule of the class's documentation.
        """
        count = len(self.arrival_s)
        for column in fields(self)[:13]:
            if len(getattr(self, column.name)) != count:
                raise ValueError(f"column {column.name} has {len(getattr(self, column.name))} rows, not {count}")
        if not count:
            raise ValueError("the trace has no requests")
        index = np.arange(count)
        follow_up = self.previous >= 0
        total = self.input_tokens + self.output_tokens
        shared_from = np.where(self.shares_with >= 0, total[np.maximum(self.shares_with, 0)], 0)
        rules = {
            "previous: a request may only follow an earlier one": self.previous < index,
            "shares_with: a request may only share with an earlier one": self.shares_with < index,
            "shared_tokens: at most both sequences' lengths, 0 without shares_with": (self.shared_tokens >= 0)
            & (self.shared_tokens <= np.minimum(total, shared_from)),
            "input_tokens: at least 1": self.input_tokens >= 1,
            "output_tokens: at least 1": self.output_tokens >= 1,
            "max_output_tokens: at least output_tokens": self.max_output_tokens >= self.output_tokens,
            "thinking_tokens: at least 0, at most output_tokens": (self.thinking_tokens >= 0)
            & (self.thinking_tokens <= self.output_tokens),
            "arrival_s: finite, at least 0; unknown (NaN) for follow-ups only": (
                (self.arrival_s >= 0) & np.isfinite(self.arrival_s)
            )
            | (np.isnan(self.arrival_s) & follow_up),
            "think_s: at least 0, unknown (NaN) or not; 0 without a predecessor": np.where(
                follow_up, ~(self.think_s < 0) & ~np.isinf(self.think_s), self.think_s == 0
            ),
            "session, tenant, priority: at least 0": (self.session >= 0) & (self.tenant >= 0) & (self.priority >= 0),
        }
        for rule, holds in rules.items():
            if not holds.all():
                raise ValueError(f"request {int(np.argmin(holds))}: {rule}")
        if self.agents is not None:
            check_agents(self.agents, count)
        if self.models is not None:
            check_models(self.models, self.shares_with)
        if self.adapters is not None:
            check_named(self.adapters, count)
            if self.agents is not None:
                raise ValueError("adapters: agents have adapters of their own")
        if self.grammars is not None:
            check_named(self.grammars, count)


def make_trace(
    *,
    arrival_s: npt.ArrayLike,
    input_tokens: npt.ArrayLike,
    output_tokens: npt.ArrayLike,
    request_ids: Sequence[str] | None = None,
    max_output_tokens: npt.ArrayLike | None = None,
    previous: npt.ArrayLike | None = None,
    think_s: npt.ArrayLike | None = None,
    session: npt.ArrayLike | None = None,
    tenant: npt.ArrayLike | None = None,
    priority: npt.ArrayLike | None = None,
    thinking_tokens: npt.ArrayLike | None = None,
    shares_with: npt.ArrayLike | None = None,
    shared_tokens: npt.ArrayLike | None = None,
    open_loop: bool = True,
    skipped_rows: int = 0,
    warnings: Sequence[str] = (),
    block_tokens: int = 1,
    agents: AgentArrays | None = None,
    models: RequestModels | None = None,
    adapters: RequestAdapters | None = None,
    grammars: RequestGrammars | None = None,
) -> Trace:
    """A :class:`Trace` from any array-likes, with defaults.

    Defaults: ids "0", "1", …; a declared limit equal to the output; no predecessors; one session for each chain of
    predecessors; tenant and priority 0; no thinking; nothing shared.

    Raises:
        ValueError: see :class:`Trace`.
    """
    arrival = np.asarray(arrival_s, dtype=np.float64)
    count = len(arrival)
    none = np.full(count, -1, dtype=np.int32)
    zeros = np.zeros(count, dtype=np.int32)
    before = none if previous is None else np.asarray(previous, dtype=np.int32)
    outputs = np.asarray(output_tokens, dtype=np.int64)
    return Trace(
        request_ids=[str(i) for i in range(count)] if request_ids is None else list(request_ids),
        arrival_s=arrival,
        input_tokens=np.asarray(input_tokens, dtype=np.int64),
        output_tokens=outputs,
        max_output_tokens=outputs if max_output_tokens is None else np.asarray(max_output_tokens, dtype=np.int64),
        previous=before,
        think_s=np.zeros(count) if think_s is None else np.asarray(think_s, dtype=np.float64),
        session=sessions_of(before) if session is None else np.asarray(session, dtype=np.int32),
        tenant=zeros if tenant is None else np.asarray(tenant, dtype=np.int32),
        priority=zeros if priority is None else np.asarray(priority, dtype=np.int32),
        thinking_tokens=(
            np.zeros(count, np.int64) if thinking_tokens is None else np.asarray(thinking_tokens, dtype=np.int64)
        ),
        shares_with=none if shares_with is None else np.asarray(shares_with, dtype=np.int32),
        shared_tokens=zeros.astype(np.int64) if shared_tokens is None else np.asarray(shared_tokens, dtype=np.int64),
        open_loop=open_loop,
        skipped_rows=skipped_rows,
        warnings=tuple(warnings),
        block_tokens=block_tokens,
        agents=agents,
        models=models,
        adapters=adapters,
        grammars=grammars,
    )


def moved(reference: np.ndarray, order: np.ndarray) -> I8:
    """References to requests, such as ``previous``, of the requests in ``order`` (former indices) to their new places.

    -1 where there is none, or where the one referred to is left out; shape (len(order),).
    """
    place = np.full(len(reference), -1, dtype=np.int64)
    place[order] = np.arange(len(order))
    before = reference[order]
    return np.where(before >= 0, place[np.maximum(before, 0)], -1)


def roots_of(previous: I4) -> I4:
    """Index of the first request of each request's chain of predecessors, by pointer doubling; shape (N,)."""
    root = np.where(previous < 0, np.arange(len(previous), dtype=np.int32), previous).astype(np.int32)
    while True:
        further = root[root]
        if np.array_equal(further, root):
            return root
        root = further


def sessions_of(previous: I4) -> I4:
    """Session numbers 0, 1, … by chain of predecessors, in order of first appearance; shape (N,)."""
    return np.unique(roots_of(previous), return_inverse=True)[1].astype(np.int32)


def declare_limit(trace: Trace, limit_tokens: int | None) -> Trace:
    """The trace with clients declaring ``limit_tokens`` at most; longer outputs keep their own length as limit."""
    if limit_tokens is None:
        return trace
    return replace(trace, max_output_tokens=np.maximum(trace.output_tokens, limit_tokens))
