"""A real vLLM server on this machine: started by an exported ``run.sh``, driven by vLLM's own benchmark, stopped.

The machine's cores are shared out as an operator of a server on CPUs does: the last one is the engine's alone; the API
server and the benchmark have the others. The engine is one process with one thread: of two processes, which vLLM takes
by default, each spins while the other works, on a core that the API server needs.
"""

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
from typing import Any, NamedTuple

from hisearch.observe.client import Client
from hisearch.observe.prometheus import parse_metrics
from tests.engines.environments import ROOT
from tests.serving.make_model import BF16

STEP_LOG = ROOT / "hisearch" / "observe" / "vllm_step_log.py"
START_S = 300.0
#: Flags of a server on CPUs without weights, behind those that are exported.
FLAGS = (
    "--load-format", "dummy", "--enforce-eager", "--distributed-executor-backend",
    "vllm.v1.executor.uniproc_executor.UniProcExecutor", *(() if BF16 else ("--dtype", "float32")),
)  # fmt: skip


class CoreTime(NamedTuple):
    """Seconds that a process ran on a core, and waited for one."""

    ran_s: float
    waited_s: float


class Server(NamedTuple):
    """A server that answers at ``url``, and the process of its engine."""

    url: str
    engine: int

    def core_time(self) -> CoreTime:
        """Of the engine until now (Linux, ``/proc/PID/schedstat``)."""
        ran, waited, _ = Path(f"/proc/{self.engine}/schedstat").read_text().split()
        return CoreTime(int(ran) / 1e9, int(waited) / 1e9)

    def first_tokens(self) -> tuple[float, float]:
        """By its own counters: seconds from arrivals to first tokens, of all requests until now, and their number."""
        metrics, name = parse_metrics(Client(self.url).get("/metrics").text), "vllm:time_to_first_token_seconds"
        return metrics.total(f"{name}_sum") or 0.0, metrics.total(f"{name}_count") or 0.0

    def forget(self) -> None:
        """Empty its prefix cache: a load's hits are then of its own prompts."""
        request = urllib.request.Request(f"{self.url}/reset_prefix_cache", method="POST")
        with urllib.request.urlopen(request, timeout=10):
            return


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
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        "VLLM_SERVER_DEV_MODE": "1",
        **more,
    }


@contextmanager
def served(run_sh: Path, model: Path, python: Path, logs: Path, port: int) -> Iterator[Server]:
    """A replica, started by ``run.sh replica 0`` with ``FLAGS`` and the step log; stopped at the end.

    Until then the caller, and all that it starts, keep off the engine's core.
    """
    logs.mkdir(parents=True, exist_ok=True)
    variables = _environment(
        python, MODEL=str(model), PYTHONPATH=str(STEP_LOG.parent), HISEARCH_STEP_LOG=str(logs), LISTEN="127.0.0.1"
    )
    more = [*FLAGS, "--port", str(port), "--scheduler-cls", f"{STEP_LOG.stem}.StepLogScheduler"]
    command, url = ["bash", str(run_sh), "replica", "0", *more], f"http://127.0.0.1:{port}"
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[:-1] or cores)
    with (logs / "server.log").open("w") as output:
        process = subprocess.Popen(command, env=variables, stdout=output, stderr=output, process_group=0)
        try:
            _wait_until_it_answers(process, url, logs / "server.log")
            engine = _engine_of(process.pid)
            for thread in Path(f"/proc/{engine}/task").iterdir():
                os.sched_setaffinity(int(thread.name), cores[-1:])
            yield Server(url, engine)
        finally:
            os.sched_setaffinity(0, cores)
            # The server's processes are a group of their own, which the script began.
            os.killpg(process.pid, signal.SIGINT)
            try:
                process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)


def _engine_of(group: int) -> int:
    """The engine's process among those of a group."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        pid = int(path.parent.name)
        try:
            if path.read_bytes().startswith(b"VLLM::EngineCore") and os.getpgid(pid) == group:
                return pid
        except OSError:
            continue
    raise AssertionError("the server has no process VLLM::EngineCore")


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
    """What ``vllm bench serve`` measures; ``rate_rps``: infinite for all at once."""
    command = [
        str(python.with_name("vllm")), "bench", "serve", "--backend", "openai", "--endpoint", "/v1/completions",
        "--base-url", url, "--model", str(model), "--dataset-name", "random", "--random-input-len", "128",
        "--random-output-len", "48", "--random-range-ratio", "0.5", "--num-prompts", str(requests), "--request-rate",
        str(rate_rps), "--seed", str(seed), "--ignore-eos", "--ready-check-timeout-sec", "0", "--save-result",
        "--result-filename", str(out),
    ]  # fmt: skip
    done = subprocess.run(command, env=_environment(python), capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(out.read_text())
