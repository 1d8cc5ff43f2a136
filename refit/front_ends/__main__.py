"""The command line: see the package."""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import refit.front_ends
from refit.front_ends.clients import Answer, Asker
from refit.front_ends.clock import LOG, STEP_S
from refit.front_ends.connections import connections

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 129280,
    "max_position_embeddings": 131072, "rms_norm_eps": 1e-6, "torch_dtype": "bfloat16", "hidden_act": "silu",
    "bos_token_id": 0, "eos_token_id": 1,
}  # fmt: skip
PORT, SECONDS, OUTPUTS, BURST = 30555, 20.0, 4, 64
QUIET: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "start_new_session": True}


class Server:
    """An engine's server before a clock, in ``folder``, and how to ask it."""

    def __init__(self, engine: str, folder: Path, step_s: float) -> None:
        self._log, self._tokenizer = folder / "scheduler.jsonl", folder / "tokenizer.json"
        command = [sys.executable, "-m", f"refit.front_ends.{engine}", str(folder), str(PORT)]
        environment = {**os.environ, STEP_S: str(step_s), LOG: str(self._log)}
        self._process = subprocess.Popen(command, env=environment, **QUIET)
        self.asker = Asker(self._tokenizer, PORT)

    def wait(self) -> None:
        """Until it answers."""
        for _ in range(240):
            if self._process.poll() is not None:
                raise SystemExit("the server has ended")
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{PORT}/v1/models", timeout=1).close()
            except OSError:
                time.sleep(0.5)
            else:
                return
        raise SystemExit("the server does not answer")

    def stop(self) -> None:
        """Kill it and its processes."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    @contextmanager
    def streaming(self, count: int) -> Iterator[None]:
        """With ``count`` answers under way."""
        command = [sys.executable, "-m", "refit.front_ends.clients", str(self._tokenizer), str(PORT), str(count)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as drain:
            try:
                assert drain.stdout is not None
                drain.stdout.readline()
                yield
            finally:
                drain.kill()

    def processor_s(self) -> float:
        """Processor time of the process in front so far."""
        import psutil  # type: ignore[import-untyped]

        return float(sum(psutil.Process(self._process.pid).cpu_times()[:2]))

    def seen(self) -> list[list[Any]]:
        """Of each request that has ended: its name, when the scheduler had it, its first token and its last."""
        return [json.loads(line) for line in self._log.read_text(encoding="utf-8").splitlines()]


def streams(server: Server, in_flight: int, step_s: float, inputs: int) -> str:
    """A line of figures on requests that come one by one, beside others under way."""
    with server.streaming(in_flight - 1):
        time.sleep(1.0)
        begins_s, busy_s, answers, draw = time.time(), server.processor_s(), [], random.Random(0)
        while time.time() < begins_s + SECONDS:
            answers.append(server.asker.ask(inputs, OUTPUTS))
            time.sleep(draw.uniform(0, 2 * step_s))
        busy = (server.processor_s() - busy_s) / (time.time() - begins_s)
    to_scheduler, first, last = _waits(answers, server.seen())
    return (
        f"{in_flight} in flight, {len(answers)} asked: scheduler {to_scheduler:.1f}, first token {first:.1f}, last "
        f"{last:.1f} ms; the process in front is busy {busy:.0%}, {1e6 * busy * step_s / in_flight:.0f} us a token"
    )


def _waits(answers: list[Answer], seen: list[list[Any]]) -> list[float]:
    """Means in ms: sent until the scheduler has it; made until the client has the first token, and the last."""
    pairs: list[list[tuple[float, float]]] = [[], [], []]
    for answer in answers:
        for name, at_s, first_s, last_s in seen:
            if name.startswith(answer.name):
                for row, pair in zip(
                    pairs, [(answer.sent_s, at_s), (first_s, answer.first_s), (last_s, answer.last_s)], strict=True
                ):
                    row.append(pair)
    return [1e3 * sum(late - early for early, late in row) / max(len(row), 1) for row in pairs]


def burst(server: Server, inputs: int) -> str:
    """A line of figures on requests that come at once."""
    before = len(server.seen())
    sent_s = server.asker.burst(BURST, inputs)
    time.sleep(0.5)
    last_s = max(at_s for _, at_s, *_ in server.seen()[before:])
    return f"{BURST} at once, prompts of {inputs} tokens: {1e3 * (last_s - sent_s) / BURST:.2f} ms each"


def main() -> None:
    """Measure, and print a line for each number in flight."""
    parser = argparse.ArgumentParser(
        description=refit.front_ends.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("engine", choices=("vllm", "sglang"))
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("--in-flight", type=int, nargs="+", default=[1, 64, 128])
    parser.add_argument("--step-ms", type=float, default=12.0)
    parser.add_argument("--input-tokens", type=int, default=64)
    parser.add_argument("--clients", action="store_true", help="time closed loops, with connections new and kept")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder, step_s = Path(name), 1e-3 * given.step_ms
        (folder / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
        for file in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(given.tokenizer / file, folder)
        for in_flight in given.in_flight:
            server = Server(given.engine, folder, step_s)
            try:
                server.wait()
                server.asker.ask(given.input_tokens, OUTPUTS)
                if given.clients:
                    print(connections(server.asker, PORT, in_flight, given.input_tokens, 2 * OUTPUTS), flush=True)
                    continue
                if in_flight == 1:
                    print(burst(server, 16), burst(server, 1024), sep="\n", flush=True)
                print(streams(server, in_flight, step_s, given.input_tokens), flush=True)
            finally:
                server.stop()


if __name__ == "__main__":
    main()
