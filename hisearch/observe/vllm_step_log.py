"""A log of vLLM's engine steps and of its requests, for hisearch: one file, no dependencies but vLLM 0.19 or newer.

Copy this file to the server, and start it with two additions::

    PYTHONPATH=FOLDER_OF_THIS_FILE HISEARCH_STEP_LOG=LOGS vllm serve MODEL ... \
        --scheduler-cls vllm_step_log.StepLogScheduler

Each engine process writes two files to the folder LOGS:

``steps-PID.jsonl``  a line for each step, for ``hisearch calibrate steps``: ``latency_s``, and ``requests`` with the
                     ``new_tokens``, ``cached_tokens`` and ``kind`` of each; besides ``start_s`` (since 1970),
                     ``prompt_tokens``, ``decode_tokens``, ``hit_tokens`` (found in the prefix cache by requests that
                     this step admits), ``context_tokens`` (of all requests, their new ones included), ``running``,
                     ``waiting``, ``preempted`` and ``free_blocks``
``trace-PID.jsonl``  a line for each finished request, in order of arrival, for ``hisearch trace`` and ``hisearch
                     simulate``: arrival, lengths, and names of its KV blocks where prefix caching is on

Numbers alone are written: no prompts, no outputs, no ids of users. Names of blocks are 53 bits of vLLM's hashes.

A step's latency is the time that it adds: with synchronous scheduling from its own scheduling pass to the next, and to
its results where nothing is left to do; with asynchronous scheduling from the end of the step before it, or its own
pass where that is later, to its results.

Lines are formatted and written by a thread of their own, and reach the files within a second or two: what a server
does just before it is killed may be missing. Steps beyond HISEARCH_STEP_LOG_MIB (256) replace the oldest
half, in ``steps-PID.1.jsonl``; the trace ends there. Where anything here fails, that is logged once and switched off:
the server goes on without a log.
"""

from __future__ import annotations

import atexit
import functools
import json
import logging
import os
import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

FOLDER, LIMIT_MIB = "HISEARCH_STEP_LOG", "HISEARCH_STEP_LOG_MIB"
_DEFAULT_FOLDER, _DEFAULT_MIB = "hisearch-step-log", 256.0
#: Names of blocks are integers of 53 bits, which JSON's readers keep.
_BLOCK_NAMES = 1 << 53
#: Seconds between flushes to the files.
_FLUSH_S = 1.0
_logger = logging.getLogger("vllm.hisearch_step_log")


class _File:
    """A file of lines of bounded size; begins anew in a second one, or ends, at the limit."""

    def __init__(self, path: Path, limit_bytes: float, header: str, *, rotates: bool) -> None:
        self.path, self.limit, self.header, self.rotates = path, limit_bytes, header, rotates
        self.bytes, self.is_full = 0, False
        self.out: TextIO = path.open("w", encoding="ascii")
        self._begin()

    def _begin(self) -> None:
        self.bytes = self.out.write(self.header)

    def write(self, line: str) -> None:
        if self.is_full:
            return
        # Rotated logs are two files, each of half the limit.
        if self.bytes + len(line) + 1 > self.limit / (2 if self.rotates else 1):
            if not self.rotates:
                self.is_full = True
                _logger.warning("hisearch step log: %s has reached its limit of %s, and ends", self.path, LIMIT_MIB)
                return
            self.out.close()
            self.path.replace(self.path.with_suffix(".1.jsonl"))
            self.out = self.path.open("w", encoding="ascii")
            self._begin()
        self.bytes += self.out.write(line + "\n")


class _Writer:
    """Formats and writes rows in a thread of its own."""

    def __init__(self, block_tokens: int) -> None:
        folder = Path(os.environ.get(FOLDER) or _DEFAULT_FOLDER)
        folder.mkdir(parents=True, exist_ok=True)
        limit = float(os.environ.get(LIMIT_MIB) or _DEFAULT_MIB) * 2**20
        header = {"format": "hisearch-trace", "version": 1, "block_tokens": block_tokens, "open_loop": True}
        pid = os.getpid()
        self.steps = _File(folder / f"steps-{pid}.jsonl", limit, "", rotates=True)
        self.trace = _File(folder / f"trace-{pid}.jsonl", limit, json.dumps(header) + "\n", rotates=False)
        self.rows: queue.SimpleQueue[tuple[_File, Callable[[], dict[str, Any]]] | None] = queue.SimpleQueue()
        self.is_broken = False
        self.thread = threading.Thread(target=self._run, name="hisearch-step-log", daemon=True)
        self.thread.start()
        atexit.register(self.close)
        _logger.info("hisearch step log: writing %s and %s", self.steps.path, self.trace.path)

    def add(self, file: _File, row: Callable[[], dict[str, Any]]) -> None:
        """Hand a row over; the function makes it, in the thread."""
        if not self.is_broken:
            self.rows.put((file, row))

    def close(self) -> None:
        """Write what is left."""
        if self.thread.is_alive():
            self.rows.put(None)
            self.thread.join(timeout=10)

    def _run(self) -> None:
        try:
            self._write_rows()
        except Exception:  # whatever fails in a log must not end the server that it is loaded into
            self.is_broken = True
            _logger.exception("hisearch step log: switched off, as its files could not be written")

    def _write_rows(self) -> None:
        flushed_s = time.monotonic()
        while True:
            try:
                item = self.rows.get(timeout=_FLUSH_S)
            except queue.Empty:
                is_end, item = False, None
            else:
                is_end = item is None
            if item is not None:
                item[0].write(json.dumps(item[1](), separators=(",", ":")))
            if is_end or item is None or time.monotonic() - flushed_s > _FLUSH_S:
                self.steps.out.flush()
                self.trace.out.flush()
                flushed_s = time.monotonic()
            if is_end:
                return


class _Step:
    """One step, as its scheduling pass left it: plain numbers, since requests go on changing."""

    def __init__(self, scheduler: Any, output: Any, start: float, start_s: float, hits: dict[str, int]) -> None:
        self.start, self.start_s = start, start_s
        new = output.num_scheduled_tokens
        self.shares: list[tuple[int, int, bool]] = []
        for name, tokens in new.items():
            request = scheduler.requests[name]
            cached = request.num_computed_tokens - tokens
            # One token behind the prompt; more, where drafts are checked, are no decode of one token.
            self.shares.append((tokens, cached, tokens == 1 and cached >= request.num_prompt_tokens))
        self.hit_tokens = sum(hits.values())
        self.running, self.waiting = len(scheduler.running), len(scheduler.waiting)
        self.preempted = len(output.preempted_req_ids or ())
        self.free_blocks = scheduler.kv_cache_manager.block_pool.get_num_free_blocks()

    def row(self, latency_s: float) -> dict[str, Any]:
        decodes = sum(decode for _, _, decode in self.shares)
        tokens = sum(new for new, _, _ in self.shares)
        return {
            "start_s": round(self.start_s, 6),
            "latency_s": round(latency_s, 7),
            "prompt_tokens": tokens - decodes,
            "decode_tokens": decodes,
            "hit_tokens": self.hit_tokens,
            "context_tokens": tokens + sum(cached for _, cached, _ in self.shares),
            "running": self.running,
            "waiting": self.waiting,
            "preempted": self.preempted,
            "free_blocks": self.free_blocks,
            "requests": [
                {"new_tokens": new, "cached_tokens": cached, "kind": "decode" if decode else "prefill"}
                for new, cached, decode in self.shares
            ],
        }


class _Log:
    """What the scheduler tells: steps, and requests from their arrival to their end."""

    def __init__(self, scheduler: Any, block_tokens: int, *, asynchronous: bool) -> None:
        self.scheduler, self.block_tokens, self.asynchronous = scheduler, block_tokens, asynchronous
        self.writer = _Writer(block_tokens)
        self.clock_s = time.time() - time.perf_counter()
        #: Steps whose results are to come, by the identity of their output: oldest first.
        self.in_flight: dict[int, _Step] = {}
        #: Synchronous: the last step, until the next pass or the end of all work. Asynchronous: when its results came.
        self.last: _Step | None = None
        self.last_results = 0.0
        self.unstarted: set[str] = set()
        #: Requests in order of arrival -> their row; None while they run.
        self.requests: dict[str, dict[str, Any] | None] = {}
        self.first_s: float | None = None
        self.newest_s = 0.0
        self.count = 0

    def arrived(self, request: Any) -> None:
        self.requests.setdefault(request.request_id, None)
        self.unstarted.add(request.request_id)

    def pass_begins(self, now: float) -> None:
        """The next pass ends the step before it."""
        if self.last is not None:
            self._write(self.last, now - self.last.start)
            self.last = None

    def pass_ended(self, output: Any, start: float) -> None:
        names = self.unstarted.intersection(output.num_scheduled_tokens) if self.unstarted else ()
        self.unstarted.difference_update(names)
        if not output.num_scheduled_tokens:
            return
        hits = {
            name: self.scheduler.requests[name].num_computed_tokens - output.num_scheduled_tokens[name]
            for name in names
        }
        self.in_flight[id(output)] = _Step(self.scheduler, output, start, self.clock_s + start, hits)

    def results_came(self, output: Any, now: float) -> _Step | None:
        step = self.in_flight.pop(id(output), None)
        if step is None:
            return None
        if self.asynchronous or self.in_flight:  # Pipelines have several steps in flight without it.
            self._write(step, now - max(step.start, self.last_results))
            self.last_results = now
            return None
        return step

    def results_done(self, step: _Step, now: float) -> None:
        """Synchronous: the step lasts until the next pass, if one is to follow."""
        if self.scheduler.has_unfinished_requests():
            self.last = step
        else:
            self._write(step, now - step.start)

    def finished(self, request: Any) -> None:
        """Keep the row of a request; write all rows that no running request precedes."""
        name = request.request_id
        self.unstarted.discard(name)
        if name not in self.requests:
            return
        if request.num_output_tokens < 1:  # Nothing came out: not a request to be simulated.
            del self.requests[name]
        else:
            self.requests[name] = self._row(request)
        while self.requests:
            first = next(iter(self.requests))
            row = self.requests[first]
            if row is None:
                break
            del self.requests[first]
            self._write_request(row)

    def close(self) -> None:
        """Write the requests that have ended, without those that still run, and all lines."""
        for row in self.requests.values():
            if row is not None:
                self._write_request(row)
        self.requests.clear()
        self.writer.close()

    def _write(self, step: _Step, latency_s: float) -> None:
        self.writer.add(self.writer.steps, functools.partial(step.row, latency_s))

    def _row(self, request: Any) -> dict[str, Any]:
        inputs, outputs = request.num_prompt_tokens, request.num_output_tokens
        row = {
            "arrival_s": request.arrival_time,
            "input_tokens": inputs,
            "output_tokens": outputs,
            "max_output_tokens": max(request.max_tokens or 0, outputs),
        }
        if request.priority > 0:
            row["priority"] = request.priority
        if self.scheduler.cache_config.enable_prefix_caching:
            hashes = list(request.block_hashes)[: (inputs + outputs) // self.block_tokens]
            row |= {"block_ids": hashes, "known_tokens": len(hashes) * self.block_tokens}
        return row

    def _write_request(self, row: dict[str, Any]) -> None:
        arrival_s = row["arrival_s"]
        self.first_s = arrival_s if self.first_s is None else self.first_s
        # The front end's clock may place requests a little out of the order in which they reached the scheduler.
        self.newest_s = max(self.newest_s, arrival_s - self.first_s)
        row |= {"id": str(self.count), "arrival_s": round(self.newest_s, 6)}
        self.count += 1
        self.writer.add(self.writer.trace, functools.partial(_named, row))


def _named(row: dict[str, Any]) -> dict[str, Any]:
    """The row with its blocks named by numbers."""
    if "block_ids" in row:
        row["block_ids"] = [_name(block) for block in row["block_ids"]]
    return row


def _name(block: Any) -> int:
    """A number of 53 bits for a block's hash, which is bytes or an integer."""
    value = block if isinstance(block, int) else int.from_bytes(bytes(block)[:8], "big")
    return int(value) % _BLOCK_NAMES


class _Logging:
    """Comes before a scheduler of vLLM: lets it work, and tells the log."""

    _log: _Log | None = None

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        with _Guard(self):
            size = named.get("hash_block_size") or named.get("block_size") or self.block_size  # type: ignore[attr-defined]
            asynchronous = isinstance(self, AsyncScheduler)
            self._log = _Log(self, int(size), asynchronous=asynchronous)

    def add_request(self, request: Any) -> None:
        super().add_request(request)  # type: ignore[misc]
        if self._log is not None:
            with _Guard(self):
                self._log.arrived(request)

    def schedule(self, *arguments: Any, **named: Any) -> Any:
        start = time.perf_counter()
        if self._log is not None:
            with _Guard(self):
                self._log.pass_begins(start)
        output = super().schedule(*arguments, **named)  # type: ignore[misc]
        if self._log is not None:
            with _Guard(self):
                self._log.pass_ended(output, start)
        return output

    def update_from_output(self, scheduler_output: Any, *arguments: Any, **named: Any) -> Any:
        step = None
        if self._log is not None:
            with _Guard(self):
                step = self._log.results_came(scheduler_output, time.perf_counter())
        results = super().update_from_output(scheduler_output, *arguments, **named)  # type: ignore[misc]
        if self._log is not None and step is not None:
            with _Guard(self):
                self._log.results_done(step, time.perf_counter())
        return results

    def _free_request(self, request: Any, *arguments: Any, **named: Any) -> Any:
        if self._log is not None:
            with _Guard(self):
                self._log.finished(request)
        return super()._free_request(request, *arguments, **named)  # type: ignore[misc]

    def shutdown(self) -> None:
        if self._log is not None:
            with _Guard(self):
                self._log.close()
        super().shutdown()  # type: ignore[misc]


class _Guard:
    """Lets no error of the log out: the first is logged, and ends the log."""

    def __init__(self, scheduler: _Logging) -> None:
        self.scheduler = scheduler

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: Any) -> bool:
        if kind is None or not issubclass(kind, Exception):
            return False
        self.scheduler._log = None
        _logger.error("hisearch step log: switched off, the server goes on without it", exc_info=error)
        return True


class _Synchronous(_Logging, Scheduler):  # type: ignore[misc]
    """Of servers with ``--no-async-scheduling``."""


class _Asynchronous(_Logging, AsyncScheduler):  # type: ignore[misc]
    """Of servers with ``--async-scheduling``."""


class StepLogScheduler(AsyncScheduler):  # type: ignore[misc]
    """For ``--scheduler-cls``: the scheduler that vLLM would take itself, with a log.

    It is an AsyncScheduler by name, since vLLM turns asynchronous scheduling off for others; it makes the one or the
    other.
    """

    def __new__(cls, *arguments: Any, **named: Any) -> Any:
        """The scheduler that the configuration asks for."""
        config = named["vllm_config"] if "vllm_config" in named else arguments[0]
        return (_Asynchronous if config.scheduler_config.async_scheduling else _Synchronous)(*arguments, **named)
