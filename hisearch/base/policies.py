"""Policies, each declared by the file that implements it.

A policy is one module of a folder of kernels: a declaration at its top (what it is called, its parameters, what it
keeps), and its kernel. Specs, the search, the record layouts and the docs are made from declarations. They read these
without importing the module, so that nothing but a simulation loads the compiler: a declaration is one assignment of
literals to a name in capitals, ``ROUTER = RouterPolicy(...)``. Trace formats are declared likewise, by the files that
read them.

To add a policy: add a file to its folder (see the folder's ``__init__``). Nothing else lists the policies.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from hisearch.base.registry import UNLIMITED, Parameter, Policy, Registry, State, read_policies

#: What the files of policies and their readers need beside the kinds and registries below.
__all__ = ["UNLIMITED", "Parameter", "Policy", "Registry", "State", "read_policies"]

#: What a router policy may see, in words.
SIGHTS: dict[str, str] = {
    "requests": "requests in flight",
    "tokens": "prompt tokens in flight",
    "blocks": "blocks of prompts in flight",
    "prompts": "prompts that it sent",
    "prefills": "which prefills have ended",
    "lengths": "lengths of prompts that it sent",
    "keys": "the session",
    "prefixes": "the prompt's first tokens",
    "loads": "tokens that workers say they hold",
    "kv": "KV in use on workers",
    "metrics": "queue, running requests and KV in use by workers' metrics",
    "caches": "workers' HBM",
    "speed": "workers' speed",
    "price": "workers' price",
}
#: Those of them that workers tell; what the router sent and counts it knows by itself.
_FROM_WORKERS = frozenset({"prefills", "loads", "kv", "metrics", "caches"})


@dataclass(frozen=True)
class RouterPolicy(Policy):
    """Which worker a request goes to.

    state: fields of ``Fleet.routes``. member_state: fields of ``Fleet.members``. reads_prompts: it keeps a picture of
    the workers' caches or of prompt lengths, of no use in front of decode workers. tracks: what the router has to keep
    while requests come and go: members by ``requests`` or ``tokens`` in flight, ``keys`` or ``blocks`` in flight. sees:
    what it decides by, beyond the list of workers (keys of ``SIGHTS``). age: parameter that says how old that may be;
    "": it is of now. remembers: how long it knows what it sent, in words; "" where it knows none. shares_load:
    unrelated requests of one size, arriving together, spread evenly over equal workers. approximates: parameter by
    which it may know caches by what it sent alone, the value under which they tell it, and the parameter that says how
    long it remembers. cost: looks that a request costs it. product: router that has it; "": none but hisearch.
    hash_order: ties go by an order of the workers that is drawn at each start, which the product's hash map gives.
    """

    state: tuple[State, ...] = ()
    member_state: tuple[State, ...] = ()
    reads_prompts: bool = False
    tracks: tuple[str, ...] = ()
    sees: tuple[str, ...] = ()
    age: str = ""
    remembers: str = ""
    shares_load: bool = True
    approximates: tuple[str, str, str] | None = field(default=None, repr=False)
    cost: str = ""
    product: str = ""
    hash_order: bool = False

    def __post_init__(self) -> None:
        unknown = [sight for sight in self.sees if sight not in SIGHTS]
        if unknown:
            raise TypeError(f"sees: expected {', '.join(SIGHTS)}, got {', '.join(unknown)}")

    @property
    def asks_workers(self) -> bool:
        """Whether it learns from workers, whether their caches, their metrics or the ends of their prefills."""
        return not _FROM_WORKERS.isdisjoint(self.sees)


@dataclass(frozen=True)
class AdmissionPolicy(Policy):
    """Which arriving requests a router lets in. state: fields of ``Fleet.config``."""

    state: tuple[State, ...] = ()


@dataclass(frozen=True)
class AutoscalerPolicy(Policy):
    """What of its workers an autoscaler brings to its target; all other settings are the same for all of them."""

    takes_parameters: ClassVar[bool] = False


@dataclass(frozen=True)
class EvictionPolicy(Policy):
    """Which leaf of a prefix cache, or run of a store, goes first.

    engine: SGLang's radix cache has it. stores: those behind it have it. recency: its order is that of the last access,
    for which leaves stand in a line. hits: it asks for hits, with every_hit for more than slru counts. newest_first: of
    what was used together the deepest goes last. priorities: it asks for the requests' priorities. next_use: it knows
    the trace (an oracle). deepest_first: of a store's runs that were used together, the deepest goes first. reach: it
    asks how far sequences reach. queues: it keeps two queues and remembers what it
    evicted, page by page. pages: what goes first in a cache of single pages (``validate cache``), "" where such a cache
    has no such policy.
    """

    engine: bool = False
    stores: bool = True
    recency: bool = False
    hits: bool = False
    every_hit: bool = False
    newest_first: bool = False
    priorities: bool = False
    next_use: bool = False
    deepest_first: bool = True
    reach: bool = False
    queues: bool = False
    pages: str = ""


@dataclass(frozen=True)
class QueueOrder(Policy):
    """In which order waiting requests are looked at (SGLang's kernels; ``engines`` says who has it).

    every_pass: the order is established anew by each pass that tries to prefill. needs_cache: it is fcfs without radix
    cache. weighs_nodes: its keys are nodes of the radix cache, by waiting requests below them. counts_service: it goes
    by what tenants have received. flag: the engine's own name of it; "" where no release has it, so that it is
    simulated and not exported.
    """

    takes_parameters: ClassVar[bool] = False
    engines: tuple[str, ...] = ("sglang",)
    every_pass: bool = False
    needs_cache: bool = False
    weighs_nodes: bool = False
    counts_service: bool = False
    flag: str = ""


@dataclass(frozen=True)
class WritePolicy(Policy):
    """When HiCache copies a node of the prefix cache to host memory.

    at_eviction: when the node is evicted, which waits for the copy; hits are not counted, and nothing is written to
    storage. flag: the engine's own name of it; "" where no release has it, so that it is simulated and not exported.
    """

    at_eviction: bool = False
    flag: str = ""


@dataclass(frozen=True)
class PrefetchPolicy(Policy):
    """How long a request waits for what HiCache fetches from storage for it. flag: as of ``WritePolicy``."""

    flag: str = ""


@dataclass(frozen=True)
class TraceFormat(Policy):
    """Form of a trace file.

    json_fields: sets of fields, any of which in one of the first lines of JSON recognises the format; fields of nested
    objects by their dotted path. csv_fields: the same of a table's columns. line_pattern: regular expression of a line
    of a log in plain text; "" where it is none. among_lines: its JSON may stand among lines of plain text. rank:
    formats of a lower one are recognised first, equal ones by name; a format whose fields hold all of another's needs a
    lower one. records_starts: it says when sessions start. records_think: it says how long follow-ups wait, or has
    none. quantum_s: arrivals that are all multiples of this are spread over it; 0: none are. times: what its times are,
    in words; "" where their unit is found out. names_adapters: its rows may name LoRA adapters.
    """

    takes_parameters: ClassVar[bool] = False
    json_fields: tuple[tuple[str, ...], ...] = ()
    csv_fields: tuple[tuple[str, ...], ...] = ()
    line_pattern: str = ""
    among_lines: bool = False
    times: str = ""
    rank: int = 0
    records_starts: bool = True
    records_think: bool = True
    names_adapters: bool = False
    quantum_s: float = 0.0


@dataclass(frozen=True)
class ServerPolicy(Policy):
    """A running server of an engine, by its HTTP endpoints.

    settings: paths that tell how it was started, asked once. figures: paths that tell how it fares, asked again and
    again. needs: what makes it tell figures where it does not by itself.
    """

    settings: tuple[str, ...] = ()
    figures: tuple[str, ...] = ()
    needs: str = ""


#: Traits that are words for people, or that only tests ask for.
_NOT_FOR_KERNELS: dict[str, Any] = {"summary": "", "remembers": "", "shares_load": True, "deepest_first": True}


def _without_words(policy: Policy) -> Policy:
    """A declaration as far as kernels depend on it, but for its parameters."""
    plain = {name: value for name, value in _NOT_FOR_KERNELS.items() if hasattr(policy, name)}
    return replace(policy, parameters=(), **plain, **({"pages": "."} if getattr(policy, "pages", "") else {}))


def kernel_text() -> str:
    """What kernels are compiled with of all declarations: codes, fields of records and traits, not descriptions.

    Records that every engine sees have fields of every policy, and codes shift with a new file.
    """
    registries: tuple[Registry[Any], ...] = (
        ROUTERS,
        ADMISSIONS,
        AUTOSCALERS,
        EVICTIONS,
        QUEUE_ORDERS,
        WRITE_POLICIES,
        PREFETCHES,
    )
    return repr(
        [
            (
                name,
                _without_words(policy),
                [(parameter.name, parameter.dtype) for parameter in policy.parameters],
            )
            for registry in registries
            for name, policy in registry.items()
        ]
    )


#: Router policies: ``choose(fleet, route, k, r, now)`` returns the member that takes request r on route k.
ROUTERS = read_policies("kernels/routing/policies", RouterPolicy, "ROUTER", first="round_robin")
#: Admission policies: ``admits(fleet, r, now)`` is true where request r is let in.
ADMISSIONS = read_policies("kernels/fleet/admissions", AdmissionPolicy, "ADMISSION", first="none")
#: Autoscaler policies: ``load(fleet, m)`` is what member m has of what is brought to a target.
AUTOSCALERS = read_policies("kernels/fleet/autoscalers", AutoscalerPolicy, "AUTOSCALER", first="requests_in_flight")

#: Eviction policies: ``before(sim, a, b)`` is true where leaf a goes before leaf b.
EVICTIONS = read_policies("kernels/cache/evictions", EvictionPolicy, "EVICTION", first="lru")

#: Orders of the waiting queue.
QUEUE_ORDERS = read_policies("kernels/sglang/orders", QueueOrder, "ORDER", first="fcfs")

#: HiCache's write policies: ``copies(sim, d)`` is true where node d, which was hit, is to be copied to the host.
WRITE_POLICIES = read_policies("kernels/hicache/write_policies", WritePolicy, "WRITE_POLICY", first="write_through")
#: HiCache's prefetch policies: ``longest_wait_s(sim, tokens)`` is how long a request waits for a fetch.
PREFETCHES = read_policies("kernels/hicache/prefetch_policies", PrefetchPolicy, "PREFETCH", first="best_effort")

#: Results of benchmark tools: trace formats with ``measurements(results)`` besides ``read(source)``.
BENCHMARKS = read_policies("traces/importers/benchmarks", TraceFormat, "FORMAT")
#: Trace formats: ``read(source)`` returns the trace of a file.
TRACE_FORMATS = read_policies("traces/importers/formats", TraceFormat, "FORMAT").joined(BENCHMARKS)

#: Running servers: ``facts(answers, arguments)`` and ``moment(answers, at_s)`` read what their endpoints say.
SERVERS = read_policies("observe/servers", ServerPolicy, "SERVER")
