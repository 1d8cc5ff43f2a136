"""Spec models of policies, made from their declarations (see ``base.policies``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, create_model

from hisearch.base.policies import Parameter, Policy, Registry
from hisearch.specs.base import Strict
from hisearch.specs.errors import KeyedError


def name_type(policies: Mapping[str, Policy]) -> Any:
    """The type of a key that names one of ``policies``."""
    return Literal[tuple(policies)]


def summaries(policies: Mapping[str, Policy]) -> str:
    """What each policy is, for the description of the key that names it."""
    return "; ".join(f"{name}: {_continued(policy.summary)}" for name, policy in policies.items()) + "."


def parameters_model(name: str, *registries: Registry[Any], default: str = "") -> type[Strict]:
    """A model of every parameter that a policy of ``registries`` has, and of ``policy`` where there is a default.

    default: the policy of the first of them where none is named; "": other keys name them.
    """
    fields: dict[str, Any] = {}
    if default:
        fields["policy"] = (name_type(registries[0]), Field(default, description=summaries(registries[0])))
    for parameter in (parameter for policies in registries for parameter in policies.parameters().values()):
        field = Field(parameter.default, description=parameter.description)
        fields[parameter.name] = (value_type(parameter), field)
    return create_model(name, __base__=Strict, **fields)


def check_parameters(spec: Strict, policies: Registry[Any], policy: str, key: str) -> None:
    """Refuse parameters that would be ignored.

    spec: made by ``parameters_model``. policy: the one that reads them. key: where it is named, such as ``eviction``.

    Raises:
        KeyedError: with the parameter's name.
    """
    values = {name: getattr(spec, name) for name in policies.parameters()}
    unread = {name: p.default for name, p in policies.parameters().items() if name in policies.unread(policy)}
    for name in _refused(spec, unread):
        readers = (other for other in policies if name not in policies.unread(other))
        raise KeyedError((name,), f"needs {key}: {' or '.join(readers)}; {key} is {policy}")
    for parameter in policies[policy].parameters:
        if values[parameter.name] != parameter.default and not parameter.has_effect(values):
            needed, value = parameter.only_with or ("", None)
            raise KeyedError(
                (parameter.name,), f"has no effect without {needed}{'' if value is None else f': {value}'}"
            )


def _refused(spec: Strict, unread: Mapping[str, Any]) -> list[str]:
    """Of what a document states and nothing reads, what to refuse.

    Documents that were written whole state the defaults of all: where most of them are there, they are let pass.

    unread: what nothing reads, with its default.
    """
    stated = [name for name in unread if name in spec.model_fields_set]
    if len(stated) > len(unread) / 2:
        stated = [name for name in stated if getattr(spec, name) != unread[name]]
    return stated


def effective(policy: Policy, values: Mapping[str, Any]) -> dict[str, Any]:
    """Those of ``values`` that ``policy`` reads, but for what another of them leaves without effect."""
    complete = {parameter.name: values.get(parameter.name, parameter.default) for parameter in policy.parameters}
    return {p.name: complete[p.name] for p in policy.parameters if p.name in values and p.has_effect(complete)}


def without_unread(dumped: dict[str, Any], policies: Registry[Any], policy: str) -> dict[str, Any]:
    """A dumped model of ``parameters_model`` without the parameters that ``policy`` does not have."""
    unread = policies.unread(policy)
    return {name: value for name, value in dumped.items() if name not in unread}


def lists_model(name: str, policies: Registry[Any], base: type[Strict], like: str) -> type[Strict]:
    """A model of the values to try of every parameter of ``policies``.

    base: model that it extends. like: whose parameters they are, such as ``a Router``.
    """
    fields: dict[str, Any] = {}
    sharing: dict[str, list[str]] = {}
    for policy_name, policy in policies.items():
        for parameter in policy.parameters:
            key = parameter.search_key or parameter.name
            renamed = f"{like}'s {parameter.name}." if parameter.search_key else f"as {like}'s."
            sharing.setdefault(key, []).append(policy_name)
            description = f"{', '.join(sharing[key])}: {renamed}"
            fields[key] = (
                list[value_type(parameter)],  # type: ignore[misc]  # made at run time
                Field(default=list(parameter.search), min_length=1, description=description),
            )
    return create_model(name, __base__=base, **fields)


def check_lists(lists: Strict, policies: Registry[Any], tried: Sequence[str], section: str) -> None:
    """Refuse values to try that no policy would read.

    lists: made by ``lists_model``, whose section is ``section``. tried: names of policies.

    Raises:
        KeyedError: with the section and the parameter's key.
    """
    readers: dict[str, list[str]] = {}
    for name, policy in policies.items():
        for parameter in policy.parameters:
            readers.setdefault(parameter.search_key or parameter.name, []).append(name)
    keys = [key for key, names in readers.items() if not set(names) & set(tried)]
    for key in _refused(lists, {key: type(lists).model_fields[key].default for key in keys}):
        message = f"none of the policies {', '.join(tried)} has it; it needs {' or '.join(readers[key])}"
        namesakes = [p.search_key for name in tried for p in policies[name].parameters if p.name == key]
        if namesakes:
            message += f". Did you mean {namesakes[0]}?"
        raise KeyedError((section, key), message)


def value_type(parameter: Parameter) -> Any:
    """Type of the parameter's value."""
    if parameter.choices:
        return Literal[parameter.choices]
    number = int if parameter.is_integer else float
    bounds = {"ge": parameter.at_least, "gt": parameter.above, "le": parameter.at_most}
    limits: dict[str, Any] = {name: bound for name, bound in bounds.items() if bound is not None}
    bounded: Any = Annotated[number, Field(**limits)]
    return bounded | None if parameter.optional else bounded


def _continued(sentence: str) -> str:
    """``sentence`` without its full stop, in lower case unless it begins with a name."""
    first, _, rest = sentence.rstrip(".").partition(" ")
    return f"{first.lower() if first[1:].islower() or len(first) == 1 else first} {rest}".rstrip()
