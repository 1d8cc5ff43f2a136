"""Expert routing, placement and offloading: how tokens choose, where experts lie, and misses to fetch.

Notation (of one layer)
    E, k    experts, experts that a token chooses
    pi_e    probability that a token chooses expert e; they add up to k
    R       ranks that experts are dealt to; a rank has (E + replicas) / R slots
    T       tokens that choose in a step, of all attention groups
    q_e     probability that a step needs expert e: 1 - (1 - pi_e)^T
    C       resident experts of a rank, on the accelerator

Choices with weights w_e without repetition have pi_e = 1 - exp(-x w_e), with x such that they add up to k (successive
sampling as a race of exponential clocks, exact for many experts). The busiest rank's load and needed experts are means
over ``DRAWS`` seeded draws of independent binomial counts. Copies of an expert share its tokens evenly.
Where each layer has its own histogram, loads and misses are means over layers, and experts are dealt by layer. Of a
function of the user's both are counted in drawn steps (``chosen_experts.ChosenExpertLoads``).

A step first runs the resident experts, then the fetched ones. Misses of a step, with Che's approximation (Che et
al., "Hierarchical web caching systems", 2002; Martina et al., "A unified approach to the performance analysis of
caching systems", 2014), t such that the expected number of resident experts is C:

    static    sum of q_e of all but the C most popular
    lru       sum of q_e (1 - q_e)^t             C = sum of 1 - (1 - q_e)^t
    fifo      sum of q_e / (1 + q_e t)           C = sum of q_e t / (1 + q_e t)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from hisearch.base.dtypes import F8
from hisearch.latency.devices.build import DevicesRefused
from hisearch.latency.devices.work import Work
from hisearch.latency.measured.curves import Curve
from hisearch.latency.operators import ACTIVATION_BYTES, Operator
from hisearch.latency.parameters import Matrix
from hisearch.specs.machines.devices import ExpertOffloadSpec, ExpertRoutingSpec, ExpertsSpec

#: Draws behind the busiest rank's mean load.
DRAWS = 64

#: Tokens at which loads and misses are computed; linear between them.
KNOTS = np.unique(np.round(2.0 ** np.arange(0.0, 17.01, 0.5)))


def choice_probabilities(routing: ExpertRoutingSpec, experts: int, per_token: int) -> F8:
    """Pi of every expert, shape (experts,).

    Raises:
        DevicesRefused: a histogram of another number of experts, or with fewer above 0 than a token chooses.
    """
    if routing.kind == "zipf":
        weights = np.arange(1, experts + 1, dtype=np.float64) ** -routing.exponent
    elif routing.kind == "histogram":
        weights = np.array(routing.weights)
        if len(weights) != experts:
            raise DevicesRefused("experts.routing.weights", f"has {len(weights)} entries for {experts} experts")
        if np.count_nonzero(weights) < per_token:
            raise DevicesRefused("experts.routing.weights", f"needs {per_token} above 0: a token chooses so many")
    else:
        return np.full(experts, per_token / experts)
    if np.count_nonzero(weights) == per_token:
        return (weights > 0).astype(np.float64)
    weights = weights / weights.sum()
    low, high = 0.0, 1.0
    while (1.0 - np.exp(-high * weights)).sum() < per_token:
        high *= 2.0
    for _ in range(100):
        middle = (low + high) / 2.0
        low, high = (middle, high) if (1.0 - np.exp(-middle * weights)).sum() < per_token else (low, middle)
    return np.asarray(1.0 - np.exp(-high * weights))


def needed(probabilities: F8, tokens: F8) -> F8:
    """Q of every expert at every number of tokens, shape (experts, tokens)."""
    with np.errstate(divide="ignore"):
        return np.asarray(-np.expm1(tokens[None, :] * np.log1p(-probabilities[:, None])))


def places(probabilities: F8, ranks: int, spec: ExpertsSpec) -> list[list[int]]:
    """Experts of every rank; an expert with copies appears on several.

    Raises:
        DevicesRefused: the slots do not divide among the ranks.
    """
    experts = len(probabilities)
    if (experts + spec.replicas) % ranks:
        what = f"{experts} experts" + (f" and {spec.replicas} replicas" if spec.replicas else "")
        raise DevicesRefused("experts.replicas", f"{what} do not divide among {ranks} ranks")
    copies = np.ones(experts, dtype=np.int64)
    for _ in range(spec.replicas):
        copies[int(np.argmax(probabilities / copies))] += 1
    slots = [expert for expert in range(experts) for _ in range(copies[expert])]
    slots_per_rank = len(slots) // ranks
    if spec.placement == "in_order":
        return [slots[i * slots_per_rank : (i + 1) * slots_per_rank] for i in range(ranks)]
    load = probabilities / copies
    dealt: list[list[int]] = [[] for _ in range(ranks)]
    carried = np.zeros(ranks)
    for expert in sorted(slots, key=lambda e: (-load[e], e)):
        open_ranks = [r for r in range(ranks) if len(dealt[r]) < slots_per_rank]
        rank = min(open_ranks, key=lambda r: (expert in dealt[r], carried[r], r))
        dealt[rank].append(expert)
        carried[rank] += load[expert]
    return dealt


def misses(needs: F8, resident: int, eviction: str) -> F8:
    """Experts that a step must fetch, shape (tokens,); ``needs``: q, shape (experts, tokens)."""
    if resident >= len(needs):
        return np.zeros(needs.shape[1])
    if resident == 0:
        return np.asarray(needs.sum(axis=0))
    if eviction == "static":
        order = np.argsort(-needs[:, 0], kind="stable")
        return np.asarray(needs[order[resident:]].sum(axis=0))
    q = np.clip(needs, 1e-12, 1.0 - 1e-12)
    low, high = np.full(q.shape[1], -60.0), np.full(q.shape[1], 60.0)
    for _ in range(100):
        middle = (low + high) / 2.0
        short = _resident(q, np.exp(middle), eviction).sum(axis=0) < resident
        low, high = np.where(short, middle, low), np.where(short, high, middle)
    return np.asarray((q * (1.0 - _resident(q, np.exp(high), eviction))).sum(axis=0))


def _resident(q: F8, t: F8, eviction: str) -> F8:
    if eviction == "lru":
        return np.asarray(-np.expm1(t * np.log1p(-q)))
    return np.asarray(q * t / (1.0 + q * t))


@dataclass(frozen=True)
class ExpertLoads:
    """Loads and misses of the busiest rank; E, k and R of the notation are ``experts``, ``per_token`` and ``ranks``."""

    spec: ExpertsSpec
    experts: int
    per_token: int
    ranks: int
    hidden: int = 0

    @cached_property
    def by_layer(self) -> list[ExpertLoads]:
        """Loads of every layer with experts, where the routing states each; empty where all are equal."""
        routing = self.spec.routing
        loads = []
        for index, weights in enumerate(routing.layers):
            layer_routing = routing.model_copy(update={"weights": weights, "layers": [], "seed": routing.seed + index})
            loads.append(replace(self, spec=self.spec.model_copy(update={"routing": layer_routing})))
        return loads

    @cached_property
    def probabilities(self) -> F8:
        """Pi; of the first layer where layers differ."""
        if self.by_layer:
            return self.by_layer[0].probabilities
        return choice_probabilities(self.spec.routing, self.experts, self.per_token)

    @cached_property
    def dealt(self) -> list[list[int]]:
        """Experts of every rank."""
        return places(self.probabilities, self.ranks, self.spec)

    @property
    def even(self) -> bool:
        """Whether every step loads all experts equally."""
        return self.spec.routing.kind in {"balanced", "round_robin"}

    @property
    def foresees(self) -> bool:
        """Whether experts are fetched ahead."""
        offload = self.spec.offload
        return offload is not None and offload.run == "fetch" and offload.predicted > 0

    def busiest(self, tokens: F8) -> tuple[F8, F8]:
        """(tokens' choices, experts needed) of the busiest rank, for each entry of ``tokens``."""
        if self.by_layer:
            picks, active = np.mean([layer.busiest(tokens) for layer in self.by_layer], axis=0)
            return picks, active
        if self.even:
            picks = tokens * self.per_token / self.ranks
            return picks, np.minimum(picks, self.experts / self.ranks)
        if self.ranks == 1:
            shape = np.shape(tokens)
            active = needed(self.probabilities, np.ravel(tokens)).sum(axis=0).reshape(shape)
            return tokens * self.per_token, np.asarray(active)
        picks_of, active_of = self._drawn
        return picks_of(tokens), active_of(tokens)

    @cached_property
    def _drawn(self) -> tuple[Curve, Curve]:
        rng = np.random.default_rng((self.spec.routing.seed, self.experts, self.ranks))
        copies = np.zeros(self.experts)
        member = np.zeros((self.ranks, self.experts))
        for rank, held in enumerate(self.dealt):
            for expert in held:
                member[rank, expert] += 1.0
                copies[expert] += 1.0
        picks, active = [0.0], [0.0]
        for tokens in KNOTS:
            counts = self._counts(int(tokens), rng)
            loads = counts / copies @ member.T
            busy = loads.argmax(axis=1)
            hit = np.minimum(counts / copies, 1.0)
            picks.append(float(loads.max(axis=1).mean()))
            active.append(float(np.einsum("de,de->d", hit, np.minimum(member[busy], 1.0)).mean()))
        at = np.concatenate(([0.0], KNOTS))
        return Curve(at, np.maximum.accumulate(picks)), Curve(at, np.maximum.accumulate(active))

    def _counts(self, tokens: int, rng: np.random.Generator) -> F8:
        """Tokens that choose each expert in drawn steps, shape (draws, experts)."""
        return rng.binomial(tokens, self.probabilities, size=(DRAWS, self.experts)).astype(np.float64)

    @cached_property
    def _missed(self) -> Curve:
        offload = self.spec.offload
        assert offload is not None
        if self.by_layer:
            missed = np.mean([layer._missed(KNOTS) for layer in self.by_layer], axis=0)
        elif self.even:
            # Round-robin: a step needs the experts used longest ago, so only the static policy has hits.
            active = np.minimum(KNOTS * self.per_token, self.experts) / self.ranks
            places_of_rank = self.experts / self.ranks
            hit_share = offload.resident / places_of_rank if offload.eviction == "static" else 0.0
            missed = np.where(offload.resident >= places_of_rank, 0.0, active * (1.0 - hit_share))
        else:
            missed = self._drawn_misses(offload)
        return Curve(np.concatenate(([0.0], KNOTS)), np.concatenate(([0.0], missed)))

    def _drawn_misses(self, offload: ExpertOffloadSpec) -> F8:
        """Misses of the rank that has most, at every knot."""
        by_rank = [
            misses(needed(self.probabilities[held], KNOTS), offload.resident, offload.eviction) for held in self.dealt
        ]
        return np.asarray(np.max(by_rank, axis=0))

    def hit_rate(self, tokens: F8) -> F8:
        """Resident share of the experts that a step of ``tokens`` (at least 1) needs."""
        active = self.busiest(tokens)[1]
        return np.asarray(1.0 - np.minimum(self._missed(tokens) / np.maximum(active, 1e-9), 1.0))

    def works(self, op: Operator, matrix: Matrix, tokens: F8, device: str) -> list[tuple[str, Work]]:
        """A routed product on the busiest rank, by device; ``tokens``: of one attention group."""
        total = tokens * op.token_groups
        picks, active = self.busiest(total)
        offload = self.spec.offload
        if offload is None or offload.run == "fetch":
            return [(device, _work(op, matrix, tokens, picks, active))]
        hot_picks, hot_active = self._hot(total, offload.resident)
        return [
            (device, _work(op, matrix, tokens, picks * hot_picks, active * hot_active)),
            (offload.device, _work(op, matrix, tokens, picks * (1 - hot_picks), active * (1 - hot_active))),
        ]

    def moved_tokens(self, tokens: F8) -> F8:
        """Choices whose hidden state goes to experts on another device, at most one per token."""
        offload = self.spec.offload
        assert offload is not None
        picks = self.busiest(tokens)[0]
        return np.asarray(np.minimum(picks * (1 - self._hot(tokens, offload.resident)[0]), tokens))

    def fetched_bytes(self, op: Operator, tokens: F8) -> tuple[str, F8, F8] | None:
        """(source, bytes that a layer waits for, bytes prefetched while the layer before runs) of a product.

        Predictions name as many experts as are missing; wrong ones are fetched in vain.
        """
        offload = self.spec.offload
        if offload is None or offload.run != "fetch":
            return None
        missing = self._missed(tokens * op.token_groups) * op.weight_bytes
        ahead = missing if offload.predicted > 0 else np.zeros_like(missing)
        return offload.device, np.asarray(missing * (1.0 - offload.predicted)), ahead

    def _hot(self, tokens: F8, resident: int) -> tuple[F8, F8]:
        """Shares of choices and of needed experts on the ``resident`` most popular experts of each rank."""
        if self.by_layer:
            choices, needs = np.mean([layer._hot(tokens, resident) for layer in self.by_layer], axis=0)
            return choices, needs
        count = min(resident * self.ranks, self.experts)
        hot = np.argsort(-self.probabilities, kind="stable")[:count]
        needs = self._needs(np.ravel(tokens))
        total = np.maximum(needs.sum(axis=0), 1e-12)
        share = (needs[hot].sum(axis=0) / total).reshape(np.shape(tokens))
        return np.full(np.shape(tokens), self.probabilities[hot].sum() / self.per_token), np.asarray(share)

    def _needs(self, tokens: F8) -> F8:
        """Q of every expert at every number of tokens, shape (experts, tokens)."""
        return needed(self.probabilities, tokens)


def _work(op: Operator, matrix: Matrix, tokens: F8, picks: F8, active: F8) -> Work:
    flops = 2.0 * matrix.inputs * matrix.outputs * picks
    moved = active * op.weight_bytes + picks * (matrix.inputs + matrix.outputs) * ACTIVATION_BYTES
    groups = np.maximum(active, 1e-9)
    full = np.ones_like(tokens)
    return Work(
        "product", op.name, op.dtype, flops, moved, picks / groups, full * matrix.inputs, full * matrix.outputs,
        groups, tokens, np.zeros_like(tokens),
    )  # fmt: skip
