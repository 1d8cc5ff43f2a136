"""From a schedule of calls to a trace: prompts, histories, adapters."""

from __future__ import annotations

import numpy as np

from hisearch.base.dtypes import I8
from hisearch.specs.workloads.agent_workload import AgentWorkloadSpec
from hisearch.traces.agents import AgentArrays
from hisearch.traces.generators.diffusion import diffusion
from hisearch.traces.generators.graphs import Neighbours
from hisearch.traces.generators.independent import independent
from hisearch.traces.generators.interaction import interaction
from hisearch.traces.generators.schedule import Schedule
from hisearch.traces.sampling import draw_lengths, stream
from hisearch.traces.trace import Trace, declare_limit, make_trace


def generate_agents(spec: AgentWorkloadSpec, *, seed: int = 0, edges: Neighbours | None = None) -> Trace:
    """The workload that ``spec`` describes; ``spec.seed`` and ``seed`` together set its random streams.

    Args:
        spec: the population.
        seed: of everything random in it, in addition to its own.
        edges: of the graph, where a file has them; see ``graphs.edge_list``.
    """
    seeds = (spec.seed, seed)
    if spec.kind == "independent":
        schedule = independent(spec, seeds)
    elif spec.kind == "interaction":
        schedule = interaction(spec, seeds)
    else:
        schedule = diffusion(spec, seeds, edges)
    return declare_limit(_assemble(spec, schedule, seeds), spec.max_output_tokens)


def _assemble(spec: AgentWorkloadSpec, schedule: Schedule, seeds: tuple[int, int]) -> Trace:
    count = len(schedule)
    output = draw_lengths(spec.output, count, stream("outputs", *seeds))
    new = draw_lengths(spec.new_input, count, stream("new inputs", *seeds))
    inputs, shares_with, shared = _prompts(spec, schedule.agent, new, output)
    return make_trace(
        arrival_s=schedule.arrival_s,
        input_tokens=inputs,
        output_tokens=output,
        previous=schedule.previous,
        think_s=schedule.think_s,
        session=schedule.agent,
        tenant=schedule.agent,
        shares_with=shares_with,
        shared_tokens=shared,
        open_loop=False,
        agents=_agents(spec, schedule),
    )


def _prompts(spec: AgentWorkloadSpec, agent: I8, new: I8, output: I8) -> tuple[I8, I8, I8]:
    """Lengths of the prompts, the earlier call that each shares a prefix with, and its tokens; shapes (N,)."""
    base = spec.world_prompt_tokens + spec.system_prompt_tokens
    cap = spec.history_cap_tokens
    newest = [-1] * spec.agents
    first = [-1] * spec.agents
    history = [0] * spec.agents
    inputs, shares_with, shared = [], [], []
    for call, (caller, fresh, generated) in enumerate(zip(agent.tolist(), new.tolist(), output.tolist(), strict=True)):
        goes_on = spec.history and newest[caller] >= 0
        if goes_on and cap is not None and history[caller] > cap:
            history[caller] = spec.summary_tokens
            goes_on = False
        inputs.append(base + history[caller] + fresh)
        if goes_on:
            shares_with.append(newest[caller])
            shared.append(base + history[caller])
        elif first[caller] >= 0 or call > 0:
            # Shares both prompts with its own first call, or the world's prompt with anybody's.
            shares_with.append(max(first[caller], 0))
            shared.append(base if first[caller] >= 0 else spec.world_prompt_tokens)
        else:
            shares_with.append(-1)
            shared.append(0)
        if first[caller] < 0:
            first[caller] = call
        newest[caller] = call
        if spec.history:
            history[caller] += fresh + generated
    return np.array(inputs), np.array(shares_with), np.array(shared)


def _agents(spec: AgentWorkloadSpec, schedule: Schedule) -> AgentArrays:
    adapters = spec.agents if spec.adapters is None else spec.adapters
    columns = zip(*sorted(schedule.hints, key=lambda hint: hint.trigger), strict=True)
    trigger, agent, after_s, seconds, steps = map(np.array, columns if schedule.hints else [[]] * 5)
    return AgentArrays(
        agent=schedule.agent.astype(np.int32),
        adapter=(np.arange(spec.agents) % adapters if adapters else np.full(spec.agents, -1)).astype(np.int32),
        gate=schedule.gate,
        behind=schedule.behind,
        hint_trigger=trigger.astype(np.int32),
        hint_agent=agent.astype(np.int32),
        hint_after_s=after_s,
        hint_s=seconds,
        hint_steps=steps,
        by_frames=np.array([schedule.by_frames], dtype=np.int32),
        adapter_rank=np.resize(spec.adapter_ranks, adapters if spec.adapter_ranks else 0).astype(np.int32),
    )
