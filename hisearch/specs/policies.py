"""Spec models of policies, made from their declarations (see ``base.policies``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, create_model

from hisearch.base.policies import Parameter, Policy, Registry
from hisearch.specs.base import Strict


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
