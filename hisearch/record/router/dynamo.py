"""Record NVIDIA Dynamo's KV router: the real one in this process, asked for workers that are ranks and never called.

Runs where the wheel ``ai-dynamo-runtime`` is installed. A character of a prompt is a token. What workers cache the
router knows by what it sent, or by their KV events, which go through a ``nats-server`` on 127.0.0.1; its queue is off.
Discovery is in memory, nothing else runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import hashlib
import importlib.metadata
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hisearch.record.router import cases, texts
from hisearch.record.router.run import RecordingError

#: The index learns of a choice, and requests end, behind the answer; seconds that this is given.
_SETTLE_S = 0.01
#: An event reaches the index within; the first ones make the router find the workers. Seconds.
_EVENT_S, _FINDING_S = 0.03, 2.0
#: Rounds of events until the router has to have found all workers.
_TRIES = 4
#: Blocks and batches of workers, so large that no request waits.
_BLOCKS, _RUNNING, _BATCH = 1_000_000, 10_000, 1_000_000


def version() -> str:
    """The installed router's.

    Raises:
        RecordingError: it is not installed.
    """
    try:
        return importlib.metadata.version("ai-dynamo-runtime")
    except importlib.metadata.PackageNotFoundError:
        raise RecordingError("Dynamo is not installed: pip install ai-dynamo-runtime==1.1.1") from None


def random_case(seed: int) -> dict[str, Any]:
    """Settings, prompts and events of a case; of every four one forgets blocks within the recording."""
    rng = random.Random(seed)
    settings = {
        "block_size": rng.choice((4, 8, 16)),
        "overlap_score_weight": rng.choice((0.25, 1.0, 1.0, 2.5)),
        "router_ttl_secs": 1.0 if seed % 4 == 3 else 3600.0,
        "router_temperature": 0.0,
        "use_kv_events": False,
    }
    case = cases.random_case(13 * seed)  # The seed of a cache_aware.
    return {
        "policy": "dynamo_kv",
        "settings": settings,
        "workers": rng.choice((2, 3, 4, 6)),
        "endpoint": "KvRouter.best_worker",
        "text_rule": "clean",
        "join": "",
        "segments": case["segments"],
        "prompts": case["prompts"],
        "events": list(_events(rng, len(case["prompts"]))),
    }


def random_events_case(seed: int) -> dict[str, Any]:
    """The same by KV events: a worker has a prompt's blocks from its first token on; some are dropped later."""
    case, rng = random_case(seed), random.Random(f"events {seed}")
    del case["settings"]["router_ttl_secs"]
    case["settings"]["use_kv_events"] = True
    events: list[list[Any]] = []
    stored: list[int] = []
    for event in case["events"]:
        events.append(event)
        if event[0] == "first_token":
            events.append(["stored", event[1]])
            stored.append(event[1])
        if stored and rng.random() < 0.1:
            events.append(["removed", stored.pop(rng.randrange(len(stored)))])
    return case | {"events": events}


def _events(rng: random.Random, prompts: int) -> list[list[Any]]:
    events: list[list[Any]] = []
    waiting: list[int] = []
    in_flight: list[int] = []
    most = rng.choice((4, 20, 60))
    for prompt in range(prompts):
        events.append(["send", prompt])
        in_flight.append(prompt)
        waiting.append(prompt)
        while waiting and rng.random() < 0.4:
            events.append(["first_token", waiting.pop(rng.randrange(len(waiting)))])
        while in_flight and (len(in_flight) > most or rng.random() < 0.3):
            ended = in_flight.pop(rng.randrange(len(in_flight)))
            waiting = [other for other in waiting if other != ended]
            events.append(["finish", ended])
    return events


def record_all(named_cases: dict[str, dict[str, Any]], out: Path) -> list[str]:
    """Record cases into ``out``, a file each; what is there is skipped. Returns the names of those that failed."""
    out.mkdir(parents=True, exist_ok=True)
    by_events = any(case["settings"]["use_kv_events"] for case in named_cases.values())
    failed = []
    with _nats() if by_events else contextlib.nullcontext():
        os.environ["DYN_EVENT_PLANE"] = "nats" if by_events else "zmq"
        for name, case in named_cases.items():
            path = out / f"{name}.json.gz"
            if path.exists():
                continue
            try:
                recording = asyncio.run(_record(name, case))
            except Exception as error:  # whatever the router raises
                print(f"{name}: {error}", file=sys.stderr)
                failed.append(name)
                continue
            path.write_bytes(gzip.compress(json.dumps(recording, separators=(",", ":")).encode(), mtime=0))
    return failed


@contextlib.contextmanager
def _nats() -> Iterator[None]:
    """A NATS server, which ``NATS_SERVER`` names.

    Raises:
        RecordingError: there is none.
    """
    program = shutil.which("nats-server")
    if program is None:
        raise RecordingError("Dynamo's KV events go through NATS: apt install nats-server")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = str(listener.getsockname()[1])
    os.environ["NATS_SERVER"] = f"nats://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory() as folder:
        server = subprocess.Popen(
            [program, "-a", "127.0.0.1", "-p", port, "-js", "-sd", folder],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            time.sleep(1.0)
            yield
        finally:
            server.terminate()
            server.wait()


class _Cache:
    """Blocks of a worker, as its publisher tells them."""

    def __init__(self, publisher: Any, block: int) -> None:
        self.publisher = publisher
        self.block = block
        self.blocks: Counter[int] = Counter()

    def store(self, tokens: list[int]) -> None:
        """The worker has all whole blocks of these tokens."""
        hashes = self._hashes(tokens)
        known = sum(1 for block in hashes if self.blocks[block])
        self.blocks.update(hashes)
        if known < len(hashes):
            new = tokens[known * self.block : len(hashes) * self.block]
            sizes = [self.block] * (len(hashes) - known)
            self.publisher.publish_stored(new, sizes, hashes[known:], hashes[known - 1] if known else None)

    def remove(self, tokens: list[int]) -> None:
        """The worker has those blocks no more that nothing else needs."""
        hashes = self._hashes(tokens)
        self.blocks.subtract(hashes)
        gone = [block for block in reversed(hashes) if not self.blocks[block]]
        if gone:
            self.publisher.publish_removed(gone)

    def _hashes(self, tokens: list[int]) -> list[int]:
        """The engine's own names of whole blocks: each says all before it."""
        hashes, digest = [], b""
        for end in range(self.block, len(tokens) + 1, self.block):
            text = repr(tokens[end - self.block : end]).encode()
            digest = hashlib.blake2b(digest + text, digest_size=7).digest()
            hashes.append(int.from_bytes(digest, "little"))
        return hashes


async def _be_heard(router: Any, caches: list[_Cache]) -> None:
    """Let every worker store blocks until the router's index has the latest of each; the first ones may be lost.

    Raises:
        RecordingError: it does not hear of a worker.
    """
    for turn in range(_TRIES):
        first = 0x110000 * (turn + 1)  # No character is one of these tokens.
        for cache in caches:
            cache.store(list(range(first, first + cache.block)))
        await asyncio.sleep(_FINDING_S)
        heard = Counter(event["event"]["dp_rank"] for event in json.loads(await router.dump_events()))
        if turn > 0 and all(heard[rank] >= turn for rank in range(len(caches))):
            return
    raise RecordingError("the router does not hear of every worker's blocks")


async def _record(name: str, case: dict[str, Any]) -> dict[str, Any]:
    """The case with the worker of each prompt, how many of its blocks were known there, and when, in milliseconds."""
    from dynamo import _core as dynamo  # type: ignore[import-not-found]  # only where it is recorded

    segments = [texts.text_of(case["text_rule"], *segment) for segment in case["segments"]]
    prompts = ["".join(segments[index] for index in prompt) for prompt in case["prompts"]]
    runtime = dynamo.DistributedRuntime(asyncio.get_running_loop(), "mem", "tcp")
    endpoint = runtime.endpoint(f"recorded-{name}.backend.generate")
    serving = asyncio.ensure_future(endpoint.serve_endpoint(_never_called))
    await asyncio.sleep(1.0)
    ranks = dynamo.ModelRuntimeConfig()
    ranks.data_parallel_size = case["workers"]
    ranks.total_kv_blocks, ranks.max_num_seqs, ranks.max_num_batched_tokens = _BLOCKS, _RUNNING, _BATCH
    given = {key: value for key, value in case["settings"].items() if key != "block_size"}
    block = case["settings"]["block_size"]
    await dynamo.register_model(
        dynamo.ModelInput.Tensor, dynamo.ModelType.TensorBased, endpoint, "recorded",
        kv_cache_block_size=block, runtime_config=ranks,
    )  # fmt: skip
    config = dynamo.KvRouterConfig(**given, router_queue_threshold=None)
    router = dynamo.KvRouter(endpoint, block, config)
    caches: list[_Cache] = []
    if given["use_kv_events"]:
        await asyncio.sleep(1.0)
        for rank in range(case["workers"]):
            publisher = dynamo.KvEventPublisher(endpoint, kv_block_size=block, dp_rank=rank, enable_local_indexer=True)
            caches.append(_Cache(publisher, block))
        await _be_heard(router, caches)
    sent_to: dict[int, int] = {}
    events: list[list[Any]] = []
    began = time.monotonic()
    for kind, prompt, *_ in case["events"]:
        tokens = [ord(character) for character in prompts[prompt]]
        if kind == "send":
            ms = round((time.monotonic() - began) * 1000, 3)
            _, rank, known = await router.best_worker(tokens, request_id=str(prompt), update_indexer=not caches)
            events.append(["send", prompt, rank, known, ms])
            sent_to[prompt] = rank
        elif kind == "stored":
            caches[sent_to[prompt]].store(tokens)
            events.append(["stored", prompt, sent_to[prompt]])
            await asyncio.sleep(_EVENT_S)
        elif kind == "removed":
            caches[sent_to[prompt]].remove(tokens)
            events.append(["removed", prompt])
            await asyncio.sleep(_EVENT_S)
        else:
            await (router.mark_prefill_complete if kind == "first_token" else router.free)(str(prompt))
            events.append([kind, prompt])
        await asyncio.sleep(_SETTLE_S)
    runtime.shutdown()
    serving.cancel()
    return case | {"router_version": version(), "events": events}


async def _never_called(_request: Any, context: Any = None) -> Any:
    """The workers' handler: they are only chosen."""
    yield {"context": str(context)}
