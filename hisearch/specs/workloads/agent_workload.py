"""Section ``agents`` of a Workload: many agents that call the model from time to time, each with its own memory."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from hisearch.specs.base import Count, NonNegative, NonNegativeInt, Positive, Strict
from hisearch.specs.workloads.distributions import LengthSpec, ThinkSpec

Chance = Annotated[float, Field(ge=0, le=1)]


class WorldSpec(Strict):
    """The plane on which interacting agents walk: a square whose edges turn them back.

    An agent walks straight to where its plan leads, for as long as the plan takes, and calls there. Two agents that
    come within ``radius_m`` of each other both call at once: their plans end early. An agent that has met
    another meets nobody until a plan of its own has led to a call.
    """

    size_m: Positive = Field(400.0, description="Length of its edges.")
    speed_m_per_s: Positive = Field(1.4, description="Of a walking agent; 1.4 m/s is a person's.")
    radius_m: Positive = Field(2.0, description="Agents closer than this meet.")
    tick_s: Positive = Field(10.0, description="Time in the world between two looks at it: with frames, of a frame.")

    @model_validator(mode="after")
    def _check(self) -> WorldSpec:
        if self.speed_m_per_s * self.tick_s > self.size_m:
            raise ValueError("an agent may not cross the world within one tick_s")
        if self.radius_m > self.size_m:
            raise ValueError(f"radius_m {self.radius_m:g} exceeds size_m {self.size_m:g}: all would meet at once")
        return self


class GraphSpec(Strict):
    """Who passes messages on to whom: undirected, over all agents."""

    model: Literal["scale_free", "small_world", "edges"] = Field(
        "scale_free",
        description="scale_free: Barabási and Albert's preferential attachment; small_world: Watts and Strogatz's "
        "rewired ring; edges: from a file.",
    )
    degree: Count = Field(4, description="scale_free: edges of a new agent; small_world: neighbours, an even number.")
    rewire: Chance = Field(0.1, description="small_world: chance that an edge leads anywhere else.")
    path: str | None = Field(
        None,
        description="edges: a text file with two agents' numbers, from 0, per line; # begins a comment. A relative "
        "path is tried from this document's folder and from the working directory.",
    )

    @model_validator(mode="after")
    def _check(self) -> GraphSpec:
        if (self.model == "edges") != (self.path is not None):
            raise ValueError("path is needed for the model edges, and for no other")
        if self.model == "small_world" and self.degree % 2:
            raise ValueError(f"degree {self.degree}: small_world needs an even number of neighbours")
        return self


class AgentWorkloadSpec(Strict):
    """A seeded population of agents, in a closed loop: each next call waits for the model's responses.

    An agent calls, acts on the response for a while, and calls again. Its prompt: the world's, its own system prompt,
    its history, new tokens.
    """

    kind: Literal["independent", "interaction", "diffusion"] = Field(
        description="independent: each agent acts for a drawn time, then calls. interaction: likewise, on a plane; a "
        "meeting makes both call early. diffusion: messages spread over a graph breadth first; who gets one calls."
    )
    agents: Count = Field(description="How many there are.")
    calls: Count = Field(description="Requests in all.")
    pacing: Literal["frames", "free"] = Field(
        "frames",
        description="frames: the world advances by frames, each when all calls of the one before it are answered; "
        "free: every agent by its own clock.",
    )
    frame_s: NonNegative = Field(0.0, description="frames: what the world itself takes per frame.")
    active_rate: Annotated[float, Field(gt=0, le=1)] = Field(
        0.2, description="independent, interaction with frames: agents that call in a frame on average, as a share."
    )
    action: ThinkSpec | None = Field(None, description="free: how long an agent acts; needed there.")
    regularity: Chance = Field(
        0.5,
        description="frames: share of an action that is always the same, the rest being drawn; 1: every agent calls "
        "every so many frames, 0: by chance alone.",
    )
    burst: Chance = Field(
        0.0, description="frames: chance that an action ends with a common frame, as by a day's clock."
    )
    world: WorldSpec = Field(WorldSpec(), description="interaction: the plane.")
    graph: GraphSpec = Field(GraphSpec(), description="diffusion: the graph.")
    seeds: Count = Field(1, description="diffusion: agents that a message starts from; more messages follow.")
    spread: Annotated[float, Field(gt=0, le=1)] = Field(
        1.0, description="diffusion: chance that a message takes an edge of the graph."
    )
    world_prompt_tokens: NonNegativeInt = Field(0, description="Beginning of all prompts.")
    system_prompt_tokens: NonNegativeInt = Field(512, description="Behind it, of each agent's own.")
    new_input: LengthSpec = Field(description="New prompt tokens of every call.")
    output: LengthSpec = Field(description="Output tokens of every call.")
    history: bool = Field(
        True, description="A prompt has all of the agent's earlier calls and answers before the new tokens."
    )
    history_cap_tokens: Count | None = Field(
        None, description="A history that would exceed this is replaced by a summary; none by default."
    )
    summary_tokens: NonNegativeInt = Field(256, description="Its length.")
    adapters: NonNegativeInt | None = Field(
        None, description="LoRA adapters that the agents have in turn; one each where absent, 0: none."
    )
    adapter_ranks: list[Count] = Field(
        default_factory=list,
        description="Ranks that the adapters have in turn; the deployment's where absent. A smaller one is loaded in "
        "less time, into a place of the deployment's rank.",
    )
    max_output_tokens: Count | None = Field(
        None, description="Limit that clients declare; a request's own output length where absent or larger."
    )
    seed: NonNegativeInt = Field(0, description="Mixed with the study's.")

    @model_validator(mode="after")
    def _check(self) -> AgentWorkloadSpec:
        if (self.pacing == "free") != (self.action is not None):
            raise ValueError("action is needed for the pacing free, and for no other")
        if self.pacing == "free" and self.frame_s:
            raise ValueError("frame_s: the pacing free has no frames")
        if self.kind != "diffusion" and self.seeds > 1:
            raise ValueError("seeds: diffusion alone has messages")
        if self.seeds > self.agents:
            raise ValueError(f"seeds {self.seeds} exceed the {self.agents} agents")
        if self.adapters is not None and self.adapters > self.agents:
            raise ValueError(f"adapters {self.adapters} exceed the {self.agents} agents, who have one each at most")
        if self.adapter_ranks and self.adapters == 0:
            raise ValueError("adapter_ranks: there are no adapters")
        if self.kind == "diffusion" and self.graph.degree >= self.agents:
            raise ValueError(f"graph.degree {self.graph.degree} needs more than {self.agents} agents")
        if not self.history and self.history_cap_tokens is not None:
            raise ValueError("history_cap_tokens: there is no history")
        if self.history_cap_tokens is not None and self.summary_tokens > self.history_cap_tokens:
            raise ValueError(f"summary_tokens {self.summary_tokens} exceed history_cap_tokens")
        return self
