"""Policies, each declared by the file that implements it.

A policy is one module of a folder of kernels: a declaration at its top (what it is called, its parameters, what it
keeps), and its kernel. Specs, the search, the record layouts and the docs are made from declarations. They read these
without importing the module, so that nothing but a simulation loads the compiler: a declaration is one assignment of
literals to a name in capitals, ``ROUTER = RouterPolicy(...)``. Trace formats are declared likewise, by the files that
read them.

To add a policy: add a file to its folder (see the folder's ``__init__``). Nothing else lists the policies.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

_PACKAGE = Path(__file__).parents[1]
#: Kernel's value of a limit that is not set.
UNLIMITED = 2**62


@dataclass(frozen=True)
class Parameter:
    """A setting of a policy, a number or a word.

    Attributes:
        name: its key in YAML and its field in the kernels' record; ends with its unit (``_s``, ``_tokens``).
        default: int, float or one of ``choices``; None: no limit, of a parameter with ``optional``.
        description: for people; the policies that read it are named before it.
        at_least, above, at_most: bounds of a number, where there are any.
        choices: words, if it is one; kernels see the index.
        optional: may be null, which is no limit.
        search: values that the search tries unless the study says otherwise; none where it is not searched.
        search_key: key of its list in a search space, where that is not ``name``.
        only_with: (parameter, value) without which it has no effect; value None: whatever is not null.
    """

    name: str
    default: float | str | None
    description: str
    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    choices: tuple[str, ...] = ()
    optional: bool = False
    search: tuple[float | str | None, ...] = ()
    search_key: str = ""
    only_with: tuple[str, str | None] | None = None

    @property
    def is_integer(self) -> bool:
        """Whether it counts something; limits do."""
        return self.default is None or isinstance(self.default, int)

    @property
    def dtype(self) -> str:
        """Of its field in the kernels' record."""
        return "i8" if self.is_integer or self.choices else "f8"

    def kernel_value(self, value: Any) -> Any:
        """``value``, as YAML has it, as kernels see it."""
        if value is None:
            return UNLIMITED
        return self.choices.index(value) if self.choices else value

    def has_effect(self, values: Mapping[str, Any]) -> bool:
        """Whether it makes a difference beside the other ``values``."""
        if self.only_with is None:
            return True
        name, needed = self.only_with
        return values[name] is not None if needed is None else values[name] == needed


@dataclass(frozen=True)
class State:
    """What a policy remembers between two decisions: a field of the kernels' record.

    initial: a number, or the name of the parameter whose value it begins with; members' states begin at 0.
    """

    name: str
    dtype: str
    initial: float | str = 0


@dataclass(frozen=True)
class Policy:
    """What all kinds of policies declare.

    summary: one line for the docs. name: as users write it; the module's name where absent.
    """

    summary: str
    parameters: tuple[Parameter, ...] = ()
    name: str = ""


#: What a router policy may see, in words.
SIGHTS: dict[str, str] = {
    "requests": "requests in flight, which the router counts itself",
    "tokens": "prompt tokens in flight, which the router counts itself",
    "blocks": "blocks of prompts in flight, which the router counts itself",
    "prompts": "prompts that it sent before, and where",
    "lengths": "lengths of prompts that it sent within a window",
    "keys": "sessions, and where it sent them before",
    "loads": "tokens that workers say they hold, when asked",
    "metrics": "requests that wait and run and the share of KV memory in use, by workers' metrics",
    "caches": "what workers have in HBM",
    "capacity": "speed and price of workers",
}


@dataclass(frozen=True)
class RouterPolicy(Policy):
    """Which worker a request goes to.

    state: fields of ``Fleet.routes``. member_state: fields of ``Fleet.members``. reads_prompts: it keeps a picture of
    the workers' caches or of prompt lengths, of no use in front of decode workers. tracks: what the router has to keep
    while requests come and go: members by ``requests`` or ``tokens`` in flight, ``keys`` or ``blocks`` in flight.
    sees: what it knows beyond the list of workers (a key of ``SIGHTS``). age: parameter that says how old that may be;
    "": it is of now. cost: looks that a request costs it. product: router that has it; "": none but hisearch.
    hash_order: ties go by an order of the workers that is drawn at each start, which the product's hash map gives.
    """

    state: tuple[State, ...] = ()
    member_state: tuple[State, ...] = ()
    reads_prompts: bool = False
    tracks: tuple[str, ...] = ()
    sees: tuple[str, ...] = ()
    age: str = ""
    cost: str = ""
    product: str = ""
    hash_order: bool = False


@dataclass(frozen=True)
class AdmissionPolicy(Policy):
    """Which arriving requests a router lets in. state: fields of ``Fleet.config``."""

    state: tuple[State, ...] = ()


@dataclass(frozen=True)
class AutoscalerPolicy(Policy):
    """What of its workers an autoscaler brings to its target; all other settings are the same for all of them."""


@dataclass(frozen=True)
class EvictionPolicy(Policy):
    """Which leaf of a prefix cache, or run of a store, goes first.

    engine: SGLang's radix cache has it. stores: those behind it have it. recency: its order is that of the last access,
    for which leaves stand in a line. hits: it asks for hits, with every_hit for more than slru counts. newest_first: of
    what was used together the deepest goes last. priorities: it asks for the requests' priorities. next_use: it knows
    the trace (an oracle). reach: it asks how far sequences reach. queues: it keeps two queues and remembers what it
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
    reach: bool = False
    queues: bool = False
    pages: str = ""


@dataclass(frozen=True)
class QueueOrder(Policy):
    """In which order waiting requests are looked at (SGLang's kernels; ``engines`` says who has it).

    every_pass: the order is established anew by each pass that tries to prefill. needs_cache: it is fcfs without radix
    cache. weighs_nodes: its keys are nodes of the radix cache, by waiting requests below them. flag: the
    engine's own name of it; "" where no release has it, so that it is simulated and not exported.
    """

    engines: tuple[str, ...] = ("sglang",)
    every_pass: bool = False
    needs_cache: bool = False
    weighs_nodes: bool = False
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
    in words; "" where their unit is found out.
    """

    json_fields: tuple[tuple[str, ...], ...] = ()
    csv_fields: tuple[tuple[str, ...], ...] = ()
    line_pattern: str = ""
    among_lines: bool = False
    times: str = ""
    rank: int = 0
    records_starts: bool = True
    records_think: bool = True
    quantum_s: float = 0.0


P = TypeVar("P", bound=Policy)


@dataclass(frozen=True)
class ServerPolicy(Policy):
    """A running server of an engine, by its HTTP endpoints.

    settings: paths that tell how it was started, asked once. figures: paths that tell how it fares, asked again and
    again. needs: what makes it tell figures where it does not by itself.
    """

    settings: tuple[str, ...] = ()
    figures: tuple[str, ...] = ()
    needs: str = ""


@dataclass(frozen=True)
class Registry(Mapping[str, P], Generic[P]):
    """Policies of one kind by name; a policy's code in kernels is its place in this order.

    Attributes:
        package: dotted name of the folder that has their modules.
        modules: name of the policy -> its module's dotted name.
    """

    package: str
    policies: dict[str, P] = field(repr=False)
    modules: dict[str, str] = field(repr=False)

    def __getitem__(self, name: str) -> P:
        return self.policies[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.policies)

    def __len__(self) -> int:
        return len(self.policies)

    def code(self, name: str) -> int:
        """Number by which kernels know a policy."""
        return list(self.policies).index(name)

    def subset(self, condition: Callable[[P], bool]) -> Registry[P]:
        """The policies that meet ``condition``, with codes of their own."""
        policies = {name: policy for name, policy in self.policies.items() if condition(policy)}
        return Registry(self.package, policies, {name: self.modules[name] for name in policies})

    def mask(self, condition: Callable[[P], bool]) -> int:
        """Bits of the policies that meet ``condition``: bit ``code`` is set."""
        return sum(1 << code for code, policy in enumerate(self.policies.values()) if condition(policy))

    def kernel_values(self, spec: Any) -> dict[str, Any]:
        """Fields of the kernels' record: every parameter, an attribute of ``spec``, and every state's beginning."""
        values = {name: parameter.kernel_value(getattr(spec, name)) for name, parameter in self.parameters().items()}
        states = (state for policy in self.policies.values() for state in getattr(policy, "state", ()))
        return values | {
            state.name: values[state.initial] if isinstance(state.initial, str) else state.initial for state in states
        }

    def joined(self, other: Registry[P]) -> Registry[P]:
        """The policies of both, these first; the package is this one's."""
        return Registry(self.package, self.policies | other.policies, self.modules | other.modules)

    def parameters(self) -> dict[str, Parameter]:
        """Every parameter by name; policies that share one describe it each."""
        merged: dict[str, Parameter] = {}
        for name, policy in self.policies.items():
            for parameter in policy.parameters:
                own = replace(parameter, description=f"{name}: {parameter.description}")
                first = merged.get(parameter.name)
                if first is not None:
                    own = replace(first, description=f"{first.description} {own.description}")
                merged[parameter.name] = own
        return merged


def read_policies(folder: str, kind: type[P], constant: str, first: str = "") -> Registry[P]:
    """The policies that modules of ``folder`` declare.

    Args:
        folder: below the package, such as ``kernels/routing/policies``.
        kind: class of the declarations.
        constant: what the declaration is assigned to, such as ``ROUTER``.
        first: name of the policy with code 0, which records have that nothing has been written to; the others follow
            in the order of their files.

    Raises:
        TypeError: a module without a declaration, one that is no ``kind``, or one whose parameter contradicts that of
            another policy.
    """
    package = ".".join((_PACKAGE.name, *folder.split("/")))
    policies: dict[str, P] = {}
    modules: dict[str, str] = {}
    for path in sorted((_PACKAGE / folder).glob("[!_]*.py")):
        policy = _declaration(path, kind, constant)
        name = policy.name or path.stem
        policies[name] = policy
        modules[name] = f"{package}.{path.stem}"
    if first:
        policies = {first: policies[first]} | policies
        modules = {name: modules[name] for name in policies}
    registry = Registry(package, policies, modules)
    _check_parameters(registry)
    return registry


def kernel_text() -> str:
    """What kernels are compiled with of all declarations: codes, fields of records and traits, not descriptions.

    Records that every engine sees have fields of every policy, and codes shift with a new file.
    """
    registries: tuple[Registry[Any], ...] = (ROUTERS, ADMISSIONS, AUTOSCALERS, EVICTIONS, QUEUE_ORDERS)
    return repr(
        [
            (
                name,
                replace(policy, summary="", parameters=(), **({"pages": "."} if getattr(policy, "pages", "") else {})),
                [(parameter.name, parameter.dtype) for parameter in policy.parameters],
            )
            for registry in registries
            for name, policy in registry.items()
        ]
    )


def _declaration(path: Path, kind: type[P], constant: str) -> P:
    for node in ast.parse(path.read_bytes(), path).body:
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == [constant]:
            known = {declared.__name__: declared for declared in (Parameter, State, kind)}
            code = compile(ast.Module([node], []), path, "exec")
            exec(code, {"__builtins__": {}, **known}, known)
            policy: Any = known[constant]
            if isinstance(policy, kind):
                return policy
    raise TypeError(f"{path}: expected a line '{constant} = {kind.__name__}(...)' at the top of the module")


def _check_parameters(registry: Registry[Any]) -> None:
    """Refuse what would not be heard: parameters of one name that differ, or of a kind that has none; see ``State``."""
    seen: dict[str, Parameter] = {}
    for name, policy in registry.items():
        if policy.parameters and isinstance(policy, AutoscalerPolicy | QueueOrder | TraceFormat):
            raise TypeError(f"{registry.modules[name]}: {type(policy).__name__} takes no parameters")
        if any(state.initial != 0 for state in getattr(policy, "member_state", ())):
            raise TypeError(f"{registry.modules[name]}: states of members begin at 0")
        for parameter in policy.parameters:
            first = seen.setdefault(parameter.name, parameter)
            for part in ("default", "at_least", "above", "at_most", "choices", "optional", "only_with"):
                if getattr(first, part) != getattr(parameter, part):
                    module = registry.modules[name]
                    raise TypeError(f"{module}: {part} of {parameter.name} differs from that of another policy")


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

#: Results of benchmark tools: trace formats with ``measurements(results)`` besides ``read(source)``.
BENCHMARKS = read_policies("traces/importers/benchmarks", TraceFormat, "FORMAT")
#: Trace formats: ``read(source)`` returns the trace of a file.
TRACE_FORMATS = read_policies("traces/importers/formats", TraceFormat, "FORMAT").joined(BENCHMARKS)

#: Running servers: ``facts(answers, arguments)`` and ``moment(answers, at_s)`` read what their endpoints say.
SERVERS = read_policies("observe/servers", ServerPolicy, "SERVER")
