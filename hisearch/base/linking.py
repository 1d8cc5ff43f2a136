"""Optimise a kernel once, together with all that it calls, instead of once for each of its callers.

Numba optimises a function together with everything it calls, and translates both into machine code, before it turns to
the function's callers. There all of it is optimised and translated again: a callee at depth ten ten times. Two thirds
of the time of compiling went there. Here a kernel called from others stays unoptimised until a whole is linked: a
kernel that Python calls, or an engine's entry.

The classes below depend on numba's internals (``numba.core.codegen``); ``tests/kernels/test_linking.py`` tests what
they rely on.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import llvmlite.binding as llvm
from numba.core.codegen import CPUCodeLibrary, JITCodeLibrary
from numba.core.compiler import Compiler


class _Part(JITCodeLibrary):
    """A kernel that others call, not yet optimised."""

    def __init__(self, codegen: Any, name: str) -> None:
        super().__init__(codegen, name)
        #: Name and value of the global variable through which numba finds the kernel's environment.
        self.environments: dict[str, Any] = {}

    @property
    def codegen(self) -> Any:
        return _CodegenOfPart(self)

    def finalize(self) -> None:
        for library in self._linking_libraries:
            self._reload_init.update(library._reload_init)
        for function in self._final_module.functions:
            if not function.is_declaration and function.linkage == llvm.Linkage.external:
                function.linkage = "linkonce_odr"
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        self._ensure_finalized()
        return 0

    def _get_module_for_linking(self) -> Any:
        """The kernel and all that it calls, for a function that is no kernel."""
        self._ensure_finalized()
        if self._shared_module is None:
            module = self._final_module.clone()
            for library in _callees(self):
                module.link_in(_own_module(library), preserve=True)
            self._shared_module = module
        return self._shared_module


class _CodegenOfPart:
    """Numba's code generator, except that a part's environment is set in the wholes it becomes part of."""

    def __init__(self, part: _Part) -> None:
        self._part = part

    def set_env(self, name: str, environment: Any) -> None:
        self._part.environments[name] = environment

    def __getattr__(self, name: str) -> Any:
        return getattr(self._part._codegen, name)


class _Whole(JITCodeLibrary):
    """A kernel with all that it calls."""

    def finalize(self) -> None:
        callees = list(_callees(self))
        kernels = set[str]()
        for library in callees:
            self._reload_init.update(library._reload_init)
            module = _own_module(library)
            if isinstance(library, _Part):
                kernels.update(function.name for function in module.functions if not function.is_declaration)
            self._final_module.link_in(module, preserve=True)
        self._linking_libraries = []
        self._make_private(kernels)
        super().finalize()
        for library in callees:
            if isinstance(library, _Part):
                for name, environment in library.environments.items():
                    if self._codegen._engine.is_symbol_defined(name):
                        self._codegen.set_env(name, environment)

    def _make_private(self, names: set[str]) -> None:
        """Let LLVM know that nobody else calls these functions: simulations then take a fifth less time.

        It inlines those with a single caller, and drops arguments. Recursive functions are called by their address.
        """
        recursive = {variable.name.partition("$")[2] for variable in self._final_module.global_variables}
        for function in self._final_module.functions:
            if function.name in names and function.name not in recursive and not function.is_declaration:
                function.linkage = "internal"


def _callees(library: CPUCodeLibrary) -> Iterator[CPUCodeLibrary]:
    """Libraries of all that a kernel calls, directly or indirectly, each once; others bring their own callees."""
    seen = {library}
    waiting = list(reversed(library._linking_libraries))
    while waiting:
        callee = waiting.pop()
        if callee not in seen:
            seen.add(callee)
            yield callee
            if isinstance(callee, _Part):
                waiting += reversed(callee._linking_libraries)


def _own_module(library: CPUCodeLibrary) -> Any:
    if isinstance(library, _Part):
        library._ensure_finalized()
        return library._final_module
    return library._get_module_for_linking()


class _KernelCompiler(Compiler):
    """Numba's compiler with another kind of library."""

    library_class: type[JITCodeLibrary]

    def compile_extra(self, func: Any) -> Any:
        """Compile ``func``."""
        self.state.library = self.library_class(self.state.targetctx.codegen(), func.__qualname__)
        self.state.library.enable_object_caching()
        return super().compile_extra(func)


class PartCompiler(_KernelCompiler):
    """Compiles kernels that other kernels call."""

    library_class = _Part


class WholeCompiler(_KernelCompiler):
    """Compiles kernels that Python or the event loop calls."""

    library_class = _Whole
