"""Declarations of policies read from their files, and what is made of them by name; kinds are in ``base.policies``."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

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
    #: Whether a kind's policies may have any; where not, nothing would read them.
    takes_parameters: ClassVar[bool] = True


P = TypeVar("P", bound=Policy)


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

    def given_values(self, given: Iterable[tuple[str, Any]]) -> dict[str, Any]:
        """Every parameter as kernels see it: as ``given`` by name, or its default."""
        values = dict(given)
        return {
            name: parameter.kernel_value(values.get(name, parameter.default))
            for name, parameter in self.parameters().items()
        }

    def joined(self, other: Registry[P]) -> Registry[P]:
        """The policies of both, these first; the package is this one's."""
        return Registry(self.package, self.policies | other.policies, self.modules | other.modules)

    def parameters(self) -> dict[str, Parameter]:
        """Every parameter by name; policies that share one describe it each."""
        return self._parameters

    def unread(self, policy: str) -> frozenset[str]:
        """Names of parameters that ``policy`` does not have."""
        return self._unread[policy]

    @cached_property
    def _parameters(self) -> dict[str, Parameter]:
        merged: dict[str, Parameter] = {}
        for name, policy in self.policies.items():
            for parameter in policy.parameters:
                own = replace(parameter, description=f"{name}: {parameter.description}")
                first = merged.get(parameter.name)
                if first is not None:
                    own = replace(first, description=f"{first.description} {own.description}")
                merged[parameter.name] = own
        return merged

    @cached_property
    def _unread(self) -> dict[str, frozenset[str]]:
        known = frozenset(self._parameters)
        return {name: known.difference(p.name for p in policy.parameters) for name, policy in self.policies.items()}


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
        if policy.parameters and not policy.takes_parameters:
            raise TypeError(f"{registry.modules[name]}: {type(policy).__name__} takes no parameters")
        if any(state.initial != 0 for state in getattr(policy, "member_state", ())):
            raise TypeError(f"{registry.modules[name]}: states of members begin at 0")
        for parameter in policy.parameters:
            first = seen.setdefault(parameter.name, parameter)
            for part in ("default", "at_least", "above", "at_most", "choices", "optional", "only_with"):
                if getattr(first, part) != getattr(parameter, part):
                    module = registry.modules[name]
                    raise TypeError(f"{module}: {part} of {parameter.name} differs from that of another policy")
