"""Stand-ins for what a machine without GPU lacks: packages of kernels, and the parts of SGLang that run a model.

``install`` must come before the first import of ``sglang``.
"""

# mypy: allow-untyped-defs, no-warn-unused-ignores, disable-error-code="has-type,var-annotated,func-returns-value"

from __future__ import annotations

import importlib.machinery
import sys
import types
from collections.abc import Sequence
from pathlib import Path

from hisearch.record.standins import Finder, MissingPackages

#: Parts of SGLang that only serve to run a model, to draft, or to talk to other processes.
_UNUSED = (
    "configs", "layers", "models", "model_loader", "multimodal", "distributed", "eplb",
    "multiplex", "parser", "function_call", "connector", "entrypoints", "compilation", "batch_overlap", "tokenizer",
)  # fmt: skip


class _UnusedParts(Finder):
    """Asked first: parts of SGLang itself."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = tuple(f"sglang.{name}" for name in names)

    def _replaces(self, fullname: str) -> bool:
        return any(fullname == name or fullname.startswith(f"{name}.") for name in self._names)


def install(version: str, more_unused: Sequence[str] = ()) -> None:
    """Put the stand-ins in place.

    Args:
        version: of the installed SGLang.
        more_unused: further modules below ``sglang`` to replace.
    """
    import torch

    # Nothing is compiled: compilers would ask for a GPU's toolchain, and the few functions concerned are tiny.
    torch.compile = lambda *args, **_: args[0] if args else (lambda function: function)
    # The front module imports the client language; only its submodules are needed.
    package = types.ModuleType("sglang")
    roots = (Path(entry or ".") / "sglang" for entry in sys.path)
    package.__path__ = [str(root) for root in roots if (root / "srt").is_dir()]
    package.__version__ = version  # type: ignore[attr-defined]
    package.__spec__ = importlib.machinery.ModuleSpec("sglang", None, is_package=True)
    sys.modules["sglang"] = package
    sys.meta_path.insert(0, _UnusedParts(["kernels", *(f"srt.{name}" for name in _UNUSED), *more_unused]))
    sys.meta_path.append(MissingPackages("sglang"))
