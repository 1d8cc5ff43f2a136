"""Fair orders of a waiting queue, step by step as their papers have them: virtual token counters, deficit round robin.

Service is 1 per prompt token and 2 per output token. A prompt is charged when it is first admitted, with the token that
its prefill samples; each decode step is charged for every request in it; a request that was retracted is charged for
the token that its next prefill samples.

Sources: Sheng et al., "Fairness in Serving Large Language Models" (OSDI 2024), algorithm 2; Shreedhar and Varghese,
"Efficient Fair Queuing Using Deficit Round-Robin" (SIGCOMM 1995).
"""

from __future__ import annotations

from typing import Any

from tests.reference.restatement import sglang_state, vllm_state

LiveRequest = sglang_state.LiveRequest | vllm_state.LiveRequest

INPUT, OUTPUT = 1, 2


class FairShare:
    """Service of the tenants of one worker, and the order of its queue.

    Attributes:
        counters: service of each tenant, and what it was lifted by.
        deficits: of ``deficit``: what a tenant may still use of its quanta; below 0 it owes.
    """

    def __init__(self, policy: str, quantum: int) -> None:
        self.policy = policy
        self.quantum = quantum
        self.counters: dict[int, int] = {}
        self.waiting: list[LiveRequest] = []
        self.admitted: set[Any] = set()
        self.last_tenant: int | None = None
        self.turns: list[int] = []
        self.deficits: dict[int, int] = {}
        self.round = 0
        self.rounds: dict[int, int] = {}

    def admission_charge(self, live: LiveRequest) -> int:
        """What admitting it costs."""
        return OUTPUT + (0 if live.request.id in self.admitted else INPUT * live.request.input_tokens)

    def ordered(self, waiting: list[LiveRequest]) -> list[LiveRequest]:
        """The queue as the pass looks at it; requests that came since the last pass enter first."""
        self.waiting = [live for live in self.waiting if live in waiting]
        for live in waiting:
            if live not in self.waiting:
                self._enter(live)
                self.waiting.append(live)
        if self.policy == "vtc":
            return self._least_served_first(list(waiting))
        return self._round_robin(list(waiting))

    def admit(self, live: LiveRequest) -> None:
        """Charge an admission."""
        tenant = live.request.tenant
        charge = self.admission_charge(live)
        if self.policy == "deficit":
            while self.deficits[tenant] < charge:
                self._next_visit(tenant)
            self.round = max(self.round, self.rounds[tenant])
        self._charge(tenant, charge)
        self.admitted.add(live.request.id)
        self.waiting.remove(live)
        if tenant not in {other.request.tenant for other in self.waiting}:
            self.last_tenant = tenant

    def decode(self, live: LiveRequest) -> None:
        """Charge a decode step of a request."""
        self._charge(live.request.tenant, OUTPUT)

    def _charge(self, tenant: int, service: int) -> None:
        self.counters[tenant] = self.counters.get(tenant, 0) + service
        self.deficits[tenant] = self.deficits.get(tenant, 0) - service

    def _next_visit(self, tenant: int) -> None:
        """A quantum of the round after the tenant's last one."""
        self.deficits[tenant] += self.quantum
        self.rounds[tenant] += 1

    def _enter(self, live: LiveRequest) -> None:
        tenant = live.request.tenant
        queued = {other.request.tenant for other in self.waiting}
        if tenant in queued:
            return
        own = self.counters.setdefault(tenant, 0)
        self.deficits.setdefault(tenant, 0)
        self.rounds.setdefault(tenant, 0)
        if queued:
            self.counters[tenant] = max(own, min(self.counters[other] for other in queued))
        elif self.last_tenant is not None:
            self.counters[tenant] = max(own, self.counters[self.last_tenant])
        # Deficit round robin: what it had not used is gone, what it owes is not. It is visited last in this round.
        before = max(self.round - 1, 0)
        missed = max(before - self.rounds[tenant], 0)
        self.deficits[tenant] += missed * self.quantum
        self.rounds[tenant] += missed
        over = self.rounds[tenant] - before
        self.deficits[tenant] = min(self.deficits[tenant], over * self.quantum)
        if tenant in self.turns:
            self.turns.remove(tenant)
        self.turns.append(tenant)

    def _least_served_first(self, left: list[LiveRequest]) -> list[LiveRequest]:
        """As if all fitted: again and again the first request of the tenant with the least counter."""
        counters = dict(self.counters)
        ordered = []
        while left:
            heads: dict[int, LiveRequest] = {}
            for live in left:
                heads.setdefault(live.request.tenant, live)
            following = min(heads.values(), key=lambda live: counters[live.request.tenant])
            counters[following.request.tenant] += self.admission_charge(following)
            left.remove(following)
            ordered.append(following)
        return ordered

    def _round_robin(self, left: list[LiveRequest]) -> list[LiveRequest]:
        """As if all fitted: visits tenant after tenant, round after round, as far as deficits go."""
        deficits, rounds = dict(self.deficits), dict(self.rounds)
        ordered: list[LiveRequest] = []
        turn = min((rounds[live.request.tenant] for live in left), default=0)
        while left:
            for tenant in self.turns:
                mine = [live for live in left if live.request.tenant == tenant]
                if mine and rounds[tenant] < turn:
                    deficits[tenant] += self.quantum
                    rounds[tenant] += 1
                for live in mine:
                    charge = self.admission_charge(live)
                    if rounds[tenant] > turn or charge > deficits[tenant]:
                        break
                    deficits[tenant] -= charge
                    left.remove(live)
                    ordered.append(live)
            turn += 1
        return ordered
