"""One kernel in place of several: the right one by a policy's code.

Numba calls no function out of a table without losing what it knows of it, so the branches are generated.
"""

from __future__ import annotations

import importlib
from typing import Any

from hisearch.base.jit import kernel
from hisearch.base.policies import Registry


def functions(policies: Registry[Any], name: str) -> dict[str, Any]:
    """The function ``name`` of every policy whose module has it."""
    modules = {policy: importlib.import_module(module) for policy, module in policies.modules.items()}
    return {policy: getattr(module, name) for policy, module in modules.items() if hasattr(module, name)}


def dispatcher(policies: Registry[Any], function: str, arguments: str, otherwise: str = "") -> Any:
    """A kernel ``(code, *arguments)`` that calls ``function`` of the policy with that code.

    Args:
        policies: of one kind.
        function: name of a kernel in their modules; of those that have it, where ``otherwise`` is given.
        arguments: names, separated by commas.
        otherwise: expression that is the result for the others; without it all must have the function.

    Raises:
        AttributeError: a module lacks the function, and no ``otherwise`` is given.
    """
    having = functions(policies, function)
    missing = [name for name in policies if name not in having]
    if missing and not otherwise:
        raise AttributeError(f"{policies.modules[missing[0]]}: expected a kernel {function}({arguments})")
    kernels = {policies.code(name): having[name] for name in policies if name in having}
    name = f"{function}_of_policy"
    lines = [f"def {name}(code, {arguments}):"]
    for code in kernels:
        lines += [f"    if code == {code}:", f"        return policy_{code}({arguments})"]
    # The last branch needs no look at the code, so that numba knows of no way past all of them.
    if otherwise:
        lines.append(f"    return {otherwise}")
    else:
        lines[-2:] = [f"    return {lines[-1].strip().removeprefix('return ')}"]
    namespace: dict[str, Any] = {f"policy_{code}": compiled for code, compiled in kernels.items()}
    namespace["__name__"] = policies.package
    exec("\n".join(lines), namespace)
    return kernel(namespace[name])
