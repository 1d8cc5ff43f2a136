"""vLLM's server: ``python -m refit.front_ends.vllm FOLDER PORT``, until it is killed."""

# mypy: disable-error-code="import-not-found, import-untyped, misc"
# ruff: noqa: D102  What vLLM calls.

from __future__ import annotations

import os
import queue
import sys
import time
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

from vllm.v1.engine import core
from vllm.v1.executor.abstract import Executor

from refit.front_ends.clock import Clock, Job

MODEL, KV_BYTES = "model", 1 << 28


class NoModel(Executor):
    """In place of the workers: nothing is loaded or run."""

    supported_tasks = ("generate",)

    def _init_executor(self) -> None: ...
    def initialize_from_config(self, _configs: Any) -> None: ...
    def compile_or_warm_up_model(self) -> None: ...
    def set_kv_cache_layout(self, _layout: str) -> None: ...
    def check_health(self) -> None: ...
    def shutdown(self) -> None: ...

    def determine_available_memory(self) -> list[int]:
        return [KV_BYTES]

    def get_supported_kv_cache_layouts(self) -> list[list[str]]:
        return [["NHD"]]

    def get_kv_cache_specs(self) -> list[dict[str, Any]]:
        import torch
        from vllm.v1.kv_cache_interface import FullAttentionSpec

        return [{"layer": FullAttentionSpec(block_size=16, num_kv_heads=1, head_size=16, dtype=torch.bfloat16)}]

    def collective_rpc(self, method: Any, *_: Any, **__: Any) -> list[Any]:
        return [self.supported_tasks if method == "get_supported_tasks" else None]


def run_by_clock(engine: Any) -> None:
    """In place of the engine's loop."""
    from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, EngineCoreRequestType, FinishReason

    clock = Clock()
    while True:
        while True:
            try:
                kind, asked = engine.input_queue.get_nowait()
            except queue.Empty:
                break
            if kind == EngineCoreRequestType.ADD:
                clock.add(Job(asked[0].request_id, asked[0].max_tokens, asked[0].arrived_s))
            elif kind == EngineCoreRequestType.ABORT:
                clock.drop(set(asked))
            else:
                engine._handle_client_request(kind, asked)
        outputs = [
            EngineCoreOutput(
                request_id=job.name,
                new_token_ids=[clock.token()],
                finish_reason=FinishReason.LENGTH if job.ended else None,
            )
            for job in clock.step()
        ]
        if outputs:
            engine.output_queue.put_nowait((0, EngineCoreOutputs(outputs=outputs)))


def install() -> None:
    """In the server's process and the engine's, which imports this module afresh."""
    preprocess = core.EngineCore.preprocess_add_request

    def timed(engine: Any, request: Any) -> Any:
        arrived_s = time.time()
        taken = preprocess(engine, request)
        taken[0].arrived_s = arrived_s
        return taken

    core.EngineCore.preprocess_add_request = timed
    core.EngineCoreProc.run_busy_loop = run_by_clock


def main(folder: str, port: str) -> None:
    """Serve the model in ``folder``."""
    import uvloop
    from vllm.entrypoints.launchers.api_server.entry import run_server
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    options = {
        "--model": folder, "--served-model-name": MODEL, "--port": port, "--max-model-len": "130000",
        "--distributed-executor-backend": f"{__spec__.name}.NoModel",
    }  # fmt: skip
    parser = make_arg_parser(FlexibleArgumentParser())
    uvloop.run(run_server(parser.parse_args([word for option in options.items() for word in option])))


if __name__ in ("__main__", "__mp_main__"):
    install()
if __name__ == "__main__":
    main(*sys.argv[1:])
