"""Small random traces with sessions, shared prefixes and equal arrival times, for property tests."""

from __future__ import annotations

import random
from typing import NamedTuple

import numpy as np

from hisearch.traces.compiled import TraceArrays


class TraceShape(NamedTuple):
    """What a random trace looks like.

    Attributes:
        sessions, turns: independent chains of requests and the most requests in one.
        prompt_tokens, output_tokens: most new prompt tokens of a turn, and most output tokens.
        shared_prefixes: number of system prompts (each session begins with one of them or with none).
        span_s: first turns arrive within this, on a grid of a tenth of it (so that some coincide).
    """

    sessions: int = 8
    turns: int = 3
    prompt_tokens: int = 40
    output_tokens: int = 12
    shared_prefixes: int = 2
    span_s: float = 0.2


#: A few dozen requests at most.
DEFAULT_SHAPE = TraceShape()


class _Tree:
    def __init__(self) -> None:
        self.parent, self.start, self.end = [-1], [0], [0]

    def add(self, parent: int, tokens: int) -> int:
        self.parent.append(parent)
        self.start.append(self.end[parent])
        self.end.append(self.end[parent] + tokens)
        return len(self.parent) - 1


def random_trace(seed: int, shape: TraceShape = DEFAULT_SHAPE) -> TraceArrays:
    """A trace by seed. Some first turns repeat an earlier one's prompt exactly; think times may be 0.

    Requests are ordered turn by turn, first turns by arrival, so a follow-up's index exceeds its predecessor's.
    """
    draw = random.Random(seed)
    tree = _Tree()
    prefixes = [tree.add(0, draw.randint(1, shape.prompt_tokens)) for _ in range(shape.shared_prefixes)]
    arrivals = sorted(draw.randint(0, 10) * shape.span_s / 10 for _ in range(shape.sessions))
    turns = [draw.randint(1, shape.turns) for _ in range(shape.sessions)]
    rows: list[
        tuple[float, int, int, int, float, int]
    ] = []  # arrival, prompt node, output node, previous, think, session
    last: dict[int, int] = {}
    for turn in range(shape.turns):
        for session in range(shape.sessions):
            if turn >= turns[session]:
                continue
            repeats = turn == 0 and rows and draw.random() < 0.2
            base = draw.choice([0, *prefixes]) if turn == 0 else rows[last[session]][2]
            prompt = draw.choice(rows)[1] if repeats else tree.add(base, draw.randint(1, shape.prompt_tokens))
            output = tree.add(prompt, draw.randint(1, shape.output_tokens))
            previous = last.get(session, -1)
            think = draw.choice([0.0, 0.01, 0.05]) if turn else 0.0
            last[session] = len(rows)
            rows.append((arrivals[session] if turn == 0 else float("nan"), prompt, output, previous, think, session))
    return _arrays(tree, rows, draw)


def _arrays(tree: _Tree, rows: list[tuple[float, int, int, int, float, int]], draw: random.Random) -> TraceArrays:
    arrival, prompt, output, previous, think, session = zip(*rows, strict=True)
    input_tokens = np.array([tree.end[node] for node in prompt], dtype=np.int64)
    output_tokens = np.array([tree.end[node] - tree.start[node] for node in output], dtype=np.int64)
    slack = np.array([draw.choice([0, 0, 5, 20]) for _ in rows], dtype=np.int64)
    return TraceArrays(
        arrival_s=np.array(arrival, dtype=np.float64),
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        max_output_tokens=output_tokens + slack,
        previous=np.array(previous, dtype=np.int32),
        think_s=np.array(think, dtype=np.float64),
        session=np.array(session, dtype=np.int32),
        tenant=np.zeros(len(rows), dtype=np.int32),
        priority=np.array([draw.randint(0, 2) for _ in rows], dtype=np.int32),
        prompt_node=np.array(prompt, dtype=np.int32),
        output_node=np.array(output, dtype=np.int32),
        parent=np.array(tree.parent, dtype=np.int32),
        start_tokens=np.array(tree.start, dtype=np.int64),
        end_tokens=np.array(tree.end, dtype=np.int64),
    )
