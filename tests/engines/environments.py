"""Environments with the modelled engines and the router: one table of names, versions, packages and Pythons."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]

#: PyTorch without CUDA: 0.2 GB to download, where the default index's takes 3 GB of NVIDIA's libraries along.
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
TORCH = "torch==2.13.0"
#: What vLLM's scheduler imports, without its kernels, and structured output, which its modules import by the way.
_VLLM = (
    "numpy", "transformers<5.24", "pydantic", "msgspec", "cloudpickle", "regex", "psutil", "pyyaml",
    "cachetools", "blake3", "py-cpuinfo", "requests", "tqdm", "pillow", "pyzmq", "filelock", "prometheus_client",
    "pybase64", "cbor2", "einops", "packaging", "partial-json-parser", "gguf", "aiohttp", "openai", "protobuf",
    "uvloop", "setproctitle", "fastapi", "lark", "orjson", "ijson", "jsonschema", "diskcache", "python-json-logger",
)  # fmt: skip
#: What keeps LMCache's order; hisearch.record puts stand-ins in the place of the rest that it imports.
_LMCACHE = ("sortedcontainers",)
#: What SGLang's scheduler imports; hisearch.record puts stand-ins in the place of kernels and of what runs a model.
_SGLANG = ("numpy", "pydantic", "msgspec", "orjson", "packaging", "psutil", "pyyaml", "pyzmq", "requests", "tqdm")


class NoEngineError(Exception):
    """An environment that cannot be made; the text says why, and what to do."""


@dataclass(frozen=True)
class Engine:
    """An engine of one version.

    Attributes:
        name: as ``python -m hisearch.record`` calls it.
        packages: installed with what they need, beside PyTorch. alone: installed without, the engine itself among them.
        pythons: versions of Python that the engine has wheels for, the first and the last.
        needs_torch: whether it imports PyTorch.
    """

    name: str
    version: str
    packages: tuple[str, ...]
    alone: tuple[str, ...]
    pythons: tuple[tuple[int, int], tuple[int, int]]
    needs_torch: bool = True

    @property
    def title(self) -> str:
        """``vllm-0.33.0``."""
        return f"{self.name}-{self.version}"

    @property
    def variable(self) -> str:
        """Of the environment: names a Python that has the engine."""
        return f"HISEARCH_{self.name.upper()}_PYTHON_{self.version.replace('.', '_')}"

    def is_there(self) -> bool:
        """Whether ``python`` has nothing to make."""
        return bool(os.environ.get(self.variable)) or (ROOT / ".engines" / self.title / ".installed").exists()

    def python(self) -> Path:
        """A Python that has the engine: the one that ``variable`` names, or of ``.engines``, made where absent.

        Raises:
            NoEngineError: there is none, and none can be made.
        """
        named = os.environ.get(self.variable)
        if named is None:
            return self.installed(ROOT / ".engines")
        if not Path(named).is_file():
            raise NoEngineError(f"{self.variable} is {named}, which is no file: name a Python that has {self.title}")
        return Path(named)

    def installed(self, parent: Path) -> Path:
        """The Python of the environment below ``parent``, which is made from nothing where it is not complete.

        Raises:
            NoEngineError: no Python of the engine's versions, or a package cannot be installed.
        """
        folder = parent / self.title
        python, stamp = folder / "bin" / "python", folder / ".installed"
        if stamp.exists():
            return python
        base, began = self._base_python(), time.monotonic()
        print(f"{self.title}: making an environment in {folder}", file=sys.stderr, flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        _run(self.title, [base, "-m", "venv", str(folder)])
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        torch = [TORCH] if self.needs_torch else []
        if (
            torch
            and subprocess.run([*pip, TORCH, "--index-url", CPU_INDEX], check=False, capture_output=True).returncode
        ):
            print(f"{self.title}: {CPU_INDEX} gives no {TORCH}; taking what pip finds", file=sys.stderr, flush=True)
            _run(self.title, [*pip, TORCH])
        _run(self.title, [*pip, *torch, *self.packages])
        if self.alone:
            _run(self.title, [*pip, "--no-deps", *self.alone])
        stamp.touch()
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
        print(f"{self.title}: {time.monotonic() - began:.0f} s, {size / 1e9:.1f} GB", file=sys.stderr, flush=True)
        return python

    def _base_python(self) -> str:
        """The running Python, or the newest other one on the path that the engine has wheels for."""
        first, last = self.pythons
        if first <= sys.version_info[:2] <= last:
            return sys.executable
        for minor in range(last[1], first[1] - 1, -1):
            python = shutil.which(f"python3.{minor}")
            if python is not None and _runs(python):
                return python
        wanted = f"{first[0]}.{first[1]} to {last[0]}.{last[1]}"
        raise NoEngineError(
            f"{self.title} has wheels for Python {wanted}; this is {sys.version_info[0]}.{sys.version_info[1]}, and "
            f"none of these is on the path: install one, or set {self.variable} to a Python that has the engine"
        )


def _runs(python: str) -> bool:
    return subprocess.run([python, "--version"], check=False, capture_output=True).returncode == 0


def _run(title: str, command: Sequence[str]) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        said = "\n".join([line for line in done.stderr.splitlines() if not line.startswith("WARNING")][-5:])
        raise NoEngineError(f"{title}: {' '.join(command)} failed:\n{said}")


_ROWS = (
    Engine(
        "vllm", "0.19.1", (*_VLLM, "openai-harmony>=0.0.3"),
        ("vllm==0.19.1", "llguidance<1.4", "xgrammar<0.2", "apache-tvm-ffi", "outlines_core==0.2.11", "lmcache==0.4.4",
         *_LMCACHE),
        ((3, 10), (3, 13)),
    ),
    Engine(
        "vllm", "0.33.0", (*_VLLM, "oss-harmony>=0.0.11"),
        ("vllm==0.33.0", "llguidance<1.8", "xgrammar==0.2.8", "apache-tvm-ffi==0.1.11", "outlines_core==0.2.14",
         "lmcache==0.5.6", *_LMCACHE),
        ((3, 11), (3, 14)),
    ),
    Engine("sglang", "0.5.9", _SGLANG, ("sglang==0.5.9",), ((3, 10), (3, 13))),
    Engine("sglang", "0.5.23", _SGLANG, ("sglang==0.5.23",), ((3, 11), (3, 13))),
)  # fmt: skip
ENGINES = {engine.title: engine for engine in _ROWS}
#: sglang-router, before workers that only answer, and Dynamo's router, for workers that are never called.
_ROUTERS = (
    Engine("router", "0.3.2", ("sglang-router==0.3.2",), (), ((3, 10), (3, 13)), needs_torch=False),
    Engine("dynamo", "1.1.1", ("ai-dynamo-runtime==1.1.1",), (), ((3, 10), (3, 13)), needs_torch=False),
)
ROUTERS = {router.title: router for router in _ROUTERS}


def record(engine: Engine, out: Path, *arguments: str) -> None:
    """Run ``python -m hisearch.record`` with an engine's Python; cases that fail are reported and left out.

    Raises:
        NoEngineError: no environment has the engine, or it could not record.
    """
    command = [str(engine.python()), "-m", "hisearch.record", engine.name, *arguments, "--out", str(out)]
    out.mkdir(parents=True, exist_ok=True)
    status = subprocess.run(command, cwd=out, env=os.environ | {"PYTHONPATH": str(ROOT)}, check=False).returncode
    if status == 2:
        raise NoEngineError(f"{engine.title}: could not record: {' '.join(command)}")
