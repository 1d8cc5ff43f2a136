"""A trace compiled to arrays: what every simulation reads, and nothing writes.

Notation
    N   requests, ordered by (arrival, position in the file); a follow-up has a larger index than its predecessor
    M   nodes of the prefix tree, node 0 is the root (no tokens); a parent has a smaller index than its children

The prefix tree holds every sequence of the trace, prompt followed by output, path-compressed: a node is a run of tokens
that the same set of sequences shares. Each request's prompt ends exactly at the end of one node, and so does its
output. A cache is then only a few numbers per node, and simulation cost does not grow with prompt length.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, overload

import numpy as np

from hisearch.base.dtypes import F8, I4, I8
from hisearch.base.shown import Shown
from hisearch.specs.wording import per_second
from hisearch.traces.adapters import RequestAdapters, RequestGrammars
from hisearch.traces.agents import LATER_COLUMNS, AgentArrays, agent_arrays

if TYPE_CHECKING:
    from hisearch.traces.models import RequestModels


class TraceArrays(NamedTuple):
    """The arrays handed to kernels; all read-only and contiguous.

    Requests (length N):
        arrival_s: seconds from the trace's start at which the request arrives; for a follow-up (``previous >= 0``) it
            is not used by the simulation (kept as recorded, for statistics; NaN where unknown).
        input_tokens, output_tokens: prompt length and true output length, both >= 1.
        max_output_tokens: the declared limit the engine knows (``max_new_tokens``), >= output_tokens.
        previous: index of the request whose completion this one waits for, or -1.
        think_s: seconds between the predecessor's finish and this arrival (0 where ``previous`` is -1).
        session, tenant, priority: small integers; lower priority value goes first.
        thinking_tokens: the first tokens of the output, which the client does not see; 0 where it sees all of them.
        prompt_node: tree node at whose end the prompt ends.
        output_node: tree node at whose end prompt + output ends.
    Tree (length M):
        parent: index of the parent node; -1 for the root.
        start_tokens, end_tokens: depth in tokens at which the node's run begins and ends.
    """

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
    prompt_node: I4
    output_node: I4
    parent: I4
    start_tokens: I8
    end_tokens: I8


#: Columns of requests that do not refer to the tree.
REQUEST_COLUMNS = TraceArrays._fields[:10]


def with_tree(columns: dict[str, np.ndarray], tree: Sequence[np.ndarray]) -> TraceArrays:
    """``REQUEST_COLUMNS`` with a tree as ``_tree.finish_tree`` returns it."""
    parent, start_tokens, end_tokens, prompt_node, output_node = tree
    return TraceArrays(
        **columns,
        prompt_node=prompt_node,
        output_node=output_node,
        parent=parent,
        start_tokens=start_tokens,
        end_tokens=end_tokens,
    )


class ChosenIds(Sequence[str]):
    """Names of requests chosen from others, made when they are looked at: of most traces drawn anew nobody looks."""

    def __init__(self, names: Sequence[str], chosen: I8, copy: I8 | None = None) -> None:
        """The names with the indices ``chosen``, followed by ``~`` and the number in ``copy`` where there is one."""
        self._names, self._chosen, self._copy = names, chosen, copy

    def __len__(self) -> int:
        return len(self._chosen)

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[str]: ...
    def __getitem__(self, at: int | slice) -> str | Sequence[str]:
        if isinstance(at, slice):
            return ChosenIds(self._names, self._chosen[at], None if self._copy is None else self._copy[at])
        name = self._names[self._chosen[at]]
        return name if self._copy is None else f"{name}~{self._copy[at]}"


@dataclass(frozen=True, repr=False)
class CompiledTrace(Shown):
    """Arrays with the data that people need about them.

    ``known_digest``: the digest, where it was computed before or is not one of the arrays. ``block_tokens`` is the size
    of the blocks by which sharing is known; 1 where it is known to the token. ``agents``: whose requests they are,
    ``models``: which models they ask for, ``adapters``: which LoRA adapters, ``grammars``: which grammars
    their outputs follow, where the trace says so.
    ``notes``: what the trace's file was taken for;
    ``cautions``: what else a reader of results should know. ``ignore_eos``: whether the engine is asked to ignore
    end-of-sequence tokens; None where nobody says, and then outputs that fill their limit end by it.
    """

    name: str
    arrays: TraceArrays
    request_ids: Sequence[str]
    known_digest: str | None = None
    skipped_rows: int = 0
    cautions: tuple[str, ...] = field(default=())
    block_tokens: int = 1
    agents: AgentArrays | None = None
    models: RequestModels | None = None
    notes: tuple[str, ...] = field(default=())
    ignore_eos: bool | None = None
    adapters: RequestAdapters | None = None
    grammars: RequestGrammars | None = None

    def __len__(self) -> int:
        return len(self.arrays.arrival_s)

    @cached_property
    def digest(self) -> str:
        """What tells it from other traces: SHA-256 of what is simulated, as hexadecimal digits."""
        return self.known_digest or digest_of(self.arrays, self.agents, self.models, self.adapters, self.grammars)

    def facts(self) -> dict[str, str]:
        """See ``Shown``."""
        count, span_s = len(self), self.span_s
        facts = {"name": self.name, "requests": f"{count:,}", "span": f"{span_s:,.0f} s"}
        if span_s > 0:
            facts["rate"] = per_second(f"{count / span_s:.3g}")
        if count:
            tokens = (self.arrays.input_tokens.mean(), self.arrays.output_tokens.mean())
            facts |= {"tokens": "{:,.0f} in, {:,.0f} out on average".format(*tokens)}
        return facts

    @property
    def warnings(self) -> tuple[str, ...]:
        """All that results say of the trace: ``notes``, then ``cautions``."""
        return (*self.notes, *self.cautions)

    @property
    def prompt_tokens(self) -> int:
        """Sum of all prompts' lengths."""
        return int(self.arrays.input_tokens.sum())

    @property
    def span_s(self) -> float:
        """Seconds from the first to the last recorded arrival (open-loop part)."""
        times = self.arrays.arrival_s[np.isfinite(self.arrays.arrival_s)]
        return float(times.max() - times.min()) if len(times) else 0.0


def digest_of(
    arrays: TraceArrays,
    agents: AgentArrays | None = None,
    models: RequestModels | None = None,
    adapters: RequestAdapters | None = None,
    grammars: RequestGrammars | None = None,
) -> str:
    """SHA-256 over names, types, lengths and bytes of the arrays, not agents' names, as hexadecimal digits."""
    digest = hashlib.sha256()
    columns = arrays._asdict() | (agent_arrays(agents) if agents is not None else {})
    columns = {name: values for name, values in columns.items() if name not in LATER_COLUMNS or len(values)}
    if not arrays.thinking_tokens.any():
        # Traces without thinking keep the digest that they had before there was this column.
        del columns["thinking_tokens"]
    if models is not None:
        digest.update(f"models:{models.names!r};".encode())
        columns |= {"model": models.model}
    if adapters is not None:
        columns |= {"request_adapter": adapters.adapter, "request_adapter_rank": adapters.rank}
    if grammars is not None:
        columns |= {"request_grammar": grammars.grammar, "request_grammar_s": grammars.compile_s}
    for column, values in columns.items():
        digest.update(f"{column}:{values.dtype.str}:{len(values)};".encode())
        digest.update(np.ascontiguousarray(values).tobytes())
    return digest.hexdigest()
