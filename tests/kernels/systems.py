"""Small random systems: traces, plans, and the same deployment in the kernels and in the slow reference."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hisearch.latency.costs import CompiledCosts, StepCosts, knots_up_to
from hisearch.simulate.plan import WorkerPlan
from hisearch.specs.deployment import EngineSpec
from hisearch.traces.compiled import CompiledTrace, TraceArrays

STEP_S, TOKEN_S, ATTENTION_S = 0.005, 2e-5, 1e-9


def law_costs(max_tokens: int = 8192, max_sequences: int = 64, max_context: int = 1 << 20) -> CompiledCosts:
    """``0.005 + 2e-5 * new + 1e-9 * attention`` seconds, tabulated; no energy."""
    new, context, sequences = knots_up_to(1024), knots_up_to(max_context), knots_up_to(max_sequences)
    decode = np.tile(ATTENTION_S * context, (len(sequences), 1))
    decode[0] = 0.0
    seconds = StepCosts(
        STEP_S, 0.0, TOKEN_S * np.arange(max_tokens + 1), np.zeros(2), np.full((len(new), 2), ATTENTION_S), decode
    )
    return CompiledCosts(seconds, seconds, 0.0, "law", "assumed", 0.0)


def tree_from_sequences(prompts: list[list[int]], outputs: list[list[int]]) -> tuple[np.ndarray, ...]:
    """The trace tree of token sequences by the book: a trie of tokens, then path compression.

    Returns (parent, start, end, prompt node per request, output node per request).
    """
    children: list[dict[int, int]] = [{}]
    depth = [0]
    above = [-1]
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
    kept = [n for n in range(len(children)) if n == 0 or n in marked or len(children[n]) != 1]
    number = {node: k for k, node in enumerate(kept)}
    parent, start, end = [-1], [0], [0]
    for node in kept[1:]:
        up = above[node]
        while up not in number:
            up = above[up]
        parent.append(number[up])
        start.append(depth[up])
        end.append(depth[node])
    nodes = [(number[p], number[o]) for p, o in ends]
    return (
        np.array(parent, np.int32), np.array(start, np.int64), np.array(end, np.int64),
        np.array([p for p, _ in nodes], np.int32), np.array([o for _, o in nodes], np.int32),
    )  # fmt: skip


@dataclass(frozen=True)
class Shape:
    """What a random trace looks like."""

    requests: int = 30
    rate_rps: float = 20.0
    max_prompt: int = 300
    max_output: int = 60
    prefixes: int = 3
    follow_up: float = 0.3
    same_time: float = 0.1
    repeat: float = 0.1
    slack: float = 1.0


def random_trace(seed: int, shape: Shape) -> CompiledTrace:
    """Shared prefixes, exact repeats, follow-ups that contain earlier outputs, equal arrival times, think times of 0."""
    rng = np.random.default_rng(seed)
    token = iter(range(10**9))
    prefixes = [[next(token) for _ in range(rng.integers(1, shape.max_prompt // 2))] for _ in range(shape.prefixes)]
    prompts: list[list[int]] = []
    outputs: list[list[int]] = []
    arrival, previous, think = [], [], []
    now = 0.0
    taken: set[int] = set()
    for k in range(shape.requests):
        outputs.append([next(token) for _ in range(rng.integers(1, shape.max_output + 1))])
        parents = [j for j in range(k) if j not in taken and len(prompts[j]) + len(outputs[j]) < 4 * shape.max_prompt]
        if parents and rng.random() < shape.follow_up:
            before = int(rng.choice(parents))
            taken.add(before)
            fresh = [next(token) for _ in range(rng.integers(1, shape.max_prompt // 3))]
            prompts.append(prompts[before] + outputs[before] + fresh)
            previous.append(before)
            think.append(0.0 if rng.random() < 0.3 else float(rng.exponential(0.5)))
            arrival.append(np.nan)
            continue
        if rng.random() > shape.same_time:
            now += float(rng.exponential(1.0 / shape.rate_rps))
        if prompts and rng.random() < shape.repeat:
            prompts.append(list(prompts[int(rng.integers(k))]))
        else:
            head = prefixes[int(rng.integers(shape.prefixes))] if rng.random() < 0.7 else []
            cut = int(rng.integers(0, len(head) + 1)) if rng.random() < 0.3 else len(head)
            prompts.append(head[:cut] + [next(token) for _ in range(rng.integers(1, shape.max_prompt // 2))])
        previous.append(-1)
        think.append(0.0)
        arrival.append(now)
    parent, start, end, prompt_node, output_node = tree_from_sequences(prompts, outputs)
    produced = np.array([len(o) for o in outputs], np.int64)
    declared = np.ceil(produced * shape.slack).astype(np.int64)
    zeros = np.zeros(shape.requests, np.int32)
    arrays = TraceArrays(
        np.array(arrival), np.array([len(p) for p in prompts], np.int64), produced, declared,
        np.array(previous, np.int32), np.array(think), zeros, zeros, zeros, prompt_node, output_node, parent, start, end,
    )  # fmt: skip
    return CompiledTrace(f"random-{seed}", arrays, [str(k) for k in range(shape.requests)], f"random-{seed}")


def plan(engine: EngineSpec, capacity_tokens: int, host_tokens: int = 0) -> WorkerPlan:
    """A worker with the law's costs and the given room."""
    page = engine.page_size
    return WorkerPlan(
        engine,
        law_costs(max(8192, engine.chunk_tokens), max(64, engine.max_running_requests)),
        None,  # type: ignore[arg-type]  # memory is not looked at by the simulation
        capacity_tokens // page * page,
        host_tokens // page * page,
        1e-5,
        1e-7,
    )
