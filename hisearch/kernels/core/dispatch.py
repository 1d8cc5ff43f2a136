"""One kernel in place of several: the right one by a policy's code.

Numba calls no function out of a table without losing what it knows of it, so the branches are generated.
"""

from __future__ import annotations

import importlib
from typing import Any

from hisearch.base.jit import kernel
from hisearch.base.policies import Registry


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
    modules = {code: importlib.import_module(module) for code, module in enumerate(policies.modules.values())}
    if otherwise:
        modules = {code: module for code, module in modules.items() if hasattr(module, function)}
    functions = {f"policy_{code}": getattr(module, function) for code, module in modules.items()}
    name = f"{function}_of_policy"
    lines = [f"def {name}(code, {arguments}):"]
    for code in modules:
        lines += [f"    if code == {code}:", f"        return policy_{code}({arguments})"]
    # The last branch needs no look at the code, so that numba knows of no way past all of them.
    if otherwise:
        lines.append(f"    return {otherwise}")
    else:
        lines[-2:] = [f"    return {lines[-1].strip().removeprefix('return ')}"]
    namespace: dict[str, Any] = {**functions, "__name__": policies.package}
    exec("\n".join(lines), namespace)
    return kernel(namespace[name])
