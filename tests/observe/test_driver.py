"""Experiments on a stand-in for vLLM's server, which counts and stamps as it does."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from hisearch.observe.client import Client, ServerError
from hisearch.observe.driver import Driver, Experiment

#: Seconds of the stand-in: before its stamp of an arrival, of a prompt's step, and of a decode's.
BEFORE_S, PREFILL_S, DECODE_S = 0.01, 0.02, 0.005


class StandIn:
    """Serves words as tokens, each request by itself. speaks: whether it has ``/tokenize`` and ``/detokenize``."""

    def __init__(self) -> None:
        self.speaks = True
        #: Requests of somebody else that end with each request.
        self.others = 0
        self.sums = dict.fromkeys(("request_queue_time", "request_prefill_time", "request_decode_time",
                                   "time_to_first_token", "e2e_request_latency"), 0.0)  # fmt: skip
        self.ended = self.prompt_tokens = 0
        self.prompts: list[Any] = []
        self.lock = threading.Lock()

    def metrics(self) -> str:
        lines = [f"vllm:{name}_seconds_sum {value}" for name, value in self.sums.items()]
        lines += [f"vllm:request_success_total {self.ended}", f"vllm:prompt_tokens_total {self.prompt_tokens}"]
        return "\n".join([*lines, "vllm:num_requests_running 0", "vllm:prefix_cache_hits_total 0"]) + "\n"

    def post(self, path: str, asked: dict[str, Any]) -> dict[str, Any] | None:
        """The answer to ``/tokenize`` or ``/detokenize``; a word is a token."""
        if not self.speaks:
            return None
        if path == "/detokenize":
            return {"prompt": "".join(f" {token}" for token in asked["tokens"])}
        return {"tokens": [int(word) for word in asked["prompt"].split()]}

    def complete(self, asked: dict[str, Any]) -> Iterator[bytes]:
        """Tokens of an answer, at the times of its steps."""
        time.sleep(BEFORE_S + PREFILL_S)
        self.prompts.append(asked["prompt"])
        with self.lock:
            self.prompt_tokens += len(asked["prompt"].split())
            self.sums["request_prefill_time"] += PREFILL_S
            self.sums["time_to_first_token"] += PREFILL_S
        for place in range(asked["max_tokens"]):
            time.sleep(DECODE_S if place else 0.0)
            yield b'data: {"choices": [{"text": "a", "token_ids": [7]}]}\n\n'
        decode_s = DECODE_S * (asked["max_tokens"] - 1)
        with self.lock:
            self.sums["request_decode_time"] += decode_s
            self.sums["e2e_request_latency"] += PREFILL_S + decode_s
            self.ended += 1 + self.others


@pytest.fixture
def stand_in() -> Iterator[tuple[StandIn, Driver]]:
    server = StandIn()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer(200, server.metrics().encode())

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path == "/v1/completions":
                self.send_response(200)
                self.end_headers()
                for line in server.complete(asked):
                    self.wfile.write(line)
                return
            answer = server.post(self.path, asked)
            self.answer(404 if answer is None else 200, json.dumps(answer).encode())

        def answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    http_server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http_server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{http_server.server_address[1]}"
    try:
        yield server, Driver(Client(url), "tiny", vocabulary=1000)
    finally:
        http_server.shutdown()
        http_server.server_close()
        thread.join()


def test_prompts_are_texts_and_counters_are_those_of_the_experiment(stand_in: tuple[StandIn, Driver]) -> None:
    server, driver = stand_in
    driver.run(Experiment((40,), 3))
    outcome = driver.run(Experiment((30, 30), 4))
    assert all(isinstance(prompt, str) for prompt in server.prompts)
    assert outcome.engine.prompt_tokens == 60
    assert outcome.engine.prefill_s == pytest.approx(2 * PREFILL_S)
    assert outcome.engine.decode_s == pytest.approx(2 * 3 * DECODE_S)
    assert outcome.engine.end_s == pytest.approx(outcome.engine.first_s + outcome.engine.decode_s)
    for request in outcome.requests:
        assert request.first_s - request.sent_s >= BEFORE_S + PREFILL_S
        assert request.tokens[-1][1] == 4


def test_a_cached_prefix_begins_the_prompt_that_is_timed(stand_in: tuple[StandIn, Driver]) -> None:
    server, driver = stand_in
    outcome = driver.run(Experiment((20,), 3, cached=64))
    prefix, whole = server.prompts
    assert whole.startswith(prefix)
    assert outcome.engine.prompt_tokens == 84


def test_a_late_request_has_the_servers_time_for_itself(stand_in: tuple[StandIn, Driver]) -> None:
    _, driver = stand_in
    outcome = driver.run(Experiment((20,) * 3, 40, late=50))
    assert outcome.late is not None
    assert outcome.engine.late_first_s == pytest.approx(PREFILL_S)
    assert outcome.engine.first_s == pytest.approx(4 * PREFILL_S)
    assert outcome.late.sent_s > max(request.when(2) for request in outcome.requests)


def test_a_server_without_texts_and_one_with_other_traffic_are_refused(stand_in: tuple[StandIn, Driver]) -> None:
    server, driver = stand_in
    server.others = 1
    with pytest.raises(ServerError, match="it serves other requests"):
        driver.run(Experiment((20,), 3))
    server.speaks = False
    with pytest.raises(ServerError, match=r"/detokenize: HTTP 404.*prompts are sent as text"):
        driver.run(Experiment((20,), 3))
