"""SGLang's server: ``python -m refit.front_ends.sglang FOLDER PORT``, until it is killed."""

# mypy: disable-error-code="import-not-found, import-untyped"

from __future__ import annotations

import pickle
import queue
import sys
import threading
import time
import types
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

from refit.front_ends.clock import Clock, Job

#: Parts of SGLang that only serve to run a model, or need a GPU to be imported.
UNUSED = (
    "models", "model_loader", "distributed", "layers", "eplb", "connector", "compilation", "multiplex", "batch_overlap",
    "model_executor", "managers.scheduler", "disaggregation",
)  # fmt: skip


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


def run_by_clock(_arguments: Any, ports: Any, *rest: Any) -> None:
    """In place of SGLang's scheduler."""
    import inspect

    import zmq
    from sglang.srt.managers.io_struct import AbortReq, BatchTokenIDOutput, TokenizedGenerateReqInput
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
    fields, clock = list(inspect.signature(BatchTokenIDOutput).parameters), Clock()
    prompts: dict[str, list[int]] = {}
    while True:
        while not inbox.empty():
            at_s, message = inbox.get()
            asked = pickle.loads(message)  # From SGLang's own server.
            if isinstance(asked, TokenizedGenerateReqInput):
                clock.add(Job(asked.rid, asked.sampling_params.max_new_tokens, at_s))
                prompts[asked.rid] = asked.input_ids
            elif isinstance(asked, AbortReq):
                clock.drop({asked.rid})
        jobs = clock.step()
        if not jobs:
            continue
        count, tokens = len(jobs), [clock.token() for _ in jobs]
        values: dict[str, Any] = dict.fromkeys(fields)
        values |= {name: [0.0] * count for name in fields if name.endswith(("_time", "_delay", "_latency", "_ts"))}
        values |= {name: [] for name in fields if name.startswith("spec_")}
        values |= {
            "rids": [job.name for job in jobs],
            "http_worker_ipcs": [None] * count,
            "finished_reasons": [{"type": "length", "length": job.made} if job.ended else None for job in jobs],
            "decoded_texts": [""] * count,
            "decode_ids": [
                [*(prompts[job.name][-5:] if job.made == 1 else []), token]
                for job, token in zip(jobs, tokens, strict=True)
            ],
            "output_ids": [[token] for token in tokens],
            "read_offsets": [5] * count,
            "skip_special_tokens": [True] * count,
            "spaces_between_special_tokens": [True] * count,
            "no_stop_trim": [False] * count,
            "prompt_tokens": [len(prompts[job.name]) for job in jobs],
            "completion_tokens": [job.made for job in jobs],
            "cached_tokens": [0] * count,
            "retraction_counts": [0] * count,
            "cached_tokens_details": [None] * count,
        }
        outbound.send_pyobj(BatchTokenIDOutput(**values))


def main(folder: str, port: str) -> None:
    """Serve the model in ``folder``."""
    from sglang.srt.entrypoints.http_server import launch_server
    from sglang.srt.server_args import ServerArgs

    arguments = ServerArgs(
        model_path=folder, served_model_name="model", device="cpu", attention_backend="torch_native", port=int(port),
        skip_server_warmup=True, log_level="error", disable_radix_cache=True,
    )  # fmt: skip
    launch_server(arguments, run_scheduler_process_func=run_by_clock)


if __name__ in ("__main__", "__mp_main__"):  # The latter: a process of the server, which imports this module first.
    install_stand_ins()
if __name__ == "__main__":
    main(*sys.argv[1:])
