"""Scripts that send the simulated requests to the real deployment, by three public tools.

guidellm sends every request at its simulated time. ``sglang.bench_serving`` and ``vllm bench serve`` cannot replay
arrival times of such data: they send the same prompts in the same order, as a Poisson process of the same mean rate.
Flags were read in the wheels of the versions below (docs/generate_engine_flags.py).
"""

from __future__ import annotations

import math
from typing import NamedTuple

from hisearch.export.engines.flags import ENGINE_VERSIONS
from hisearch.specs.base import EngineName
from hisearch.traces.changes.replay import Replay

GUIDELLM_VERSION = "0.8.1"
REQUESTS = "requests.jsonl"
FOLDER = "benchmark"


class Benchmark(NamedTuple):
    """The requests to send, and a sentence on their part of the workload."""

    replay: Replay
    about: str


class Tool(NamedTuple):
    """A benchmark tool: name of its script, version, input file, output file, and lines of its command."""

    name: str
    version: str
    data: str
    output: str
    command: tuple[tuple[str, ...], ...]


def tools(benchmark: Benchmark, engine: EngineName) -> list[Tool]:
    """The three tools; the shell expands words with ``$``, all others are quoted."""
    replay = benchmark.replay
    count, rate = str(len(replay)), "inf" if math.isinf(replay.rate_rps) else f"{replay.rate_rps:.6g}"
    columns = "timestamp_column=arrival_s,prompt_tokens_column=input_tokens,output_tokens_column=output_tokens"
    data = (
        f"kind=mooncake,source.kind=json_file,source.path=$HERE/{REQUESTS},{columns},hash_ids_column=block_ids,"
        f"hash_id_block_size={replay.block_tokens}"
    )
    backend = "sglang-oai-chat" if engine == "sglang" else "vllm-chat"
    return [
        Tool(
            "guidellm", GUIDELLM_VERSION, REQUESTS, "guidellm.json",
            (
                ("guidellm", "run"),
                ("--backend", "kind=openai_http,target=$URL,model=$MODEL,request_format=/v1/completions"),
                ("--profile", "kind=replay,schedule_turn=timestamp"),
                ("--tokenizer", "kind=huggingface_auto,model=$TOKENIZER"),
                ("--data", data),
                ("--output", "kind=json,path=$OUT"),
            ),
        ),
        Tool(
            "sglang", ENGINE_VERSIONS["sglang"], "chats.jsonl", "sglang.jsonl",
            (
                ("python", "-m", "sglang.bench_serving"),
                ("--backend", backend),
                ("--base-url", "$URL"),
                ("--model", "$MODEL"),
                ("--tokenizer", "$TOKENIZER"),
                ("--dataset-name", "openai"),
                ("--dataset-path", "$HERE/chats.jsonl"),
                ("--num-prompts", count),
                ("--request-rate", rate),
                ("--output-details",),
                ("--output-file", "$OUT"),
            ),
        ),
        Tool(
            "vllm", ENGINE_VERSIONS["vllm"], "prompts.jsonl", "vllm.json",
            (
                ("vllm", "bench", "serve"),
                ("--backend", "openai"),
                ("--endpoint", "/v1/completions"),
                ("--base-url", "$URL"),
                ("--model", "$MODEL"),
                ("--tokenizer", "$TOKENIZER"),
                ("--dataset-name", "custom"),
                ("--dataset-path", "$HERE/prompts.jsonl"),
                ("--custom-output-len", "-1"),
                ("--skip-chat-template",),
                ("--disable-shuffle",),
                ("--num-prompts", count),
                ("--request-rate", rate),
                ("--ignore-eos",),
                ("--percentile-metrics", "ttft,tpot,itl,e2el"),
                ("--metric-percentiles", "50,90,95,99"),
                ("--save-result",),
                ("--save-detailed",),
                ("--result-filename", "$OUT"),
            ),
        ),
    ]  # fmt: skip
