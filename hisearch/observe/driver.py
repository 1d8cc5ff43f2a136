"""Sends planned requests to a server of vLLM, and times them from outside and, by its counters, from inside.

The only part of hisearch that makes a server work. Prompts are the text of random token ids, which the server has to
tokenise as any client's. Its histograms hold the sums of what its engine took, and of what passed from its stamp of an
arrival on, to the microsecond: what they grow by while nothing else is served is the time of the requests sent. Other
traffic is noticed by the count of requests that ended, and refused.
"""

from __future__ import annotations

import http.client
import json
import ssl
import threading
import time
import urllib.parse
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from hisearch.observe.client import Client, ServerError
from hisearch.observe.prometheus import Metrics, parse_metrics

#: Seconds until counters show a request that has ended.
_SETTLE_S = 5.0
#: Seconds of rest before an experiment, drawn between these: a server just asked for its metrics answers faster than
#: one that a request finds at rest.
_REST_S = (0.05, 0.25)
#: Token ids below are special ones as a rule.
_FIRST_ID = 100
_TIMEOUT_S = 120.0


class Experiment(NamedTuple):
    """Requests to send: as many ``prompts``, all at once, of so many fresh tokens behind ``cached`` ones.

    late: tokens of one more prompt, sent once all others write; 0 for none. outputs: tokens of each answer.
    """

    prompts: tuple[int, ...]
    outputs: int
    cached: int = 0
    late: int = 0


class Timed(NamedTuple):
    """One request: seconds of a steady clock. tokens: (when, number until then) of its answer."""

    sent_s: float
    tokens: tuple[tuple[float, int], ...]

    @property
    def first_s(self) -> float:
        """When its first token came."""
        return self.tokens[0][0]

    @property
    def last_s(self) -> float:
        """When its last token came."""
        return self.tokens[-1][0]

    def when(self, number: int) -> float:
        """When it had that many tokens."""
        return next(at_s for at_s, count in self.tokens if count >= number)


class Engine(NamedTuple):
    """The server's own seconds, summed over the requests of an experiment, the late one included.

    queue_s, prefill_s, decode_s: of its engine. first_s, end_s: from its stamp of the arrival to the first, and to the
    last token. late_first_s: the former of the late request alone. prompt_tokens, hit_tokens: of the prompts, and found
    in its cache.
    """

    queue_s: float
    prefill_s: float
    decode_s: float
    first_s: float
    end_s: float
    late_first_s: float
    prompt_tokens: float
    hit_tokens: float


class Outcome(NamedTuple):
    """An experiment, its requests in the order of ``prompts``, the late one, and the engine's own times."""

    experiment: Experiment
    requests: tuple[Timed, ...]
    late: Timed | None
    engine: Engine


_SUMS = {
    "queue_s": "vllm:request_queue_time_seconds",
    "prefill_s": "vllm:request_prefill_time_seconds",
    "decode_s": "vllm:request_decode_time_seconds",
    "first_s": "vllm:time_to_first_token_seconds",
    "end_s": "vllm:e2e_request_latency_seconds",
}
_ENDED, _PROMPTS, _HITS = "vllm:request_success", "vllm:prompt_tokens", "vllm:prefix_cache_hits"


@dataclass
class Driver:
    """Sends experiments, one after another. vocabulary: token ids of the model. seed: of the prompts."""

    client: Client
    model: str
    vocabulary: int
    seed: int = 0
    _random: np.random.Generator = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._random = np.random.default_rng(self.seed)
        if not self._metrics().has(_SUMS["prefill_s"]):
            raise ServerError(
                f"{self.client.url}: it does not tell its engine's seconds of a request; expected vLLM with "
                f"{_SUMS['prefill_s']}"
            )

    def run(self, experiment: Experiment) -> Outcome:
        """Send an experiment, and wait for its end.

        Raises:
            ServerError: a request failed, or the server has other traffic.
        """
        prefix = self._text(experiment.cached)
        if experiment.cached:
            self._send([prefix], 1, None)
        prompts = [prefix + self._text(count) for count in experiment.prompts]
        late = self._text(experiment.late) if experiment.late else None
        before = self._settled(None)
        time.sleep(float(self._random.uniform(*_REST_S)))
        timed, last, between = self._send(prompts, experiment.outputs, late)
        after = self._settled((before.total(_ENDED) or 0.0) + len(prompts) + (late is not None))
        grown = {key: _growth(f"{name}_sum", before, after) for key, name in _SUMS.items()}
        late_first_s = 0.0 if between is None else _growth(f"{_SUMS['first_s']}_sum", between, after)
        engine = Engine(
            **grown, late_first_s=late_first_s,
            prompt_tokens=_growth(_PROMPTS, before, after), hit_tokens=_growth(_HITS, before, after),
        )  # fmt: skip
        return Outcome(experiment, tuple(timed), last, engine)

    def _text(self, count: int) -> str:
        """Text of about ``count`` random tokens, cut once it was read back: its ids are seldom those drawn."""
        if not count:
            return ""
        first = min(_FIRST_ID, self.vocabulary // 2)
        ids = [int(token) for token in self._random.integers(first, self.vocabulary, count)]
        asked = {"model": self.model, "add_special_tokens": False}
        text = self._post("/detokenize", asked | {"tokens": ids})["prompt"]
        ids = self._post("/tokenize", asked | {"prompt": text})["tokens"]
        return str(self._post("/detokenize", asked | {"tokens": ids[:count]})["prompt"])

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        parts = urllib.parse.urlsplit(self.client.url)
        connection = self._connection(parts)
        try:
            connection.request("POST", parts.path.rstrip("/") + path, json.dumps(body), self._headers())
            response = connection.getresponse()
            text = response.read().decode(errors="replace")
        except (OSError, http.client.HTTPException) as error:
            raise ServerError(f"{self.client.url}{path}: {error}") from None
        finally:
            connection.close()
        if response.status != 200:
            raise ServerError(
                f"{self.client.url}{path}: HTTP {response.status}: {text[:300]}; prompts are sent as text"
            )
        return json.loads(text)

    def _headers(self) -> dict[str, str]:
        return {"Content-Type": "application/json", **self.client.headers}

    def _metrics(self) -> Metrics:
        answer = self.client.get("/metrics")
        if not answer.is_good:
            raise ServerError(f"{self.client.url}/metrics: {answer.status or 'no answer'}: {answer.text}")
        return parse_metrics(answer.text)

    def _settled(self, ended: float | None) -> Metrics:
        """Metrics with nothing in flight; ``ended``: requests that must have ended by then, no more and no fewer."""
        until_s = time.monotonic() + _SETTLE_S
        while True:
            metrics = self._metrics()
            idle = not (metrics.total("vllm:num_requests_running") or metrics.total("vllm:num_requests_waiting"))
            count = metrics.total(_ENDED) or 0.0
            if idle and (ended is None or count == ended):
                return metrics
            if (ended is not None and count > ended) or time.monotonic() > until_s:
                raise ServerError(
                    f"{self.client.url}: it serves other requests; drive it while it serves nobody, as what it takes "
                    "for whom could not be told apart"
                )
            time.sleep(0.02)

    def _send(
        self, prompts: Sequence[str], outputs: int, late: str | None
    ) -> tuple[list[Timed], Timed | None, Metrics | None]:
        """Send prompts at once, and the late one when all have their second token; with the metrics just before it."""
        timed: dict[int, Timed] = {}
        failed: list[str] = []
        writing = threading.Semaphore(0)

        between: Metrics | None = None

        def ask(index: int, prompt: str) -> None:
            try:
                timed[index] = self._complete(prompt, outputs, writing)
            except (OSError, http.client.HTTPException, ValueError) as error:
                failed.append(str(error) or type(error).__name__)
                writing.release()

        threads = [threading.Thread(target=ask, args=item, daemon=True) for item in enumerate(prompts)]
        for thread in threads:
            thread.start()
        if late is not None:
            for _ in prompts:
                writing.acquire(timeout=_TIMEOUT_S)
            between = self._metrics()
            ask(-1, late)
        for thread in threads:
            thread.join(_TIMEOUT_S)
        if failed or len(timed) < len(prompts) + (late is not None):
            raise ServerError(f"{self.client.url}: a request failed: {failed[0] if failed else 'no end in time'}")
        last = timed.pop(-1, None)
        return [timed[index] for index in range(len(prompts))], last, between

    def _complete(self, prompt: str, outputs: int, writing: threading.Semaphore) -> Timed:
        """One streamed completion."""
        body = {
            "model": self.model, "prompt": prompt, "max_tokens": outputs, "min_tokens": outputs, "ignore_eos": True,
            "temperature": 0.0, "stream": True, "return_token_ids": True,
        }  # fmt: skip
        parts = urllib.parse.urlsplit(self.client.url)
        connection = self._connection(parts)
        tokens: list[tuple[float, int]] = []
        text = json.dumps(body)
        try:
            sent_s = time.perf_counter()
            connection.request("POST", f"{parts.path.rstrip('/')}/v1/completions", text, self._headers())
            response = connection.getresponse()
            if response.status != 200:
                raise ServerError(
                    f"HTTP {response.status} {response.reason}: {response.read(300).decode(errors='replace')}"
                )
            count = 0
            for line in response:
                now = time.perf_counter()
                if not line.startswith(b"data: {"):
                    continue
                choice = (json.loads(line[6:]).get("choices") or [{}])[0]
                ids = choice.get("token_ids")
                fresh = len(ids) if isinstance(ids, list) else int(bool(choice.get("text")))
                if fresh:
                    count += fresh
                    tokens.append((now, count))
                    if count - fresh < 2 <= count or (count >= outputs and outputs < 2):
                        writing.release()
        finally:
            connection.close()
        if not tokens or tokens[-1][1] < outputs:
            raise ServerError(f"an answer of {tokens[-1][1] if tokens else 0} tokens, expected {outputs}")
        return Timed(sent_s, tuple(tokens))

    def _connection(self, parts: urllib.parse.SplitResult) -> http.client.HTTPConnection:
        host = parts.hostname or ""
        if parts.scheme == "https":
            context = ssl.create_default_context(cafile=str(self.client.ca) if self.client.ca is not None else None)
            return http.client.HTTPSConnection(host, parts.port, timeout=_TIMEOUT_S, context=context)
        return http.client.HTTPConnection(host, parts.port, timeout=_TIMEOUT_S)


def _growth(name: str, before: Metrics, after: Metrics) -> float:
    return (after.total(name) or 0.0) - (before.total(name) or 0.0)
