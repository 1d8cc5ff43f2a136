"""Options for a worker's cache tiers, by engine: one rule for every caller that makes the choice.

``TierChoices.choose`` walks through the decisions in order and asks for an option of each. Later decisions depend on
earlier ones: a size of 0 ends the tiers, prefetching needs a storage tier, and settings that an engine's KV connector
lacks are skipped. The sampler, the neighbours of a deployment and the warm start answer in different ways.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hisearch.specs.base import EngineName
from hisearch.specs.deployments.agent_memory import OWN_KV_EVICTION, AgentMemorySpec, AgentPolicyName
from hisearch.specs.deployments.deployment import EvictionName, PoolSpec
from hisearch.specs.deployments.tiers import (
    KV_CONNECTORS,
    MOST_TIERS,
    SIMULATED_KV_CONNECTORS,
    KvConnectorName,
    MovementSpec,
    TierSpec,
    evictions_of,
    may_expire,
)
from hisearch.specs.machines.hardware import ScopeName
from hisearch.specs.studies.search_space import AgentMemorySpace, CacheSpace, TierSpace

#: A decision's name and its options, at least one -> the option taken.
Ask = Callable[[str, Sequence[Any]], Any]


class NotOffered(ValueError):  # noqa: N818
    """A pool's tiers are not among the space's options."""


@dataclass(frozen=True)
class TierChoice:
    """Tiers, their movement, the eviction of device memory, and the agents' objects in it."""

    tiers: tuple[TierSpec, ...]
    movement: MovementSpec
    eviction: EvictionName
    agents: AgentMemorySpec | None = None


@dataclass(frozen=True)
class Decision:
    """One decision: its name, its options and the value chosen."""

    name: str
    options: tuple[Any, ...]
    value: Any

    @property
    def is_size(self) -> bool:
        """True if options are ascending sizes, 0 for none."""
        return _is_tier_size(self.name)

    def others(self) -> list[Any]:
        """Options other than the chosen one; of sizes the next ones, and none at all."""
        if not self.is_size:
            return [option for option in self.options if option != self.value]
        at = self.options.index(self.value)
        near = [self.options[step] for step in (at - 1, at + 1) if 0 <= step < len(self.options)]
        none = [0.0] if self.options[0] == 0 and self.value != 0 and 0 not in near else []
        return [*none, *near]


@dataclass(frozen=True)
class TierChoices:
    """A space's choices for one engine. scopes: default scope of each medium that has one."""

    space: CacheSpace
    engine: EngineName
    scopes: Mapping[str, ScopeName]

    def choose(self, ask: Ask) -> TierChoice:
        """Make every decision that applies."""
        gib = ask("tier_1_gib", self.space.tiers[0].sizes()) if self.space.tiers else 0.0
        if gib == 0:
            # SGLang's lfu then equals lru: it counts no hits without a host tier (0.5.9).
            return TierChoice((), MovementSpec(), self.starting_eviction, self._agents(ask, tiers=0))
        kv_connector: KvConnectorName = ask("kv_connector", self._kv_connectors)
        tiers = [self._tier(ask, 1, self.space.tiers[0], gib, kv_connector)]
        for number, tier in enumerate(self.space.tiers[1 : MOST_TIERS[kv_connector]], 2):
            gib = ask(f"tier_{number}_gib", tier.sizes())
            if gib == 0:
                break
            tiers.append(self._tier(ask, number, tier, gib, kv_connector))
        movement = self._movement(ask, kv_connector, len(tiers))
        agents = self._agents(ask, tiers=len(tiers))
        evictions: Sequence[EvictionName] = self.space.eviction
        if self.engine != "sglang" or (agents is not None and agents.policy not in OWN_KV_EVICTION):
            return TierChoice(tuple(tiers), movement, "lru", agents)
        return TierChoice(tuple(tiers), movement, ask("eviction", evictions), agents)

    def _agents(self, ask: Ask, *, tiers: int) -> AgentMemorySpec | None:
        """The agents' objects in device memory."""
        space = self.space.agents
        if space is None:
            return None
        policy: AgentPolicyName = ask("agent_policy", space.policies)
        slots: int | None = ask("agent_slots", _slots(space, tiered=tiers > 0))
        ahead_s: float = ask("agent_ahead_s", space.ahead_s if policy == "distance" else space.ahead_s[:1])
        return AgentMemorySpec(
            policy=policy,
            distance=space.distance,
            adapters=space.adapters,
            objects=space.objects,
            slots=slots,
            host=space.host if tiers and space.has_objects else "separate",
            host_gib=ask("agent_host_gib", space.host_gib) if _lies_on_disk(space, tiers) else None,
            ahead_s=ahead_s,
        )

    @property
    def _kv_connectors(self) -> list[KvConnectorName]:
        """The space's connectors that the engine has and that are simulated, else the engine's usual one."""
        kv_connectors = [
            kv_connector
            for kv_connector in self.space.movement.kv_connectors
            if kv_connector in SIMULATED_KV_CONNECTORS[self.engine]
        ]
        return kv_connectors or [KV_CONNECTORS[self.engine][0]]

    @property
    def possible_kv_connectors(self) -> tuple[KvConnectorName | None, ...]:
        """KV connectors that a worker's tiers may use; None if it may have no tiers."""
        sizes = self.space.tiers[0].sizes() if self.space.tiers else [0.0]
        none = (None,) if 0 in sizes else ()
        return (*none, *(self._kv_connectors if max(sizes) > 0 else ()))

    @property
    def starting_eviction(self) -> EvictionName:
        """Eviction of device memory, if it is no choice."""
        return "lru" if self.engine != "sglang" or "lru" in self.space.eviction else self.space.eviction[0]

    @property
    def starting_agents(self) -> AgentMemorySpec | None:
        """The agents' objects in device memory, without tiers and if they are no choice."""
        slots = None if self.space.agents is None else self.space.agents.slots
        return self._agents(_first({}), tiers=int(slots is not None and None not in slots))

    def _tier(self, ask: Ask, number: int, tier: TierSpace, gib: float, kv_connector: KvConnectorName) -> TierSpec:
        medium = ask(f"tier_{number}_medium", tier.media)
        scope = ask(f"tier_{number}_scope", tier.scope) if tier.scope else self.scopes.get(medium)
        evictions, lifetimes = self._rules(tier, number, kv_connector)
        return TierSpec(
            medium=medium,
            gib=gib,
            scope=scope,
            eviction=ask(f"tier_{number}_eviction", evictions),
            ttl_s=ask(f"tier_{number}_ttl_s", lifetimes),
        )

    def _rules(
        self, tier: TierSpace, number: int, kv_connector: KvConnectorName
    ) -> tuple[list[Any], list[float | None]]:
        """The space's evictions and times to live that the KV connector's tier ``number``, from 1 on, supports."""
        known = evictions_of(self.engine, kv_connector, number - 1)
        evictions = [eviction for eviction in tier.eviction if eviction in known] or ["lru"]
        return evictions, list(tier.ttl_s) if may_expire(kv_connector, number - 1) else [None]

    def _movement(self, ask: Ask, kv_connector: KvConnectorName, tiers: int) -> MovementSpec:
        space, settings = self.space.movement, dict[str, Any]()
        if kv_connector == "hicache":
            settings["write_policy"] = ask("write_policy", space.write_policy)
        if kv_connector == "hicache" and tiers > 1:
            settings["prefetch"] = ask("prefetch", space.prefetch)
            settings["prefetch_threshold_tokens"] = ask("prefetch_threshold_tokens", space.prefetch_threshold_tokens)
        if kv_connector == "hicache" and tiers > 2:
            settings["hierarchy"] = ask("hierarchy", space.hierarchy)
        named = kv_connector if kv_connector != KV_CONNECTORS[self.engine][0] else None
        return MovementSpec.model_validate({"kv_connector": named, **settings})

    def smallest_first(self) -> Iterator[TierChoice]:
        """Choices with every size of the nearest tier, ascending; smallest further tiers, first options otherwise."""
        for gib in self.space.tiers[0].sizes() if self.space.tiers else [0.0]:
            yield self.choose(_first({"tier_1_gib": gib}))

    def largest_first(self) -> Iterator[TierChoice]:
        """Choices with every combination of tier sizes, nearer tiers descending first; first options otherwise."""
        for sizes in itertools.product(*(tier.sizes()[::-1] for tier in self.space.tiers)):
            if sizes and sizes[0] > 0:
                yield self.choose(_first({f"tier_{number}_gib": gib for number, gib in enumerate(sizes, 1)}))

    def decisions_of(self, pool: PoolSpec) -> list[Decision]:
        """The decisions that lead to a pool's tiers.

        Raises:
            NotOffered: no decisions do.
        """
        known, made = tier_parameters(pool), list[Decision]()

        def ask(name: str, options: Sequence[Any]) -> Any:
            value = known.get(name, 0.0 if _is_tier_size(name) else None)
            if value not in options:
                raise NotOffered(f"{name} {value} is not among {list(options)}")
            made.append(Decision(name, tuple(options), value))
            return value

        choice = self.choose(ask)
        if list(choice.tiers) != pool.tiers or (pool.tiers and choice.movement != _named(pool)):
            raise NotOffered("the tiers differ in what is no choice")
        if choice.agents != pool.agents:
            raise NotOffered("agents' objects differ in what is no choice")
        return made

    def neighbours(self, pool: PoolSpec, *, all_sizes: bool = False) -> Iterator[TierChoice]:
        """Choices that differ from a pool's in one decision; sizes by one step or to 0; first options beyond it.

        ``all_sizes``: sizes may change to any other.
        """
        try:
            made = self.decisions_of(pool)
        except NotOffered:
            return
        values = {decision.name: decision.value for decision in made}
        for decision in made:
            others = decision.options if all_sizes else decision.others()
            for option in others:
                yield self.choose(_first(values | {decision.name: option}))

    def count(self) -> int:
        """Number of choices."""
        total, without = 0, 0
        for kv_connector in self._kv_connectors:
            product = 1
            for number, tier in enumerate(self.space.tiers[: MOST_TIERS[kv_connector]], 1):
                sizes = tier.sizes()
                if sizes[0] == 0 and number == 1:
                    without = self._agent_settings(tiers=0)
                elif sizes[0] == 0:
                    total += product * self._settings(kv_connector, number - 1)
                product *= sum(size > 0 for size in sizes) * self._variants(tier, number, kv_connector)
            total += product * self._settings(kv_connector, min(len(self.space.tiers), MOST_TIERS[kv_connector]))
        return total + without if self.space.tiers else self._agent_settings(tiers=0)

    def _agent_settings(self, *, tiers: int) -> int:
        """Number of choices for agents' objects and device eviction."""
        evictions = len(self.space.eviction) if self.engine == "sglang" and tiers else 1
        space = self.space.agents
        if space is None:
            return evictions
        variants = dict.fromkeys(OWN_KV_EVICTION, evictions) | {"distance": len(space.ahead_s)}
        sizes = len(space.host_gib) if _lies_on_disk(space, tiers) else 1
        return sizes * len(_slots(space, tiered=tiers > 0)) * sum(variants.get(policy, 1) for policy in space.policies)

    def _variants(self, tier: TierSpace, number: int, kv_connector: KvConnectorName) -> int:
        """Number of choices for a tier of one size."""
        evictions, lifetimes = self._rules(tier, number, kv_connector)
        return len(tier.media) * (len(tier.scope) or 1) * len(evictions) * len(lifetimes)

    def _settings(self, kv_connector: KvConnectorName, tiers: int) -> int:
        """Number of choices for movement and device eviction with ``tiers`` tiers."""
        space = self.space.movement
        total = self._agent_settings(tiers=tiers)
        if kv_connector == "hicache":
            total *= len(space.write_policy)
        if kv_connector == "hicache" and tiers > 1:
            total *= len(space.prefetch) * len(space.prefetch_threshold_tokens)
        if kv_connector == "hicache" and tiers > 2:
            total *= len(space.hierarchy)
        return total


def tier_parameters(pool: PoolSpec) -> dict[str, Any]:
    """The decisions that give a pool's tiers, by name; those that do not apply are left out."""
    chosen: dict[str, Any] = {"tier_1_gib": 0.0} if not pool.tiers else {"kv_connector": pool.kv_connector}
    for number, tier in enumerate(pool.tiers, 1):
        chosen |= {f"tier_{number}_{name}": value for name, value in tier.model_dump().items() if name in _OF_A_TIER}
    if pool.tiers and pool.kv_connector == "hicache":
        chosen["write_policy"] = pool.movement.write_policy
        if len(pool.tiers) > 1:
            chosen["prefetch"] = pool.movement.prefetch
            chosen["prefetch_threshold_tokens"] = pool.movement.prefetch_threshold_tokens
        if len(pool.tiers) > 2:
            chosen["hierarchy"] = pool.movement.hierarchy
    if pool.engine.name == "sglang":
        chosen["eviction"] = pool.engine.eviction
    if pool.agents is not None:
        chosen |= {f"agent_{name}": getattr(pool.agents, name) for name in ("policy", "slots", "host_gib", "ahead_s")}
    return {name: value for name, value in chosen.items() if value is not None}


def _is_tier_size(name: str) -> bool:
    """True if a decision is a tier's size, 0 for none."""
    return name.startswith("tier_") and name.endswith("_gib")


def _lies_on_disk(space: AgentMemorySpace, tiers: int) -> bool:
    """True if a worker with ``tiers`` tiers may keep agents' objects on the second of them."""
    return tiers > 1 and space.host == "tier" and space.has_objects


def _slots(space: AgentMemorySpace, *, tiered: bool) -> list[int | None]:
    """Agent slots that a worker with or without tiers may have."""
    return [slots for slots in space.slots if slots is not None or not (tiered and space.has_objects)]


_OF_A_TIER = ("gib", "medium", "scope", "eviction", "ttl_s")


def _named(pool: PoolSpec) -> MovementSpec:
    """A pool's movement; its KV connector is named only if it is not the engine's usual one."""
    usual = pool.kv_connector == KV_CONNECTORS[pool.engine.name][0]
    return pool.movement.model_copy(update={"kv_connector": None if usual else pool.kv_connector})


def _first(values: Mapping[str, Any]) -> Ask:
    """Answers with known values if they are options, else with first options."""

    def ask(name: str, options: Sequence[Any]) -> Any:
        return values[name] if name in values and values[name] in options else options[0]

    return ask
