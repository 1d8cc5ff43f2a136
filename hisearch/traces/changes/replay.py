"""The first requests of a trace to arrive, as a client can send them.

That is times, lengths, and names of the blocks that prompts share. A benchmark client knows neither sessions nor
responses: it sends every prompt at its own time. So follow-ups get the times at which a simulation saw them arrive.
What a prompt repeats of an earlier *response* is shared only with prompts that repeat it too.

Notation
    N   requests, in the order in which they are sent
    B   tokens per block; the last block of a prompt may hold less
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from hisearch.base.dtypes import F8, I8
from hisearch.specs.workloads.workload import TraceFileSpec
from hisearch.traces.compiled import CompiledTrace
from hisearch.traces.compiler import compile_trace
from hisearch.traces.reading.rows import BadRows
from hisearch.traces.reading.source import Requests, Source

#: Requests that a replay keeps where nothing else is asked.
USUAL_REQUESTS = 1000
#: Names of blocks that a replay's file holds at most (some 2 MB); blocks are doubled in size until they are no more.
MOST_BLOCKS = 250_000
_FIRST_BLOCK_TOKENS = 16


@dataclass(frozen=True)
class Replay:
    """Requests to send, in order.

    arrival_s: shape (N,), seconds from the first one, rising. input_tokens, output_tokens: shape (N,).
    block_ids: per request ceil(input_tokens / B) names; two prompts share their leading blocks of equal names.
    indices: shape (N,), of the same requests in the trace.
    """

    arrival_s: F8
    input_tokens: I8
    output_tokens: I8
    block_ids: tuple[tuple[int, ...], ...]
    block_tokens: int
    indices: I8

    def __len__(self) -> int:
        return len(self.arrival_s)

    @property
    def rate_rps(self) -> float:
        """Requests per second between the first and the last; infinite where they come at once."""
        return mean_rate_rps(self.arrival_s)

    def beginning_alike(self, tokens: int) -> Replay:
        """The same requests, whose prompts begin with the same ``tokens`` tokens and share nothing else.

        A prompt that is no longer has a token of its own. Beginnings end with a block.
        """
        block_tokens = _block_tokens(self.input_tokens, _FIRST_BLOCK_TOKENS)
        alike = np.minimum(tokens, self.input_tokens - 1) // block_tokens
        own = -(-self.input_tokens // block_tokens) - alike
        first = int(alike.max(initial=0)) + np.concatenate(([0], np.cumsum(own)))
        blocks = tuple(
            (*range(shared), *range(begin, end))
            for shared, begin, end in zip(alike.tolist(), first[:-1].tolist(), first[1:].tolist(), strict=True)
        )
        return replace(self, block_ids=blocks, block_tokens=block_tokens)

    def rows(self) -> list[dict[str, Any]]:
        """One dictionary per request, under the names of hisearch's own trace form."""
        return [
            {
                "arrival_s": round(float(self.arrival_s[i]), 6),
                "input_tokens": int(self.input_tokens[i]),
                "output_tokens": int(self.output_tokens[i]),
                "block_ids": list(self.block_ids[i]),
            }
            for i in range(len(self))
        ]

    def text(self) -> str:
        """JSON lines of ``rows``."""
        return "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in self.rows())

    def compile(
        self, name: str, arrival_s: F8 | None = None, *, in_flight: int | None = None, think_s: float = 0.0
    ) -> CompiledTrace:
        """The replay as a trace of independent requests.

        Args:
            name: what reports call it.
            arrival_s: shape (N,), other times than its own, in seconds; they need not rise.
            in_flight: of a closed loop, to be simulated ``pooled``: so many requests are sent at once, and every other
                one when any has ended, whatever the times.
            think_s: in a closed loop, between the end of a request and the next one.
        """
        requests = Requests()
        times = self.arrival_s if arrival_s is None else arrival_s
        first = len(self) if in_flight is None else in_flight
        times = times if in_flight is None else np.zeros(len(self))
        for index in range(len(self)):
            follows = index >= first
            requests.add(
                math.nan if follows else float(times[index]),
                int(self.input_tokens[index]),
                int(self.output_tokens[index]),
                ids=self.block_ids[index],
                known_tokens=int(self.input_tokens[index]),
                previous=index - first if follows else -1,
                think_s=think_s,
            )
        path = Path(name)
        source = Source(path, TraceFileSpec(path=name), 0, BadRows(path))
        looped = in_flight is not None
        trace = requests.build(source, block_tokens=self.block_tokens, open_loop=not looped)
        return compile_trace(trace, name, "closed_loop" if looped else "open_loop")


def mean_rate_rps(arrival_s: F8) -> float:
    """Requests per second between the first and the last that arrived, shape (N,); infinite where they come at once."""
    span_s = float(np.nanmax(arrival_s) - np.nanmin(arrival_s))
    return float(np.isfinite(arrival_s).sum() - 1) / span_s if span_s > 0 else math.inf


def replay_of(trace: CompiledTrace, arrival_s: F8, limit: int = USUAL_REQUESTS) -> Replay:
    """The first ``limit`` requests of ``trace`` to arrive at the times ``arrival_s``.

    Args:
        trace: the workload.
        arrival_s: shape (len(trace),), seconds; requests that never arrived (NaN) are left out.
        limit: most requests, at least 1.

    Raises:
        ValueError: none of the requests arrives.
    """
    arrays = trace.arrays
    arrived = np.flatnonzero(np.isfinite(arrival_s))
    if not len(arrived):
        raise ValueError(f"{trace.name}: none of its {len(trace)} requests arrives")
    order = arrived[np.argsort(arrival_s[arrived], kind="stable")][:limit]
    inputs = arrays.input_tokens[order]
    block_tokens = _block_tokens(inputs, max(trace.block_tokens, _FIRST_BLOCK_TOKENS))
    names: dict[tuple[int, int], int] = {}
    blocks = tuple(
        tuple(
            names.setdefault(place, len(names))
            for place in _places(trace, int(arrays.prompt_node[index]), int(arrays.input_tokens[index]), block_tokens)
        )
        for index in order.tolist()
    )
    first_s = arrival_s[order[0]]
    return Replay(arrival_s[order] - first_s, inputs, arrays.output_tokens[order], blocks, block_tokens, order)


def _block_tokens(input_tokens: I8, least: int) -> int:
    """Tokens of a block: ``least``, doubled until prompts have ``MOST_BLOCKS`` blocks at most."""
    block_tokens = least
    while int((-(-input_tokens // block_tokens)).sum()) > MOST_BLOCKS:
        block_tokens *= 2
    return block_tokens


def _places(trace: CompiledTrace, node: int, tokens: int, block_tokens: int) -> list[tuple[int, int]]:
    """Where each block of a prompt ends: (tree node that holds its last token, depth); equal for equal prefixes."""
    arrays = trace.arrays
    path: list[int] = []
    while node > 0:
        path.append(node)
        node = int(arrays.parent[node])
    path.reverse()
    ends = np.append(np.arange(block_tokens, tokens, block_tokens), tokens)
    holder = np.searchsorted(arrays.end_tokens[path], ends, side="left")
    return [(path[at], int(end)) for at, end in zip(holder.tolist(), ends.tolist(), strict=True)]
