"""Build a wheel with compiled kernels, for this version of Python and any processor of a kind (``base/prebuilt.py``).

The kernels are compiled into an empty folder with numba told to use no more than the kind's features. A wheel for
aarch64 is built in the same way on such a machine.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parents[1]
PREPARE = (
    "from hisearch.kernels.engine.engine_calls import ENGINES; from hisearch.kernels.fleet.compilation import prepare; "
    "prepare(ENGINES)"
)
#: Compile the small kernels that Python calls: those of traces, step costs and results.
RUNS = (
    ["simulate", "studies/deployments/qwen3-32b-h100-tp2.yaml", "--trace", "chat-multiturn", "--quiet"],
    ["trace", "stats", "traces/chat-multiturn.yaml"],
)


def compile_kernels(folder: Path) -> None:
    """Compile all engines, the event loop and small kernels into ``folder``."""
    from hisearch.base import prebuilt

    target = prebuilt.target()
    if target is None:
        raise SystemExit(f"no wheel with kernels is made for {sys.platform} on {platform.machine()}")
    with tempfile.TemporaryDirectory() as cache:
        chosen = {"NUMBA_CPU_NAME": target.cpu, "NUMBA_CPU_FEATURES": target.features, "HISEARCH_CACHE_DIR": cache}
        environment = os.environ | chosen
        environment.pop("HISEARCH_CHECK_INDICES", None)
        subprocess.run([sys.executable, "-c", PREPARE], check=True, cwd=ROOT, env=environment)
        for arguments in RUNS:
            command = [sys.executable, "-m", "hisearch", *arguments]
            subprocess.run(command, check=True, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)
        shutil.copytree(Path(cache) / "kernels", folder, ignore=shutil.ignore_patterns("sources.json"))
    made_with = {"Python": platform.python_version()} | {name: version(name) for name in ("numba", "llvmlite", "numpy")}
    facts = {"cpu": target.cpu, "features": target.features, "with": made_with}
    (folder / "target.json").write_text(json.dumps(facts, indent=1), encoding="utf-8")


def build(out: Path, with_kernels: bool) -> None:
    """Write the wheel into ``out``."""
    with tempfile.TemporaryDirectory() as scratch:
        environment = {name: value for name, value in os.environ.items() if name != "HISEARCH_PREBUILT"}
        if with_kernels:
            environment["HISEARCH_PREBUILT"] = str(Path(scratch) / "kernels")
            compile_kernels(Path(scratch) / "kernels")
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(out), str(ROOT)]
        subprocess.run(command, check=True, env=environment)


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    parser.add_argument("--without-kernels", action="store_true", help="pure Python: kernels are compiled when used")
    given = parser.parse_args()
    build(given.out, not given.without_kernels)
    return 0


if __name__ == "__main__":
    sys.exit(main())
