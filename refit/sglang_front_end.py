"""Times SGLang's front end, without a GPU: its own server and detokenizer, before a scheduler that goes by the clock.

    python -m refit.sglang_front_end TOKENIZER --in-flight 1 16 64 --step-ms 20

TOKENIZER is a folder with ``tokenizer.json`` and ``tokenizer_config.json``. SGLang 0.5.9 must be installed, with what
its server needs. The client sends each request by a connection of its own, and the next one when one has ended. For
each number of requests in flight it prints means over those after the first burst: from sending until the scheduler has
a request; from the step that made a token until the client has it, of first and last tokens; processor time of a token.
"""

# mypy: disable-error-code="import-not-found, import-untyped"

from __future__ import annotations

import argparse
import asyncio
import json
import os
import pickle
import queue
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import types
import urllib.request
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

#: Parts of SGLang that only serve to run a model, or need a GPU to be imported.
UNUSED = (
    "models", "model_loader", "distributed", "layers", "eplb", "connector", "compilation", "multiplex", "batch_overlap",
    "model_executor", "managers.scheduler", "disaggregation",
)  # fmt: skip
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 129280,
    "max_position_embeddings": 131072, "rms_norm_eps": 1e-6, "torch_dtype": "bfloat16", "hidden_act": "silu",
    "bos_token_id": 0, "eos_token_id": 1,
}  # fmt: skip
#: Tokens that prompts and answers are drawn from.
TOKENS = range(1000, 100_000)
PROMPT_S, PORT = 0.01, 30123
SERVE, CLIENT = "serve", "client"


def install_stand_ins() -> None:
    """Before the first import of SGLang."""
    import torch

    from hisearch.record.standins import Finder, MissingPackages

    class Unused(Finder):
        def _replaces(self, fullname: str) -> bool:
            names = (*(f"sglang.srt.{name}" for name in UNUSED), "sglang.multimodal_gen")
            return any(fullname == name or fullname.startswith(f"{name}.") for name in names)

    torch.compile = lambda *args, **_: args[0] if args else (lambda function: function)
    package = types.ModuleType("sglang")
    package.__path__ = [str(Path(entry) / "sglang") for entry in sys.path if (Path(entry) / "sglang" / "srt").is_dir()]
    package.__spec__ = ModuleSpec("sglang", None, is_package=True)
    package.__version__ = "0.5.9"  # type: ignore[attr-defined]
    sys.modules["sglang"] = package
    sys.meta_path.insert(0, Unused())
    sys.meta_path.append(MissingPackages("sglang"))


def scheduler(_arguments: Any, ports: Any, *rest: Any) -> None:
    """In place of SGLang's scheduler: prompts first, at most 16 at once; then a token for every request each step.

    Writes a line of JSON for each request: its name, when it came, when it had its first token, and its last.
    """
    import inspect

    import zmq
    from sglang.srt.managers.io_struct import BatchTokenIDOutput, TokenizedGenerateReqInput
    from sglang.srt.utils import get_zmq_socket

    context = zmq.Context(2)
    inbound = get_zmq_socket(context, zmq.PULL, ports.scheduler_input_ipc_name, False)
    outbound = get_zmq_socket(context, zmq.PUSH, ports.detokenizer_ipc_name, False)
    rest[-1].send({"status": "ready", "max_total_num_tokens": 10_000_000, "max_req_input_len": 130_000})
    inbox: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()

    def listen() -> None:
        while True:
            message = inbound.recv()
            inbox.put((time.time(), message))

    threading.Thread(target=listen, daemon=True).start()
    fields, draw = list(inspect.signature(BatchTokenIDOutput).parameters), random.Random(1)
    step_s = float(os.environ["STEP_S"])
    with Path(os.environ["SCHEDULER_LOG"]).open("w", encoding="utf-8") as log:

        def send(requests: list[dict[str, Any]]) -> None:
            count, now = len(requests), time.time()
            tokens = [draw.choice(TOKENS) for _ in requests]
            for request in requests:
                request["made"] += 1
                request["first_s"] = request["first_s"] or now
                if request["made"] == request["tokens"]:
                    log.write(json.dumps([request["name"], request["at_s"], request["first_s"], now]) + "\n")
            log.flush()
            values: dict[str, Any] = dict.fromkeys(fields)
            values |= {name: [0.0] * count for name in fields if name.endswith(("_time", "_delay", "_latency", "_ts"))}
            values |= {name: [] for name in fields if name.startswith("spec_")}
            values |= {
                "rids": [request["name"] for request in requests],
                "http_worker_ipcs": [None] * count,
                "finished_reasons": [
                    {"type": "length", "length": request["made"]} if request["made"] == request["tokens"] else None
                    for request in requests
                ],
                "decoded_texts": [""] * count,
                "decode_ids": [
                    [*(request["prompt"][-5:] if request["made"] == 1 else []), token]
                    for request, token in zip(requests, tokens, strict=True)
                ],
                "output_ids": [[token] for token in tokens],
                "read_offsets": [5] * count,
                "skip_special_tokens": [True] * count,
                "spaces_between_special_tokens": [True] * count,
                "no_stop_trim": [False] * count,
                "prompt_tokens": [len(request["prompt"]) for request in requests],
                "completion_tokens": [request["made"] for request in requests],
                "cached_tokens": [0] * count,
                "retraction_counts": [0] * count,
                "cached_tokens_details": [None] * count,
            }
            outbound.send_pyobj(BatchTokenIDOutput(**values))

        waiting: list[dict[str, Any]] = []
        running: list[dict[str, Any]] = []
        ends_s = time.time()
        while True:
            while not inbox.empty():
                at_s, message = inbox.get()
                asked = pickle.loads(message)  # From SGLang's own server.
                if isinstance(asked, TokenizedGenerateReqInput):
                    request = {"name": asked.rid, "prompt": asked.input_ids, "made": 0, "first_s": 0.0, "at_s": at_s}
                    waiting.append({**request, "tokens": asked.sampling_params.max_new_tokens})
            batch, waiting = waiting[:16], waiting[16:]
            takes_s = PROMPT_S * len(batch) if batch else step_s
            running += batch
            ends_s = max(ends_s, time.time() - 2e-3) + takes_s
            while (left_s := ends_s - time.time()) > 0:
                time.sleep(min(left_s, 1e-3))
            send(batch or running)
            running = [request for request in running if request["made"] < request["tokens"]]


def serve(folder: str) -> None:
    """SGLang's server, until it is killed."""
    install_stand_ins()
    from sglang.srt.entrypoints.http_server import launch_server
    from sglang.srt.server_args import ServerArgs

    arguments = ServerArgs(
        model_path=folder, device="cpu", attention_backend="torch_native", port=PORT, skip_server_warmup=True,
        log_level="error", disable_radix_cache=True,
    )  # fmt: skip
    launch_server(arguments, run_scheduler_process_func=scheduler)


async def _client(folder: str, in_flight: int, requests: int, inputs: int, outputs: int) -> list[list[Any]]:
    import aiohttp
    from tokenizers import Tokenizer

    tokenizer, draw, rows = Tokenizer.from_file(f"{folder}/tokenizer.json"), random.Random(0), []
    prompts = [tokenizer.decode([draw.choice(TOKENS) for _ in range(inputs)]) for _ in range(requests)]
    free = asyncio.Semaphore(in_flight)

    async def ask(prompt: str, tokens: int) -> None:
        body = {"model": folder, "prompt": prompt, "max_tokens": tokens, "stream": True, "ignore_eos": True}
        async with free, aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=3600)) as session:
            sent_s, name, first_s, last_s, text = time.time(), "", 0.0, 0.0, ""
            async with session.post(f"http://127.0.0.1:{PORT}/v1/completions", json=body) as answer:
                async for line in answer.content:
                    chunk = line.strip().decode().removeprefix("data: ")
                    if chunk in ("", "[DONE]"):
                        continue
                    part = json.loads(chunk)
                    last_s, name, text = time.time(), part["id"], text + (part["choices"][0].get("text") or "")
                    first_s = first_s or last_s
            rows.append([name, sent_s, first_s, last_s])

    lengths = [draw.randint(int(0.8 * outputs), outputs) for _ in prompts]
    await asyncio.gather(*(ask(prompt, tokens) for prompt, tokens in zip(prompts, lengths, strict=True)))
    return rows


def client(folder: str, *numbers: str) -> None:
    """Rows of (name, sent, first token, last token) as JSON."""
    print(json.dumps(asyncio.run(_client(folder, *map(int, numbers)))))


def _processor_s(pid: int) -> dict[str, float]:
    import psutil

    server = psutil.Process(pid)
    processes = [server, *server.children(recursive=True)]
    return {f"{process.name()} {process.pid}": sum(process.cpu_times()[:2]) for process in processes}


def measure(folder: str, in_flight: int, step_s: float, inputs: int, outputs: int) -> str:
    """A line of figures."""
    log = Path(folder) / "scheduler.jsonl"
    command = [sys.executable, "-m", "refit.sglang_front_end"]
    environment = {**os.environ, "STEP_S": str(step_s), "SCHEDULER_LOG": str(log)}
    with subprocess.Popen([*command, SERVE, folder], env=environment, start_new_session=True) as server:
        try:
            _wait_for_server(server)
            _ask(command, folder, 1, 2, 16, 4)
            before = _processor_s(server.pid)
            rows = sorted(_ask(command, folder, in_flight, 3 * in_flight + 16, inputs, outputs), key=lambda row: row[1])
            after = _processor_s(server.pid)
        finally:
            os.killpg(server.pid, signal.SIGKILL)
    seen = {row[0]: row[1:] for row in map(json.loads, log.read_text(encoding="utf-8").splitlines())}
    times = [(*row[1:], *seen[row[0]]) for row in rows[in_flight:]]
    means = [1e3 * sum(late - early for early, late in pairs) / len(times) for pairs in _delays(times)]
    tokens = 0.9 * outputs * len(rows)
    work = {name: f"{1e6 * (after[name] - before[name]) / tokens:.0f} us" for name in before if name in after}
    to_scheduler, first, last = means
    waits = f"scheduler {to_scheduler:.1f}, first token {first:.1f}, last token {last:.1f} ms"
    return f"{in_flight}: {waits}; a token takes {work}"


def _delays(times: list[tuple[float, ...]]) -> tuple[list[tuple[float, float]], ...]:
    """Pairs of (sent, at the scheduler), (made, had) of first, and of last tokens."""
    return tuple([(row[a], row[b]) for row in times] for a, b in ((0, 3), (4, 1), (5, 2)))


def _wait_for_server(server: subprocess.Popen[bytes]) -> None:
    for _ in range(240):
        if server.poll() is not None:
            raise SystemExit("SGLang's server has ended")
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{PORT}/v1/models", timeout=1).close()
        except OSError:
            time.sleep(0.5)
        else:
            return
    raise SystemExit("SGLang's server does not answer")


def _ask(command: list[str], folder: str, *numbers: int) -> list[list[Any]]:
    answer = subprocess.run([*command, CLIENT, folder, *map(str, numbers)], check=True, stdout=subprocess.PIPE)
    rows: list[list[Any]] = json.loads(answer.stdout)
    return rows


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("--in-flight", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--step-ms", type=float, default=20.0)
    parser.add_argument("--input-tokens", type=int, default=1024)
    parser.add_argument("--output-tokens", type=int, default=1024)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(given.tokenizer / name, folder)
        for in_flight in given.in_flight:
            print(measure(folder, in_flight, 1e-3 * given.step_ms, given.input_tokens, given.output_tokens))


if __name__ == "__mp_main__":  # A process of SGLang's server, which imports this module first.
    install_stand_ins()
if __name__ == "__main__":
    called = {SERVE: serve, CLIENT: client}.get(sys.argv[1] if len(sys.argv) > 1 else "")
    if called is None:
        main()
    else:
        called(*sys.argv[2:])
