"""Record a case: the real router as a process, workers that answer when told, events strictly one after another."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import importlib.metadata
import json
import re
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hisearch.record.router import cases, texts
from hisearch.record.router.mocks import Worker, call

#: A router that does not come up, or an event that does not happen, within this is a failure, in seconds.
PATIENCE_S = 60.0
#: The router counts a request out when its answer is dropped, just after the client has it; seconds for that.
_SETTLE_S = 0.003
#: No event begins this long before a trimming or a redrawing is due, or while it goes on.
_MARGIN_S = 0.15
#: bucket: requests come in bursts so far apart, so that none is as old as the window of two seconds, give or take 0.3.
_BURST_S, _BURST_EVERY_S = 0.3, 1.3
_START = (
    "import json, sys; from sglang_router.router_args import RouterArgs; "
    "from sglang_router.router import Router; given = json.loads(sys.argv[1]); "
    "given['prefill_urls'] = [tuple(pair) for pair in given.get('prefill_urls', ())]; "
    "Router.from_args(RouterArgs(**given)).start()"
)
#: Settings of the recorder, not of the router.
_OURS = ("get_load", "stream")
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
_CHOICE = re.compile(r"Power-of-two selection: (\S+)=(-?\d+) vs (\S+)=(-?\d+) ->")
_REGISTERED = re.compile(r"Registered worker (\S+)")
_SIZE = re.compile(r"Tenant: (\S+), Size: (\d+)")
_RANGE = re.compile(r'url: "([^"]+)", range: \[(\d+), (\d+)\]')


class RecordingError(Exception):
    """The router cannot be asked, or did not do what the recorder waits for."""


def version() -> str:
    """The installed router's.

    Raises:
        RecordingError: it is not installed.
    """
    try:
        return importlib.metadata.version("sglang-router")
    except importlib.metadata.PackageNotFoundError:
        raise RecordingError("sglang-router is not installed: pip install sglang-router==0.3.2") from None


def record_all(named_cases: dict[str, dict[str, Any]], out: Path) -> list[str]:
    """Record cases into ``out``, a file each; what is there is skipped. Returns the names of those that failed."""
    out.mkdir(parents=True, exist_ok=True)
    failed = []
    for name, case in named_cases.items():
        path = out / f"{name}.json.gz"
        if path.exists():
            continue
        try:
            recording = asyncio.run(_Session(case).record())
        except (RecordingError, OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            failed.append(name)
            continue
        path.write_bytes(gzip.compress(json.dumps(recording).encode(), mtime=0))
        print(f"{name}: {case['policy']}, {len(recording['events'])} events", file=sys.stderr, flush=True)
    return failed


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@dataclass
class _Answer:
    """An answer under way. held: what sets its workers free, a prefill worker first. worker: the chosen one."""

    task: asyncio.Task[tuple[int, Any]]
    begun: asyncio.Event
    held: list[asyncio.Event]
    worker: Worker
    characters: int


class _Session:
    """One router and its workers."""

    def __init__(self, case: dict[str, Any]) -> None:
        self.case = case
        self.policy: str = case["policy"]
        self.settings: dict[str, Any] = case["settings"]
        self.is_pd = "PD" in case.get("endpoint", "")
        self.is_prefill = "decode policy" not in case.get("endpoint", "")
        self.workers = [Worker(k, self._arrived, self._polled) for k in range(case["workers"])]
        #: The one worker of the other role.
        self.partner = Worker(-1, self._arrived, lambda _worker: None)
        self.by_url: dict[str, int] = {}
        self.arrivals: asyncio.Queue[tuple[Worker, asyncio.Event]] = asyncio.Queue()
        self.loads: dict[str, int] = {}
        self.events: list[list[Any]] = []
        self.answers: dict[int, _Answer] = {}
        self.lines: asyncio.Queue[str] = asyncio.Queue()
        self.sizes: dict[str, int] | None = None
        self.sizes_before: dict[str, int] = {}
        self.due_s: float | None = None
        self.selections: asyncio.Queue[tuple[int, int, int, int]] = asyncio.Queue()
        self.began_s = 0.0
        self.registered: list[list[list[Any]]] = []
        #: Decode workers in the router's order, that of their registration.
        self.registered_urls: list[str] = []

    # What workers and the router's log tell.

    def _arrived(self, worker: Worker, done: asyncio.Event) -> None:
        self.arrivals.put_nowait((worker, done))

    def _polled(self, worker: Worker) -> None:
        """A worker was asked for its load; the poll is over when all were."""
        self.loads[worker.url] = worker.load or 0
        if len(self.loads) == len(self.workers):
            if self.by_url:
                self.events.append(["poll", [self.loads[url] for url in sorted(self.by_url, key=self._number)]])
            self.loads = {}

    async def _read_log(self, stream: asyncio.StreamReader) -> None:
        while line := await stream.readline():
            self._note(_ESCAPES.sub("", line.decode(errors="replace")))

    def _note(self, line: str) -> None:
        if match := _CHOICE.search(line):
            first, load, second, other = match.groups()
            self.selections.put_nowait((self._number(first), int(load), self._number(second), int(other)))
        elif "Before eviction" in line:
            self.sizes = {}
        elif "After eviction" in line:
            self.sizes_before, self.sizes = self.sizes or {}, {}
            self.due_s = None
        elif (match := _SIZE.search(line)) and self.sizes is not None:
            self.sizes[match[1]] = int(match[2])
        elif "Cache eviction completed" in line:
            before, after = (
                {str(self._number(url)): size for url, size in sizes.items()}
                for sizes in (self.sizes_before, self.sizes or {})
            )
            self.events.append(["evict", before, after])
            self.sizes, self.sizes_before = None, {}
            self.due_s = time.monotonic() + self.settings["eviction_interval_secs"]
        elif "After adjusting boundary" in line or "No need to adjust" in line:
            ranges = [[self._number(url), int(low), int(high)] for url, low, high in _RANGE.findall(line)]
            self.events.append(["adjust", self._ms(), ranges or None])
            self.due_s = time.monotonic() + self.settings["bucket_adjust_interval_secs"]
        elif match := _REGISTERED.search(line):
            self.registered_urls.append(match[1])
            self._let_register()
        elif "Init boundary" in line:
            self.registered.append([[url, int(low), int(high)] for url, low, high in _RANGE.findall(line)])

    def _number(self, url: str) -> int:
        return self.by_url.get(url, -1)

    def _ms(self) -> int:
        return round((time.monotonic() - self.began_s) * 1000)

    def _let_register(self) -> None:
        """Decode workers one after another, so that the log tells their order."""
        known = [worker for worker in self.workers if worker.url not in self.registered_urls]
        for worker in known if self.is_prefill else known[:1]:
            worker.ready.set()

    # Recording.

    async def record(self) -> dict[str, Any]:
        """The recording.

        Raises:
            RecordingError: the router did not come up, or refused a request.
        """
        everyone = [*self.workers, *([self.partner] if self.is_pd else [])]
        for worker in everyone:
            await worker.start()
            worker.load = 0 if self.settings.get("get_load", True) else None
        self.partner.ready.set()
        self._let_register()
        port = _free_port()
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", _START, json.dumps(self._arguments(port)), stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, limit=1 << 24,
        )  # fmt: skip
        assert process.stdout is not None
        log = asyncio.create_task(self._read_log(process.stdout))
        try:
            await self._wait_for_workers(port)
            self.began_s = time.monotonic()
            if "max_tree_size" in self.settings:
                # The first trimming, of an empty tree, says when the others are due.
                self.due_s = self.began_s
            for event in self.case["events"]:
                if event[0] in ("send", "first_token", "finish"):
                    await self._quiet()
                if event[0] == "send":
                    await self._send(port, *event[1:])
                elif event[0] == "first_token":
                    await self._end_prefill(event[1])
                elif event[0] == "finish":
                    await self._finish(event[1])
        finally:
            for answer in self.answers.values():
                answer.task.cancel()
                for done in answer.held:
                    done.set()
            await asyncio.sleep(0)
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            log.cancel()
            for worker in everyone:
                worker.stop()
        return self._recording()

    def _arguments(self, port: int) -> dict[str, Any]:
        urls = [worker.url for worker in self.workers]
        settings = {key: value for key, value in self.settings.items() if key not in _OURS}
        logs = self.policy in ("power_of_two", "bucket") or "max_tree_size" in settings or not self.is_prefill
        common = {
            "host": "127.0.0.1", "port": port, "prometheus_port": _free_port(), "disable_retries": True,
            "disable_circuit_breaker": True, "worker_startup_timeout_secs": 60,
            "log_level": "debug" if logs else "warn",
        }  # fmt: skip
        common |= {"worker_startup_check_interval": 1} | settings
        if self.is_pd:
            pools = [urls, [self.partner.url]] if self.is_prefill else [[self.partner.url], urls]
            policies = [self.policy, "random"] if self.is_prefill else ["random", self.policy]
            return common | {
                "pd_disaggregation": True, "prefill_urls": [(url, None) for url in pools[0]], "decode_urls": pools[1],
                "prefill_policy": policies[0], "decode_policy": policies[1],
            }  # fmt: skip
        return common | {"worker_urls": urls, "policy": self.policy}

    async def _wait_for_workers(self, port: int) -> None:
        """Until the router lists all workers; its order numbers them, of decode workers that of registration."""
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                _, listed = await call(port, "GET", "/workers")
                known = {worker.url for worker in self.workers}
                rows = (listed or {}).get("workers", [])
                urls = [row["url"] for row in rows if row["url"] in known]
                if len(rows) == len(known) + self.is_pd and all(row.get("is_healthy", True) for row in rows):
                    await asyncio.sleep(0.5)
                    ordered = urls if self.is_prefill else [url for url in self.registered_urls if url in known]
                    self.by_url = {url: number for number, url in enumerate(ordered)}
                    return
            await asyncio.sleep(0.2)
        raise RecordingError("the router does not list its workers")

    def _is_due(self) -> bool:
        """Whether the router is about to trim or to redraw; it first redraws at a time that only its log tells."""
        if self.due_s is None:
            return self.policy == "bucket" and bool(self.events)
        return time.monotonic() > self.due_s - _MARGIN_S

    async def _quiet(self) -> None:
        """Wait where the router is about to trim or to redraw, and between bursts of bucket."""
        end = time.monotonic() + PATIENCE_S
        while self.sizes is not None or self._is_due():
            if time.monotonic() > end:
                raise RecordingError("the router did not trim or redraw")
            await asyncio.sleep(0.005)
        if self.policy == "bucket":
            into = (time.monotonic() - self.began_s) % _BURST_EVERY_S
            if into > _BURST_S:
                await asyncio.sleep(_BURST_EVERY_S - into)
                await self._quiet()

    async def _send(self, port: int, prompt: int, key: str = "", *_: Any) -> None:
        headers = {"X-SMG-Routing-Key": key} if key else {}
        path, body, characters = self._request(prompt)
        body |= {"stream": True} if self.settings.get("stream") else {}
        number = len(self.events)
        now_ms = self._ms()
        begun = asyncio.Event()
        task = asyncio.create_task(call(port, "POST", path, body, headers, begun))
        arrived = [await asyncio.wait_for(self._arrival(task), PATIENCE_S) for _part in range(2 if self.is_pd else 1)]
        # The prefill worker's first, where there are two.
        arrived.sort(key=lambda pair: (pair[0] is self.partner) is self.is_prefill)
        (chosen,) = (worker for worker, _ in arrived if worker is not self.partner)
        event: list[Any] = ["send", prompt, self.by_url[chosen.url]]
        if self.policy == "power_of_two":
            event += await asyncio.wait_for(self.selections.get(), PATIENCE_S)
        elif self.policy == "bucket":
            event.append(now_ms)
        elif key:
            event.append(key)
        # What the log told meanwhile came behind the choice, or at the latest with it.
        self.events.insert(number, event)
        if chosen.load is not None:
            chosen.load += characters
        self.answers[prompt] = _Answer(task, begun, [done for _, done in arrived], chosen, characters)

    async def _arrival(self, answer: asyncio.Task[tuple[int, Any]]) -> tuple[Worker, asyncio.Event]:
        """The next request at a worker; an answer before that is a refusal."""
        arrival = asyncio.ensure_future(self.arrivals.get())
        await asyncio.wait({arrival, answer}, return_when=asyncio.FIRST_COMPLETED)
        if not arrival.done():
            arrival.cancel()
            raise RecordingError(f"the router answered {answer.result()}")
        return arrival.result()

    async def _end_prefill(self, prompt: int) -> None:
        """The prefill worker answers; the decode worker goes on."""
        self.answers[prompt].held[0].set()
        if self.settings.get("stream"):
            await asyncio.wait_for(self.answers[prompt].begun.wait(), PATIENCE_S)
        await asyncio.sleep(_SETTLE_S)
        self.events.append(["first_token", prompt])

    async def _finish(self, prompt: int) -> None:
        answer = self.answers.pop(prompt)
        for done in answer.held:
            done.set()
        status, body = await asyncio.wait_for(answer.task, PATIENCE_S)
        if status != 200:
            raise RecordingError(f"the router answered {status}: {body}")
        await asyncio.sleep(_SETTLE_S)
        load = answer.worker.load
        answer.worker.load = None if load is None else load - answer.characters
        self.events.append(["finish", prompt])

    def _request(self, prompt: int) -> tuple[str, dict[str, Any], int]:
        """Path and body of a request, and the characters that the router sees."""
        rule, join, segments = self.case["text_rule"], self.case["join"], self.case["segments"]
        parts = [texts.text_of(rule, *segments[index]) for index in self.case["prompts"][prompt]]
        text = join.join(parts)
        if self.case["endpoint"].startswith("/v1/chat/completions"):
            roles = ["system"] + ["user", "assistant"] * len(parts)
            messages = [{"role": role, "content": part} for role, part in zip(roles, parts, strict=False)]
            return "/v1/chat/completions", {"model": "mock", "messages": messages}, len(text)
        if rule == "ids":
            return "/generate", {"input_ids": [int(token) for token in text.split()]}, len(text)
        return "/generate", {"text": text}, len(text)

    def _recording(self) -> dict[str, Any]:
        case = {key: self.case[key] for key in cases.KEYS if key in self.case}
        recording = {"router_version": f"sglang-router {version()}", **case, "events": self.events}
        recording["worker_urls"] = sorted(self.by_url, key=self.by_url.__getitem__)
        if self.policy == "bucket":
            recording["boundaries_at_start"] = [
                [[self._number(url), low, high] for url, low, high in ranges] for ranges in self.registered
            ]
        return recording
