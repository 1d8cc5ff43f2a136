"""What the scheduler of vLLM 0.19 to 0.33 decides: its v1 ``Scheduler`` and KV cache manager, run against a clock.

A model runner that only advances the clock gives the tokens (``vllm_scheduler`` sets the engine's classes up).
"""

from __future__ import annotations

import inspect
import random
from collections import deque
from typing import Any

from hisearch.record import drafts, vllm_adapters, vllm_drafts, vllm_grammars, vllm_lmcache, vllm_offload
from hisearch.record.adapters import checked_lora
from hisearch.record.cases import LAW, Case, CaseError, step_latency_s
from hisearch.record.grammars import checked_structured
from hisearch.record.vllm_random import (
    random_case,
    random_context_case,
    random_lmcache_case,
    random_offload_case,
    random_state_case,
    random_window_case,
)
from hisearch.record.vllm_scheduler import (
    BLOCK_KEY,
    SETTINGS,
    exports_checkpoints,
    has_retention,
    is_lmcache,
    make_scheduler,
    version,
)
from hisearch.record.workload import END_TOKEN, Row, token_texts

__all__ = ["BLOCK_KEY", "SETTINGS", "draw", "record", "version"]

#: Steps without a request's end after which requests are taken to preempt each other for ever, as vLLM lets them.
STALLED_STEPS = 20_000


def record(case: Case) -> dict[str, Any]:
    """Run the scheduler on a case.

    Returns:
        The recording, in the form that ``hisearch validate scheduler`` reads.
    """
    engine = version()
    _check(case)
    run = _Run(case)
    run.run()
    kind = "asynchronous" if run.asynchronous else "synchronous"
    config = {
        setting.key: case.settings[setting.key]
        for setting in SETTINGS.values()
        if setting.key in case.settings and (setting.required or case.settings[setting.key] != setting.default)
    }
    recording: dict[str, Any] = {
        "engine": f"vllm {engine} (v1 scheduler and KV cache manager, {kind} scheduling)",
        "config": config,
        "step_latency_s": LAW if run.drafts is None else drafts.LAW,
        "requests": case.requests,
        "steps": run.steps,
        "first_token_s": run.first_token_s,
        "finish_s": run.finish_s,
    }
    if run.worker is not None:
        copied = {"stored_tokens": run.worker.to_host.tokens, "loaded_tokens": run.worker.to_device.tokens}
        recording |= copied | {"engine": f"vllm {engine} (v1 scheduler, OffloadingConnector scheduler and worker side)"}
    if run.lmcache is not None:
        copies = run.lmcache.copies
        recording |= {"stored_tokens": copies.stored_tokens, "loaded_tokens": copies.loaded_tokens}
        recording["engine"] = f"vllm {engine} (v1 scheduler, LMCache {vllm_lmcache.install(engine)}, {kind} scheduling)"
    return recording


def _check(case: Case) -> None:
    has_other = case.settings.get("offload") and not is_lmcache(case.settings)
    if has_other and case.settings.get("async_scheduling") and not vllm_offload.has_new_worker():
        raise CaseError(f"{case.source}: {case.name}: offload: vLLM 0.19 is recorded with synchronous scheduling alone")
    if case.settings.get("speculation") and (problem := drafts.problem(case.settings["speculation"])):
        raise CaseError(f"{case.source}: {case.name}: {problem}")
    for column, setting in (("adapter", "lora"), ("grammar", "structured")):
        named = any(column in row for row in case.requests)
        if named != bool(case.settings.get(setting)):
            raise CaseError(
                f"{case.source}: {case.name}: {setting}: expected with requests that name a {column}, and with them "
                "alone"
            )
        for key in _ALONE + ("lora",) * (setting == "structured"):
            if case.settings.get(setting) and case.settings.get(key):
                raise CaseError(f"{case.source}: {case.name}: {setting} beside {key} is not recorded")
    ranks = case.settings.get("decode_context_parallel_size", 1)
    usable = (case.settings["num_blocks"] - 1) * case.settings["block_size"] * ranks
    longest = min(usable, case.settings.get("max_model_len", 65536) - 1)
    for row in case.requests:
        if row["input_tokens"] + row["output_tokens"] > longest:
            raise CaseError(
                f"{case.source}: {case.name}: request {row['id']}: its {row['input_tokens']} + {row['output_tokens']} "
                f"tokens never fit; expected at most {longest} (blocks of the pool, max_model_len)"
            )


#: Settings beside which adapters and grammars are not recorded.
_ALONE = (
    "offload", "speculation", "sliding_window", "hybrid_window", "mamba_groups", "decode_context_parallel_size",
)  # fmt: skip

#: What a random case may have beside the settings of every case.
FEATURES = {
    "adapters": vllm_adapters.random_adapter_case, "context": random_context_case,
    "drafts": vllm_drafts.random_draft_case, "grammars": vllm_grammars.random_grammar_case,
    "lmcache": random_lmcache_case,
    "offload": random_offload_case, "states": random_state_case, "windows": random_window_case,
}  # fmt: skip


def draw(rng: random.Random, feature: str | None = None) -> tuple[dict[str, Any], list[Row], int]:
    """Settings, requests and block size of a random case, without settings that the installed vLLM does not have.

    Args:
        rng: for all that is drawn.
        feature: of ``FEATURES``; None: none of them.
    """
    version()
    from vllm.config import SchedulerConfig

    settings, rows, block_tokens = (FEATURES[feature] if feature else random_case)(rng)
    for key in ("watermark", "long_prefill_token_threshold_adaptive"):
        if key not in inspect.signature(SchedulerConfig).parameters:
            del settings[key]
    if not has_retention():
        settings.pop("prefix_cache_retention_interval", None)
    if feature == "states" and not exports_checkpoints():
        del settings["mamba_prefill_checkpoints"]
        if settings["prefix"] and settings["long_prefill_token_threshold"]:
            # Chunks had to hold a block.
            settings["long_prefill_token_threshold"] = max(settings["long_prefill_token_threshold"], block_tokens)
    if feature == "offload" and not vllm_offload.has_new_worker():
        settings["async_scheduling"] = False
    return settings, rows, block_tokens


class _Run:
    """One case: the scheduler, the clock, and what was seen."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.asynchronous = bool(case.settings.get("async_scheduling", False))
        self.scheduler, self.hasher = make_scheduler(case.settings)
        self.finish_s: dict[str, float] = {}
        offload, block_tokens = case.settings.get("offload", {}), case.settings[BLOCK_KEY]
        self.worker: vllm_offload.Worker | None = None
        self.lmcache: vllm_lmcache.Worker | None = None
        if is_lmcache(case.settings):
            self.lmcache = vllm_lmcache.Worker(self.scheduler, vllm_lmcache.checked(offload, block_tokens))
        elif offload:
            offload = vllm_offload.checked(offload)
            self.worker = vllm_offload.Worker(self.scheduler, offload, block_tokens, self.finish_s)
        self.rows = {str(row["id"]): row for row in case.requests}
        speculation = case.settings.get("speculation")
        self.drafts = vllm_drafts.Drafts(speculation, list(self.rows)) if speculation else None
        self.slots = None
        if case.settings.get("lora"):
            self.slots = vllm_adapters.Slots(checked_lora("vllm", case.settings["lora"]))
        self.grammars = None
        if case.settings.get("structured"):
            laws = checked_structured(case.settings["structured"], case.requests)
            manager = self.scheduler.structured_output_manager
            self.grammars = vllm_grammars.Grammars(laws, manager, lambda: self.clock)
        self.texts = {str(name): text for name, text in token_texts(case.requests, case.settings[BLOCK_KEY]).items()}
        self.waiting = deque(case.requests)
        self.clock = self.device_free_s = 0.0
        self.changed = False
        self.outstanding: deque[tuple[Any, list[str], dict[str, Any], float]] = deque()
        self.steps: list[dict[str, Any]] = []
        self.first_token_s: dict[str, float] = {}

    def run(self) -> None:
        """Passes until every request has finished, and its copies have ended where the engine waits for them.

        An engine without a batch passes again every millisecond. Here it does so at the next event, unless a pass
        changed something: repeated passes would count look-ups of blocked requests, as often as the clock says.
        """
        depth = 2 if self.asynchronous else 1
        finished, steps = 0, 0
        while len(self.finish_s) < len(self.rows) or self._copies():
            if len(self.finish_s) > finished:
                finished, steps = len(self.finish_s), len(self.steps)
            if len(self.steps) > steps + STALLED_STEPS:
                raise RuntimeError(f"no request ended in {STALLED_STEPS} steps: requests preempt each other for ever")
            while self.waiting and self.waiting[0]["arrival_s"] <= self.clock:
                self._add(self.waiting.popleft())
            self.changed = False
            if self.scheduler.has_requests():
                self._pass()
            # A pass without a batch takes its place in the queue too; what it noted is taken in when it is served.
            executing = any(output.num_scheduled_tokens for output, *_ in self.outstanding)
            if self.outstanding and (len(self.outstanding) == depth or not self.scheduler.has_requests()):
                self._process(*self.outstanding.popleft())
            changed = self.changed or any(_has_notes(copied) for _, _, copied, _ in self.outstanding)
            if executing or (changed and self.scheduler.has_requests()):
                continue  # What a pass preempted or noted, the next may admit.
            if (event_s := self._next_event_s()) is not None:
                self.clock = event_s
            elif len(self.finish_s) < len(self.rows):
                raise RuntimeError(f"no batch can be formed at {self.clock} s, and no request is to come")
            else:
                return

    def _add(self, row: Row) -> None:
        request = self._request(row)
        if self.grammars is not None:
            self.grammars.begin(request, row["arrival_s"])
        self.scheduler.add_request(request)

    def _copies(self) -> bool:
        """Whether the engine passes on for copies alone."""
        return self.worker is not None and self.worker.has_new and bool(self.scheduler.has_requests())

    def _next_event_s(self) -> float | None:
        """When the next request arrives, or the next copy or compilation ends."""
        events = [self.waiting[0]["arrival_s"]] if self.waiting else []
        events += [] if self.worker is None else self.worker.ends_s()
        if self.grammars is not None and (ready_s := self.grammars.threads.next_s(self.clock)) is not None:
            events.append(ready_s)
        return min((event_s for event_s in events if event_s > self.clock), default=None)

    def _pass(self) -> None:
        """Form a batch, if there is one, and queue it on the device."""
        output, formed_s = self.scheduler.schedule(), self.clock
        new = output.num_scheduled_tokens
        if self.worker is not None:
            self.clock = self.worker.flush(output.kv_connector_metadata, self.clock, self.device_free_s)
        requests = [self.scheduler.requests[name] for name in new]
        batch = [
            (self.rows[r.request_id]["id"], r.num_computed_tokens - new[r.request_id], new[r.request_id])
            for r in requests
        ]
        more_s = self.slots.apply(requests, new) if new and self.slots is not None else 0.0
        host_s = self.grammars.host_s(requests) if self.grammars is not None else 0.0
        end_s = self._launch(output, batch, formed_s, more_s, host_s) if new else self.clock
        copied: dict[str, Any] = {}
        if self.worker is not None:
            copied = {"kv_connector_output": self.worker.step(output, bool(new), self.device_free_s)}
        self.changed = bool(output.preempted_req_ids) or (self.worker is not None and self.worker.has_unsubmitted())
        sampling = [request.request_id for request in requests if not request.is_prefill_chunk]
        self.outstanding.append((output, sampling, copied, end_s))

    def _launch(
        self, output: Any, batch: list[tuple[Any, int, int]], formed_s: float, more_s: float, host_s: float
    ) -> float:
        """Queue a batch, formed at ``formed_s``, on the device; when it ends.

        It waits ``more_s`` for adapters, and takes no less than the host needs for grammars, ``host_s``.
        """
        start_s = max(self.clock, self.device_free_s)
        step: dict[str, Any] = {"start_s": round(start_s, 9)}
        if self.asynchronous:
            step["scheduled_s"] = round(formed_s, 9)
        step["batch"] = [list(entry) for entry in batch]
        step["preempted"] = sorted(self.rows[name]["id"] for name in output.preempted_req_ids or ())
        self.steps.append(step)
        if self.drafts is not None:
            self.device_free_s = start_s + drafts.step_latency_s(batch)
        elif self.lmcache is None:
            self.device_free_s = start_s + max(step_latency_s(batch) + more_s, host_s)
        else:
            self.device_free_s, held_s = self.lmcache.run(output, start_s, step_latency_s(batch))
            self.clock = self.clock if held_s is None else held_s
        return self.device_free_s

    def _process(self, output: Any, sampling: list[str], copied: dict[str, Any], end_s: float) -> None:
        # A scheduler that was held beyond the step's end takes in its results when it is not held any more.
        self.clock = end_s = max(self.clock, end_s)
        self.changed |= _has_notes(copied)
        names = list(output.num_scheduled_tokens)
        chosen = set(sampling)
        sampled = [self._next_tokens(name, output) if name in chosen else [] for name in names]
        results = self.scheduler.update_from_output(output, model_output(names, sampled, **copied))
        if self.drafts is not None and not self.asynchronous:
            self.drafts.hand_in(self.scheduler, names)
        for group in results.values():
            for result in group.outputs:
                name = str(result.request_id)
                if result.new_token_ids:
                    self.first_token_s.setdefault(name, round(end_s, 9))
                if result.finish_reason is not None:
                    self.finish_s[name] = round(end_s, 9)

    def _next_tokens(self, name: str, output: Any) -> list[int]:
        """The tokens that a step makes for a request: one, and as many as it accepts of its drafts."""
        request, accepted = self.scheduler.requests.get(name), 0
        if self.drafts is not None and request is not None and name not in self.drafts.padded(output):
            offered = len(output.scheduled_spec_decode_tokens.get(name, ()))
            accepted = self.drafts.accepted(name, request.num_output_tokens, offered)
        return [self._token(name, place) for place in range(accepted + 1)]

    def _token(self, name: str, place: int) -> int:
        """The ``place``-th of a request's next tokens; END_TOKEN where it ends before its declared limit."""
        request, row = self.scheduler.requests.get(name), self.rows[name]
        if request is None or request.num_tokens + place >= len(self.texts[name]):
            return END_TOKEN + 1  # Finished while its last step was in flight: nobody reads the token.
        last = request.num_output_tokens + place + 1 == row["output_tokens"]
        if last and row.get("max_output_tokens", row["output_tokens"]) > row["output_tokens"]:
            return END_TOKEN
        return self.texts[name][int(request.num_tokens) + place]

    def _request(self, row: Row) -> Any:
        from vllm.sampling_params import SamplingParams
        from vllm.v1.request import Request

        limit = row.get("max_output_tokens")
        parameters = SamplingParams(
            max_tokens=limit or row["output_tokens"], ignore_eos=limit is None,
            structured_outputs=vllm_grammars.structured_parameters(row.get("grammar")),
        )  # fmt: skip
        if limit is not None:
            parameters._eos_token_id = END_TOKEN
        name = str(row["id"])
        return Request(
            request_id=name, prompt_token_ids=self.texts[name][: row["input_tokens"]], sampling_params=parameters,
            pooling_params=None, arrival_time=row["arrival_s"], priority=row.get("priority", 0),
            block_hasher=self.hasher, lora_request=vllm_adapters.lora_request(row.get("adapter")),
        )  # fmt: skip


def _has_notes(copied: dict[str, Any]) -> bool:
    """Whether the engine is told of a copy that ended."""
    return any(not output.is_empty() for output in copied.values())


def model_output(names: list[str], sampled: list[list[int]], **more: Any) -> Any:
    """What a model runner hands back: the tokens sampled, none for a request whose prompt is not yet done."""
    from vllm.v1.outputs import ModelRunnerOutput

    return ModelRunnerOutput(
        req_ids=names, req_id_to_index={name: index for index, name in enumerate(names)}, sampled_token_ids=sampled,
        **more,
    )  # fmt: skip
