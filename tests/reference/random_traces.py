"""Small random traces for property tests: the one generator of all of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from hisearch.traces.compiled import TraceArrays

#: Most requests in one chain of follow-ups.
_LONGEST_CHAIN = 4


@dataclass(frozen=True)
class TraceShape:
    """What a random trace looks like.

    Attributes:
        requests: how many.
        rate_rps: rate of first turns (Poisson).
        prompt_tokens, output_tokens: most new prompt tokens of a turn, most output tokens.
        shared_prefixes: system prompts of up to ``prompt_tokens``; most first turns begin with (a part of) one.
        follow_up: chance that a request follows another one, whose prompt and output its prompt contains.
        fork: chance that the one it follows may be followed once more.
        same_time: chance that a first turn arrives together with the one before it.
        repeat: chance that a first turn repeats an earlier prompt exactly, be it a follow-up's.
        slack: where a request declares more output than it makes, how many times more at most.
    """

    requests: int = 20
    rate_rps: float = 100.0
    prompt_tokens: int = 40
    output_tokens: int = 12
    shared_prefixes: int = 2
    follow_up: float = 0.4
    fork: float = 0.1
    same_time: float = 0.2
    repeat: float = 0.1
    slack: float = 3.0


#: A few thousand tokens in all.
DEFAULT_SHAPE = TraceShape()


def random_trace(
    seed: int, shape: TraceShape = DEFAULT_SHAPE, output_tokens: Sequence[int] | None = None
) -> TraceArrays:
    """A trace by seed. Think times may be 0; a follow-up's index exceeds its predecessor's.

    Args:
        seed: of everything random.
        shape: sizes and chances.
        output_tokens: true output lengths in place of the drawn ones, at most the declared ones; everything else stays.
    """
    return _Draft(seed, shape, output_tokens).arrays()


class _Draft:
    """Draws request after request; no draw depends on true output lengths."""

    def __init__(self, seed: int, shape: TraceShape, output_tokens: Sequence[int] | None) -> None:
        self.rng = np.random.default_rng(seed)
        self.seed = seed
        self.shape = shape
        self.fresh: Iterator[int] = iter(range(1 << 60))
        self.prompts: list[list[int]] = []
        self.outputs: list[list[int]] = []
        self.declared: list[int] = []
        self.previous: list[int] = []
        self.think: list[float] = []
        self.arrival: list[float] = []
        self.session: list[int] = []
        self.priority: list[int] = []
        self.thinking: list[int] = []
        # A stream of its own: the same seeds make the same traces otherwise.
        self._thinking_rng = np.random.default_rng((seed, 1))
        self._thinks = seed % 2 == 0
        self._turn: list[int] = []
        self._open: list[int] = []
        self._now = 0.0
        self._prefixes = [self._tokens(1, shape.prompt_tokens) for _ in range(shape.shared_prefixes)]
        for k in range(shape.requests):
            if self._open and self.rng.random() < shape.follow_up:
                self._follow_up()
            else:
                self._first_turn()
            self._output(None if output_tokens is None else int(output_tokens[k]))
            self.priority.append(int(self.rng.integers(3)))
            if self._turn[k] < _LONGEST_CHAIN:
                self._open.append(k)

    def _tokens(self, least: int, most: int) -> list[int]:
        return [next(self.fresh) for _ in range(self.rng.integers(least, most + 1))]

    def _follow_up(self) -> None:
        before = int(self.rng.choice(self._open))
        if self.rng.random() >= self.shape.fork:
            self._open.remove(before)
        new = self._tokens(1, self.shape.prompt_tokens)
        self.prompts.append(self.prompts[before] + self.outputs[before] + new)
        self.previous.append(before)
        self.session.append(self.session[before])
        self._turn.append(self._turn[before] + 1)
        self.arrival.append(np.nan)
        self.think.append(0.0 if self.rng.random() < 0.3 else float(self.rng.exponential(0.5)))

    def _first_turn(self) -> None:
        if self.rng.random() >= self.shape.same_time:
            self._now += float(self.rng.exponential(1.0 / self.shape.rate_rps))
        if self.prompts and self.rng.random() < self.shape.repeat:
            prompt = list(self.prompts[int(self.rng.integers(len(self.prompts)))])
        else:
            shares = self._prefixes and self.rng.random() < 0.7
            head = self._prefixes[int(self.rng.integers(len(self._prefixes)))] if shares else []
            cut = int(self.rng.integers(len(head) + 1)) if self.rng.random() < 0.3 else len(head)
            prompt = head[:cut] + self._tokens(1, self.shape.prompt_tokens)
        self.session.append(len(self.prompts))
        self.prompts.append(prompt)
        self.previous.append(-1)
        self._turn.append(1)
        self.arrival.append(self._now)
        self.think.append(0.0)

    def _output(self, length: int | None) -> None:
        drawn = int(self.rng.integers(1, self.shape.output_tokens + 1))
        declared = drawn if self.rng.random() < 0.5 else int(np.ceil(drawn * self.rng.uniform(1.0, self.shape.slack)))
        made = drawn if length is None else length
        if not 1 <= made <= declared:
            raise ValueError(f"output of {made} tokens, declared are {declared}")
        self.outputs.append([next(self.fresh) for _ in range(declared)][:made])
        thinks = self._thinks and self._thinking_rng.random() < 0.8
        self.thinking.append(int(self._thinking_rng.integers(0, made + 1)) if thinks else 0)
        self.declared.append(declared)

    def _tenants(self) -> np.ndarray:
        """Of each request, from a stream of its own; numbers with gaps."""
        return np.random.default_rng([self.seed, 1]).choice([0, 0, 0, 2, 7], len(self.prompts)).astype(np.int32)

    def arrays(self) -> TraceArrays:
        """The trace as arrays."""
        parent, start, end, prompt_node, output_node = tree_of_sequences(self.prompts, self.outputs)
        return TraceArrays(
            arrival_s=np.array(self.arrival),
            input_tokens=np.array([len(prompt) for prompt in self.prompts], np.int64),
            output_tokens=np.array([len(output) for output in self.outputs], np.int64),
            max_output_tokens=np.array(self.declared, np.int64),
            previous=np.array(self.previous, np.int32),
            think_s=np.array(self.think),
            session=np.array(self.session, np.int32),
            tenant=self._tenants(),
            priority=np.array(self.priority, np.int32),
            thinking_tokens=np.array(self.thinking, np.int64),
            prompt_node=prompt_node,
            output_node=output_node,
            parent=parent,
            start_tokens=start,
            end_tokens=end,
        )


def tree_of_sequences(prompts: list[list[int]], outputs: list[list[int]]) -> tuple[np.ndarray, ...]:
    """The trace tree of token sequences by the book: a trie of tokens, then path compression.

    Returns:
        parent, start and end of every node; prompt node and output node of every request.
    """
    children: list[dict[int, int]] = [{}]
    depth, above = [0], [-1]
    ends: list[tuple[int, int]] = []
    for prompt, output in zip(prompts, outputs, strict=True):
        at = 0
        stops = []
        for sequence in (prompt, output):
            for token in sequence:
                if token not in children[at]:
                    children[at][token] = len(children)
                    children.append({})
                    depth.append(depth[at] + 1)
                    above.append(at)
                at = children[at][token]
            stops.append(at)
        ends.append((stops[0], stops[1]))
    marked = {node for pair in ends for node in pair}
    kept = [node for node in range(len(children)) if node == 0 or node in marked or len(children[node]) != 1]
    number = {node: k for k, node in enumerate(kept)}
    parent, start = [-1], [0]
    for node in kept[1:]:
        up = above[node]
        while up not in number:
            up = above[up]
        parent.append(number[up])
        start.append(depth[up])
    return (
        np.array(parent, np.int32),
        np.array(start, np.int64),
        np.array([depth[node] for node in kept], np.int64),
        np.array([number[prompt] for prompt, _ in ends], np.int32),
        np.array([number[output] for _, output in ends], np.int32),
    )
