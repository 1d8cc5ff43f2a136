"""Benchmark scripts: command lines that the tools take, and the requests that they send."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hisearch.export.context import Benchmark, ExportContext
from hisearch.traces.changes.replay import replay_of
from hisearch.traces.compiler import compile_trace
from hisearch.traces.trace import make_trace
from tests.export.command_lines import parse
from tests.export.conftest import export_all

_PROGRAMS = {
    "guidellm": ("guidellm", ("run",)),
    "sglang": ("sglang-bench-serving", ("-m", "sglang.benchmark.serving")),
    "vllm": ("vllm-bench-serve", ("bench", "serve")),
}
STUB = """#!/bin/bash
printf '%s\\n' "$@"
"""


@pytest.fixture(params=["sglang", "sglang-0.5.9", "vllm", "vllm-0.19.1", "trtllm"])
def folder(
    request: pytest.FixtureRequest, build_deployment: Any, build_model: Any, build_accelerator: Any, tmp_path: Path
) -> Path:
    arrival = np.arange(5.0)
    trace = compile_trace(
        make_trace(arrival_s=arrival, input_tokens=[30, 16, 40, 1, 9], output_tokens=[5, 4, 3, 2, 1]), "five"
    )
    benchmark = Benchmark(replay_of(trace, arrival), "workload five")
    name, _, version = request.param.partition("-")
    deployment = build_deployment(engine={"name": name, "version": version})
    out = tmp_path / "it's out"
    export_all(deployment, build_model(), build_accelerator(), out, context=ExportContext(benchmark=benchmark))
    return out / "benchmark"


def run(folder: Path, tool: str, **environment: str) -> list[str]:
    """Words that the script gives to the tool, which is replaced by a program that prints them."""
    stubs = folder.parent.parent / "stubs"
    stubs.mkdir(exist_ok=True)
    for name in ("guidellm", "vllm", "python", "python3"):
        (stubs / name).write_text(STUB if name != "python3" else '#!/bin/bash\n: > "$3"\n')
        (stubs / name).chmod(0o755)
    path = f"{stubs}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [str(folder / f"{tool}.sh")],
        capture_output=True,
        text=True,
        check=True,
        cwd=stubs,
        env={"PATH": path} | environment,
        timeout=20,
    )
    return done.stdout.splitlines()


@pytest.mark.parametrize("tool", _PROGRAMS)
def test_every_command_line_is_one_that_the_tool_takes(folder: Path, tool: str) -> None:
    program, beginning = _PROGRAMS[tool]
    words = run(folder, tool)
    # The exported engine's tool is of its release.
    (version,) = re.findall(rf"^# {tool} (\S+):", (folder / f"{tool}.sh").read_text(), re.MULTILINE)
    if version == "0.5.9":
        beginning = ("-m", "sglang.bench_serving")
    assert tuple(words[: len(beginning)]) == beginning
    parsed = parse(program, words[len(beginning) :], version)
    if tool == "guidellm":
        (data,) = parsed["--data"]
        assert f"source.path={folder}/requests.jsonl" in data
        assert "hash_id_block_size=16" in data
        assert parsed["--profile"] == ["kind=replay,schedule_turn=timestamp"]
    else:
        assert parsed["--num-prompts"] == ["5"]
        assert parsed["--request-rate"] == ["1"]
        assert parsed["--model"] == ["Qwen/Qwen3-32B"]


def test_the_environment_says_where_and_what(folder: Path) -> None:
    words = run(folder, "vllm", URL="http://10.0.0.1:9", MODEL="my $model", TOKENIZER="/t", OUT="/tmp/o")
    parsed = parse("vllm-bench-serve", words[2:])
    assert parsed["--base-url"] == ["http://10.0.0.1:9"]
    assert (parsed["--model"], parsed["--tokenizer"]) == (["my $model"], ["/t"])
    assert parsed["--result-filename"] == ["/tmp/o"]


def test_the_requests_are_there_and_documented(folder: Path) -> None:
    rows = [json.loads(line) for line in (folder / "requests.jsonl").read_text().splitlines()]
    assert [row["output_tokens"] for row in rows] == [5, 4, 3, 2, 1]
    readme = (folder / "README.md").read_text()
    assert "5 requests of workload five" in readme
    assert "hisearch verify RUN --measured" in readme
    assert "`benchmark/`" in (folder.parent / "README.md").read_text()


def test_prompts_have_the_stated_tokens_and_share_what_they_share(folder: Path, tmp_path: Path) -> None:
    """With a tokenizer of one token a word, which stands in for transformers."""
    package = tmp_path / "lib" / "transformers"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(
        "class AutoTokenizer:\n"
        "    @classmethod\n"
        "    def from_pretrained(cls, name): return cls()\n"
        "    def __len__(self): return 5000\n"
        "    def decode(self, tokens): return ' w' + ''.join(chr(97 + int(c)) for c in str(tokens[0]))\n"
        "    def encode(self, text, add_special_tokens): return text.split()\n"
    )
    rows = [
        {"arrival_s": 0, "input_tokens": 40, "output_tokens": 7, "block_ids": [0, 1, 2]},
        {"arrival_s": 1, "input_tokens": 20, "output_tokens": 8, "block_ids": [0, 3]},
    ]
    (folder / "requests.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name in ("prompts.jsonl", "chats.jsonl"):
        words = ["python3", str(folder / "prompts.py"), str(folder / "requests.jsonl"), str(folder / name)]
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path / "lib")}
        done = subprocess.run(
            [*words, "--tokenizer", "t", "--block-tokens", "16"],
            capture_output=True, text=True, env=environment, timeout=30, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "60 prompt tokens for 60 asked" in done.stderr
    plain = [json.loads(line) for line in (folder / "prompts.jsonl").read_text().splitlines()]
    assert [row["output_tokens"] for row in plain] == [7, 8]
    first, second = (row["prompt"].split() for row in plain)
    assert (len(first), len(second)) == (40, 20)
    assert first[:16] == second[:16]
    assert first[16:20] != second[16:20]
    chats = [json.loads(line) for line in (folder / "chats.jsonl").read_text().splitlines()]
    assert [row["max_tokens"] for row in chats] == [7, 8]
    assert [row["messages"][0]["content"] for row in chats] == [row["prompt"] for row in plain]
