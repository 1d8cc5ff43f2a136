"""A real vLLM server on this machine: started by an exported ``run.sh``, driven by vLLM's own benchmark, stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.engines.environments import ROOT

STEP_LOG = ROOT / "hisearch" / "observe" / "vllm_step_log.py"
START_S = 300.0


def make_model(python: Path, folder: Path) -> Path:
    """A tiny Llama without weights, with a tokenizer of its own."""
    script, texts = Path(__file__).with_name("make_model.py"), sorted((ROOT / "docs").glob("*.md"))
    subprocess.run([str(python), str(script), str(folder), *map(str, texts)], check=True, capture_output=True)
    return folder


def _environment(python: Path, **more: str) -> dict[str, str]:
    return os.environ | {
        "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "2",
        # One thread: two would wait for each other at each kernel's end wherever a core is busy otherwise.
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        **more,
    }


@contextmanager
def served(run_sh: Path, model: Path, python: Path, logs: Path, port: int, *flags: str) -> Iterator[str]:
    """The URL of a replica, started by ``run.sh replica 0`` with further flags and the step log; stopped at the end."""
    logs.mkdir(parents=True, exist_ok=True)
    variables = _environment(
        python, MODEL=str(model), PYTHONPATH=str(STEP_LOG.parent), HISEARCH_STEP_LOG=str(logs), LISTEN="127.0.0.1"
    )
    more = [*flags, "--port", str(port), "--scheduler-cls", f"{STEP_LOG.stem}.StepLogScheduler"]
    command, url = ["bash", str(run_sh), "replica", "0", *more], f"http://127.0.0.1:{port}"
    with (logs / "server.log").open("w") as output:
        process = subprocess.Popen(command, env=variables, stdout=output, stderr=output, start_new_session=True)
        try:
            _wait_until_it_answers(process, url, logs / "server.log")
            yield url
        finally:
            # The server's processes are a group of their own, which the script began.
            os.killpg(process.pid, signal.SIGINT)
            try:
                process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)


def _wait_until_it_answers(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    end_s = time.monotonic() + START_S
    while time.monotonic() < end_s:
        if process.poll() is not None:
            raise AssertionError(f"the exported command ended with {process.returncode}:\n{log.read_text()[-3000:]}")
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=2):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(1)
    raise AssertionError(f"no answer within {START_S:g} s:\n{log.read_text()[-3000:]}")


def drive(python: Path, url: str, model: Path, out: Path, *, requests: int, rate_rps: float, seed: int) -> Any:
    """What ``vllm bench serve`` measures."""
    command = [
        str(python.with_name("vllm")), "bench", "serve", "--backend", "openai", "--endpoint", "/v1/completions",
        "--base-url", url, "--model", str(model), "--dataset-name", "random", "--random-input-len", "128",
        "--random-output-len", "48", "--random-range-ratio", "0.5", "--num-prompts", str(requests), "--request-rate",
        str(rate_rps), "--seed", str(seed), "--ignore-eos", "--save-result", "--result-filename", str(out),
    ]  # fmt: skip
    done = subprocess.run(command, env=_environment(python), capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(out.read_text())
