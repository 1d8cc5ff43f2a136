"""Benchmark scripts: command lines that the tools take, and the requests that they send."""

from __future__ import annotations

import http.server
import json
import os
import re
import subprocess
import sys
import threading
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
#: Writes the prompts' file, and the words of the warm-up.
PYTHON = """#!/bin/bash
case "$1" in */warmup.py) printf '%s\\n' "$@" > warmup.txt ;; *) : > "$3" ;; esac
"""


@pytest.fixture(params=["sglang", "sglang-0.5.9", "vllm", "vllm-0.19.1", "trtllm"])
def folder(
    request: pytest.FixtureRequest, build_deployment: Any, build_model: Any, build_accelerator: Any, tmp_path: Path
) -> Path:
    arrival = np.arange(5.0)
    trace = compile_trace(
        make_trace(arrival_s=arrival, input_tokens=[30, 16, 40, 1, 9], output_tokens=[5, 4, 3, 2, 1]), "five"
    )
    benchmark = Benchmark(replay_of(trace, arrival), "workload five", "workload five", 1.25)
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
        (stubs / name).write_text(STUB if name != "python3" else PYTHON)
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


def test_the_readme_says_at_which_share_of_the_load_it_is(folder: Path) -> None:
    said = (folder / "README.md").read_text()
    assert "at 1 request/s: 0.80 of the mean rate of workload five, 1.25 requests/s as simulated." in said
    assert "\n\n\n" not in said


def test_the_environment_says_where_and_what(folder: Path) -> None:
    words = run(folder, "vllm", URL="http://10.0.0.1:9", MODEL="my $model", TOKENIZER="/t", OUT="/tmp/o")
    parsed = parse("vllm-bench-serve", words[2:])
    assert parsed["--base-url"] == ["http://10.0.0.1:9"]
    assert (parsed["--model"], parsed["--tokenizer"]) == (["my $model"], ["/t"])
    assert parsed["--result-filename"] == ["/tmp/o"]


@pytest.mark.parametrize("tool", _PROGRAMS)
def test_a_warm_up_that_is_not_measured_comes_first(folder: Path, tool: str) -> None:
    """The tools' own send a measured prompt, which is in the cache from then on."""
    words = run(folder, tool, URL="http://10.0.0.1:9", MODEL="m", TOKENIZER="t")
    sent = folder.parent.parent / "stubs" / "warmup.txt"
    assert sent.read_text().splitlines()[1:] == [
        f"{folder}/requests.jsonl", "--url", "http://10.0.0.1:9", "--model", "m", "--count", "32",
    ]  # fmt: skip
    if tool == "sglang":
        assert words[words.index("--warmup-requests") + 1] == "0"
    if tool == "vllm":
        assert words[words.index("--ready-check-timeout-sec") + 1] == "0"
    sent.unlink()
    run(folder, tool, MODEL="m", TOKENIZER="t", WARMUP="0")
    assert not sent.exists()


def test_the_warm_up_is_of_the_measured_lengths_and_stops_where_nobody_serves(folder: Path) -> None:
    bodies: list[dict[str, Any]] = []

    class Server(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/completions"
            assert self.headers["Authorization"] == "Bearer secret"
            bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    words = [sys.executable, str(folder / "warmup.py"), str(folder / "requests.jsonl"), "--model", "m", "--count", "4"]
    environment = {"PATH": os.environ["PATH"], "OPENAI_API_KEY": "secret"}
    for url, code in ((f"http://127.0.0.1:{server.server_port}", 0), ("http://127.0.0.1:1", 1)):
        done = subprocess.run(
            [*words, "--url", url], capture_output=True, text=True, env=environment, timeout=30, check=False
        )
        assert done.returncode == code, done.stderr
    server.shutdown()
    server.server_close()
    assert "no request of the warm-up was served" in done.stderr
    assert sorted(body["max_tokens"] for body in bodies) == [2, 3, 4, 5]
    assert len({body["prompt"].split()[1] for body in bodies}) == 4


def test_the_requests_are_there_and_documented(folder: Path) -> None:
    rows = [json.loads(line) for line in (folder / "requests.jsonl").read_text().splitlines()]
    assert [row["output_tokens"] for row in rows] == [5, 4, 3, 2, 1]
    readme = (folder / "README.md").read_text()
    assert "5 requests of workload five" in readme
    assert "hisearch verify RUN --measured" in readme
    assert "`benchmark/`" in (folder.parent / "README.md").read_text()


#: Tokenizers that stand in for transformers', with 5,000 words of one token each.
_WORD = "'w' + ''.join(chr(97 + int(c)) for c in str(tokens[0]))"
_TOKENIZERS = {
    # A blank belongs to the word behind it, as in byte-level BPE.
    "byte-level": (f"' ' + {_WORD}", "re.findall(' ?[a-z]+| ', text)"),
    # A blank is put before every text, and decoding drops the first one, as in SentencePiece.
    "SentencePiece": (_WORD, "re.findall(' ?[a-z]+| ', ' ' + text)"),
}


@pytest.mark.parametrize("kind", _TOKENIZERS)
def test_prompts_have_the_stated_tokens_and_share_what_they_share(folder: Path, tmp_path: Path, kind: str) -> None:
    decoded, encoded = _TOKENIZERS[kind]
    package = tmp_path / "lib" / "transformers"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(
        "import re\n"
        "class AutoTokenizer:\n"
        "    @classmethod\n"
        "    def from_pretrained(cls, name): return cls()\n"
        "    def __len__(self): return 5000\n"
        f"    def decode(self, tokens): return {decoded}\n"
        f"    def encode(self, text, add_special_tokens): return {encoded}\n"
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
