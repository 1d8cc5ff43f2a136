"""Environments with the engines that are modelled: one table of names, versions and packages."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]

#: What vLLM's scheduler imports, without its kernels, and structured output, which its modules import by the way.
_VLLM = (
    "torch==2.13.0", "numpy", "transformers<5.24", "pydantic", "msgspec", "cloudpickle", "regex", "psutil", "pyyaml",
    "cachetools", "blake3", "py-cpuinfo", "requests", "tqdm", "pillow", "pyzmq", "filelock", "prometheus_client",
    "pybase64", "cbor2", "einops", "packaging", "partial-json-parser", "gguf", "aiohttp", "openai", "protobuf",
    "uvloop", "setproctitle", "fastapi", "lark", "orjson", "ijson", "jsonschema", "diskcache", "python-json-logger",
)  # fmt: skip


@dataclass(frozen=True)
class Engine:
    """An engine of one version.

    Attributes:
        name: as ``python -m hisearch.record`` calls it.
        packages: installed with what they need. alone: installed without, the engine itself among them.
    """

    name: str
    version: str
    packages: tuple[str, ...]
    alone: tuple[str, ...]

    @property
    def title(self) -> str:
        """``vllm-0.33.0``."""
        return f"{self.name}-{self.version}"

    def python(self) -> Path:
        """A Python that has the engine: as HISEARCH_<ENGINE>_PYTHON_<VERSION> names it, or of ``.engines``."""
        named = os.environ.get(f"HISEARCH_{self.name.upper()}_PYTHON_{self.version.replace('.', '_')}")
        return Path(named) if named else self._installed()

    def _installed(self) -> Path:
        folder = ROOT / ".engines" / self.title
        python, stamp = folder / "bin" / "python", folder / ".installed"
        if not stamp.exists():
            print(f"{self.title}: installing into {folder}", file=sys.stderr, flush=True)
            subprocess.run([sys.executable, "-m", "venv", folder], check=True)
            pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            subprocess.run([*pip, *self.packages], check=True)
            subprocess.run([*pip, "--no-deps", *self.alone], check=True)
            stamp.touch()
        return python


ENGINES = {
    engine.title: engine
    for engine in (
        Engine(
            "vllm", "0.19.1", (*_VLLM, "openai-harmony>=0.0.3"),
            ("vllm==0.19.1", "llguidance<1.4", "xgrammar<0.2", "apache-tvm-ffi", "outlines_core==0.2.11"),
        ),
        Engine(
            "vllm", "0.33.0", (*_VLLM, "oss-harmony>=0.0.11"),
            ("vllm==0.33.0", "llguidance<1.8", "xgrammar==0.2.8", "apache-tvm-ffi==0.1.11", "outlines_core==0.2.14"),
        ),
    )
}  # fmt: skip


def record(engine: Engine, out: Path, *arguments: str) -> None:
    """Run ``python -m hisearch.record`` with an engine's Python; cases that fail are reported and left out."""
    command = [str(engine.python()), "-m", "hisearch.record", engine.name, *arguments, "--out", str(out)]
    out.mkdir(parents=True, exist_ok=True)
    status = subprocess.run(command, cwd=out, env=os.environ | {"PYTHONPATH": str(ROOT)}, check=False).returncode
    if status == 2:
        raise SystemExit(f"{engine.title}: could not record: {' '.join(command)}")
