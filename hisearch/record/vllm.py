"""What the scheduler of vLLM 0.19 to 0.33 decides: its v1 ``Scheduler`` and KV cache manager, run against a clock.

No weights, no GPU, no download: a stub model of one layer gives the configuration, and a model runner that only
advances the clock gives the tokens. Versions are told apart by what they offer.
"""

from __future__ import annotations

import inspect
import json
import os
import random
import tempfile
from collections import deque
from functools import cache
from pathlib import Path
from typing import Any

from hisearch.record import vllm_lmcache, vllm_offload
from hisearch.record.cases import LAW, Case, CaseError, EngineError, Setting, step_latency_s
from hisearch.record.vllm_random import random_case, random_lmcache_case, random_offload_case, random_window_case
from hisearch.record.workload import END_TOKEN, Row, token_texts

VERSIONS = ((0, 19), (0, 33))
#: vLLM's own names -> how a recording names them.
_INTEGER, _FLAG = ((int,), "an integer"), ((bool,), "true or false")
SETTINGS = {
    "max_num_seqs": Setting("max_num_seqs", *_INTEGER, required=True, least=1),
    "max_num_batched_tokens": Setting("max_tokens", *_INTEGER, required=True, least=1),
    "num_gpu_blocks_override": Setting("num_blocks", (int,), "an integer, 2 or more", required=True, least=2),
    "block_size": Setting("block_size", *_INTEGER, required=True, least=1),
    "enable_prefix_caching": Setting("prefix", *_FLAG, default=True),
    "enable_chunked_prefill": Setting("chunked_prefill", *_FLAG, default=True),
    "policy": Setting("policy", (str,), "fcfs or priority", default="fcfs", choices=("fcfs", "priority")),
    "long_prefill_token_threshold": Setting("long_prefill_token_threshold", *_INTEGER, default=0),
    "long_prefill_token_threshold_adaptive": Setting("long_prefill_token_threshold_adaptive", *_FLAG, default=False),
    "scheduler_reserve_full_isl": Setting("scheduler_reserve_full_isl", *_FLAG, default=True),
    "async_scheduling": Setting("async_scheduling", *_FLAG, default=False),
    "max_model_len": Setting("max_model_len", *_INTEGER, default=65536, least=2),
    "watermark": Setting("watermark", (float, int), "a number from 0 to 1", default=0.0),
    "sliding_window": Setting("sliding_window", *_INTEGER, default=0),
    "hybrid_window": Setting("hybrid_window", *_INTEGER, default=0),
    "prefix_cache_retention_interval": Setting(
        "prefix_cache_retention_interval", (int, type(None)), "an integer or null", default=None
    ),
    "offload": Setting("offload", (dict,), "a mapping", default={}),
}
#: Settings under the same name in a recording and as an argument of vLLM's ``SchedulerConfig``.
_SCHEDULER_KEYS = (
    "policy", "long_prefill_token_threshold", "scheduler_reserve_full_isl", "async_scheduling", "watermark",
    "long_prefill_token_threshold_adaptive",
)  # fmt: skip
BLOCK_KEY = "block_size"
#: Passes without a batch at the same clock, after which only an arrival can change anything.
IDLE_PASSES = 100
#: Steps without a request's end after which requests are taken to preempt each other for ever, as vLLM lets them.
STALLED_STEPS = 20_000
_MODEL = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 32000, "torch_dtype": "float16",
    "hidden_size": 64, "intermediate_size": 64, "head_dim": 64, "num_attention_heads": 1, "num_key_value_heads": 1,
    "num_hidden_layers": 1, "max_position_embeddings": 2**24,
}  # fmt: skip


@cache
def version() -> str:
    """The installed vLLM's version.

    Raises:
        EngineError: not installed, or not one that this module knows.
    """
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    try:
        import vllm
    except ImportError as error:
        raise EngineError(
            f"vLLM cannot be imported ({error}): run this with the Python of an environment that has vLLM"
        ) from None
    text = str(vllm.__version__)
    release = tuple(int(part) for part in text.split(".")[:2] if part.isdigit())
    if not VERSIONS[0] <= release <= VERSIONS[1]:
        first, last = (".".join(map(str, ends)) for ends in VERSIONS)
        raise EngineError(f"vLLM {text} is installed; expected a version from {first} to {last}")
    return text


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
        "step_latency_s": LAW,
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


def _is_lmcache(settings: dict[str, Any]) -> bool:
    return bool(settings.get("offload", {}).get("connector") == "lmcache")


def _check(case: Case) -> None:
    has_other = case.settings.get("offload") and not _is_lmcache(case.settings)
    if has_other and case.settings.get("async_scheduling") and not vllm_offload.has_new_worker():
        raise CaseError(f"{case.source}: {case.name}: offload: vLLM 0.19 is recorded with synchronous scheduling alone")
    usable = (case.settings["num_blocks"] - 1) * case.settings["block_size"]
    longest = min(usable, case.settings.get("max_model_len", 65536) - 1)
    for row in case.requests:
        if row["input_tokens"] + row["output_tokens"] > longest:
            raise CaseError(
                f"{case.source}: {case.name}: request {row['id']}: its {row['input_tokens']} + {row['output_tokens']} "
                f"tokens never fit; expected at most {longest} (blocks of the pool, max_model_len)"
            )


#: What a random case may have beside the settings of every case.
FEATURES = {"lmcache": random_lmcache_case, "offload": random_offload_case, "windows": random_window_case}


def draw(rng: random.Random, feature: str | None = None) -> tuple[dict[str, Any], list[Row], int]:
    """Settings, requests and block size of a random case, without settings that the installed vLLM does not have.

    Args:
        rng: for all that is drawn.
        feature: of ``FEATURES``; None: neither a connector nor windows.
    """
    version()
    from vllm.config import SchedulerConfig

    settings, rows, block_tokens = (FEATURES[feature] if feature else random_case)(rng)
    for key in ("watermark", "long_prefill_token_threshold_adaptive"):
        if key not in inspect.signature(SchedulerConfig).parameters:
            del settings[key]
    if not _has_retention():
        settings.pop("prefix_cache_retention_interval", None)
    if feature == "offload" and not vllm_offload.has_new_worker():
        settings["async_scheduling"] = False
    return settings, rows, block_tokens


def _has_retention() -> bool:
    from vllm.v1.kv_cache_interface import KVCacheConfig

    return "prefix_cache_retention_interval" in inspect.signature(KVCacheConfig).parameters


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
        if _is_lmcache(case.settings):
            self.lmcache = vllm_lmcache.Worker(self.scheduler, vllm_lmcache.checked(offload, block_tokens))
        elif offload:
            offload = vllm_offload.checked(offload)
            self.worker = vllm_offload.Worker(self.scheduler, offload, block_tokens, self.finish_s)
        self.rows = {str(row["id"]): row for row in case.requests}
        self.texts = {str(name): text for name, text in token_texts(case.requests, case.settings[BLOCK_KEY]).items()}
        self.waiting = deque(case.requests)
        self.clock = self.device_free_s = 0.0
        self.outstanding: deque[tuple[Any, list[str], dict[str, Any], float]] = deque()
        self.steps: list[dict[str, Any]] = []
        self.first_token_s: dict[str, float] = {}

    def run(self) -> None:
        """Passes until every request has finished, and its copies have ended where the engine waits for them."""
        depth = 2 if self.asynchronous else 1
        idle, finished, steps = 0, 0, 0
        while len(self.finish_s) < len(self.rows) or self._copies():
            if len(self.finish_s) > finished:
                finished, steps = len(self.finish_s), len(self.steps)
            if len(self.steps) > steps + STALLED_STEPS:
                raise RuntimeError(f"no request ended in {STALLED_STEPS} steps: requests preempt each other for ever")
            while self.waiting and self.waiting[0]["arrival_s"] <= self.clock:
                self.scheduler.add_request(self._request(self.waiting.popleft()))
            if self.scheduler.has_requests():
                self._pass()
            # A pass without a batch takes its place in the queue too; what it noted is taken in when it is served.
            executing = any(output.num_scheduled_tokens for output, *_ in self.outstanding)
            if self.outstanding and (len(self.outstanding) == depth or not self.scheduler.has_requests()):
                self._process(*self.outstanding.popleft())
            idle = 0 if executing else idle + 1
            if executing or (idle < IDLE_PASSES and self.scheduler.has_requests()):
                continue  # The engine passes again at once: what a pass preempted, the next may admit.
            if (event_s := self._next_event_s()) is not None:
                self.clock, idle = event_s, 0
            elif len(self.finish_s) < len(self.rows):
                raise RuntimeError(f"no batch can be formed at {self.clock} s, and no request is to come")
            else:
                return

    def _copies(self) -> bool:
        """Whether the engine passes on for copies alone."""
        return self.worker is not None and self.worker.has_new and bool(self.scheduler.has_requests())

    def _next_event_s(self) -> float | None:
        """When the next request arrives or the next copy ends."""
        events = [self.waiting[0]["arrival_s"]] if self.waiting else []
        events += [] if self.worker is None else self.worker.ends_s()
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
        end_s = self._launch(output, batch, formed_s) if new else self.clock
        copied: dict[str, Any] = {}
        if self.worker is not None:
            copied = {"kv_connector_output": self.worker.step(output, bool(new), self.device_free_s)}
        sampling = [request.request_id for request in requests if not request.is_prefill_chunk]
        self.outstanding.append((output, sampling, copied, end_s))

    def _launch(self, output: Any, batch: list[tuple[Any, int, int]], formed_s: float) -> float:
        """Queue a batch, formed at ``formed_s``, on the device; when it ends."""
        start_s = max(self.clock, self.device_free_s)
        step: dict[str, Any] = {"start_s": round(start_s, 9)}
        if self.asynchronous:
            step["scheduled_s"] = round(formed_s, 9)
        step["batch"] = [list(entry) for entry in batch]
        step["preempted"] = sorted(self.rows[name]["id"] for name in output.preempted_req_ids or ())
        self.steps.append(step)
        if self.lmcache is None:
            self.device_free_s = start_s + step_latency_s(batch)
        else:
            self.device_free_s, held_s = self.lmcache.run(output, start_s, step_latency_s(batch))
            self.clock = self.clock if held_s is None else held_s
        return self.device_free_s

    def _process(self, output: Any, sampling: list[str], copied: dict[str, Any], end_s: float) -> None:
        # A scheduler that was held beyond the step's end takes in its results when it is not held any more.
        self.clock = end_s = max(self.clock, end_s)
        names = list(output.num_scheduled_tokens)
        chosen = set(sampling)
        sampled = [[self._next_token(name)] if name in chosen else [] for name in names]
        results = self.scheduler.update_from_output(output, model_output(names, sampled, **copied))
        for group in results.values():
            for result in group.outputs:
                name = str(result.request_id)
                if result.new_token_ids:
                    self.first_token_s.setdefault(name, round(end_s, 9))
                if result.finish_reason is not None:
                    self.finish_s[name] = round(end_s, 9)

    def _next_token(self, name: str) -> int:
        """The token that a request generates; END_TOKEN where it ends before its declared limit."""
        request, row = self.scheduler.requests.get(name), self.rows[name]
        if request is None or request.num_tokens >= len(self.texts[name]):
            return END_TOKEN + 1  # Finished while its last step was in flight: nobody reads the token.
        last = request.num_output_tokens + 1 == row["output_tokens"]
        if last and row.get("max_output_tokens", row["output_tokens"]) > row["output_tokens"]:
            return END_TOKEN
        return self.texts[name][int(request.num_tokens)]

    def _request(self, row: Row) -> Any:
        from vllm.sampling_params import SamplingParams
        from vllm.v1.request import Request

        limit = row.get("max_output_tokens")
        parameters = SamplingParams(max_tokens=limit or row["output_tokens"], ignore_eos=limit is None)
        if limit is not None:
            parameters._eos_token_id = END_TOKEN
        name = str(row["id"])
        return Request(
            request_id=name, prompt_token_ids=self.texts[name][: row["input_tokens"]], sampling_params=parameters,
            pooling_params=None, arrival_time=row["arrival_s"], priority=row.get("priority", 0),
            block_hasher=self.hasher,
        )  # fmt: skip


def model_output(names: list[str], sampled: list[list[int]], **more: Any) -> Any:
    """What a model runner hands back: the tokens sampled, none for a request whose prompt is not yet done."""
    from vllm.v1.outputs import ModelRunnerOutput

    return ModelRunnerOutput(
        req_ids=names, req_id_to_index={name: index for index, name in enumerate(names)}, sampled_token_ids=sampled,
        **more,
    )  # fmt: skip


def make_scheduler(settings: dict[str, Any]) -> tuple[Any, Any]:
    """The engine's scheduler with these settings, and its function that names the blocks of a request.

    Args:
        settings: by their names in a recording.
    """
    from vllm.config import CacheConfig, DeviceConfig, SchedulerConfig, VllmConfig
    from vllm.v1.core import kv_cache_utils
    from vllm.v1.structured_output import StructuredOutputManager

    prefix, max_model_len = settings.get("prefix", True), settings.get("max_model_len", 65536)
    arguments: dict[str, Any] = {
        "max_num_seqs": settings["max_num_seqs"], "max_num_batched_tokens": settings["max_tokens"],
        "enable_chunked_prefill": settings.get("chunked_prefill", True), "max_model_len": max_model_len,
        "is_encoder_decoder": False, "async_scheduling": False,
    }  # fmt: skip
    arguments |= {key: settings[key] for key in _SCHEDULER_KEYS if key in settings}
    known = inspect.signature(SchedulerConfig).parameters
    for key in set(arguments) - set(known):
        if arguments.pop(key) != SETTINGS[key].default:
            raise CaseError(f"{key}: vLLM {version()} has no such setting; leave it out of the case")
    model = _model()
    model.max_model_len = max_model_len
    cache_config, more = _kv_cache_config(settings), {}
    if settings.get("offload"):
        page_bytes = cache_config.kv_cache_groups[0].kv_cache_spec.page_size_bytes
        if _is_lmcache(settings):
            offload = vllm_lmcache.checked(settings["offload"], settings["block_size"])
            more = vllm_lmcache.connector_config(offload, page_bytes, settings["block_size"], version())
        else:
            offload = vllm_offload.checked(settings["offload"])
            more = vllm_offload.connector_config(offload, settings["block_size"], page_bytes)
    config = VllmConfig(
        model_config=model, scheduler_config=SchedulerConfig(**arguments), device_config=DeviceConfig(device="cpu"),
        cache_config=CacheConfig(block_size=settings["block_size"], enable_prefix_caching=prefix), **more,
    )  # fmt: skip
    config.cache_config.num_gpu_blocks = settings["num_blocks"]
    sizes = {"block_size": settings["block_size"]}
    if hasattr(kv_cache_utils, "resolve_kv_cache_block_sizes"):
        sizes["block_size"], sizes["hash_block_size"] = kv_cache_utils.resolve_kv_cache_block_sizes(
            cache_config, config
        )
    hashing = _hash_function(config.cache_config.prefix_caching_hash_algo)
    kv_cache_utils.init_none_hash(hashing)
    block_tokens = sizes.get("hash_block_size", sizes["block_size"])
    hasher = kv_cache_utils.get_request_block_hasher(block_tokens, hashing) if prefix or more else None
    scheduler_class = config.scheduler_config.get_scheduler_cls()
    scheduler = scheduler_class(
        vllm_config=config, kv_cache_config=cache_config, log_stats=False,
        structured_output_manager=StructuredOutputManager(config), **sizes,
    )  # fmt: skip
    return scheduler, hasher


def _kv_cache_config(settings: dict[str, Any]) -> Any:
    import torch
    from vllm.v1.kv_cache_interface import (
        FullAttentionSpec,
        KVCacheConfig,
        KVCacheGroupSpec,
        KVCacheTensor,
        SlidingWindowSpec,
    )

    shape = {"block_size": settings["block_size"], "num_kv_heads": 1, "head_size": 64, "dtype": torch.float16}
    specs: list[Any] = []
    if not settings.get("sliding_window"):
        specs.append(FullAttentionSpec(**shape))
    window = settings.get("sliding_window") or settings.get("hybrid_window")
    if window:
        specs.append(SlidingWindowSpec(sliding_window=window, **shape))
    groups = [KVCacheGroupSpec([f"layer{index}"], spec) for index, spec in enumerate(specs)]
    tensors = []
    if settings.get("offload") and not _is_lmcache(settings) and not vllm_offload.has_new_worker():
        # The host's blocks are counted from the tensors' pages.
        size = settings["num_blocks"] * specs[0].page_size_bytes
        tensors.append(KVCacheTensor(size=size, shared_by=groups[0].layer_names))
    more: dict[str, Any] = {}
    if (interval := settings.get("prefix_cache_retention_interval")) is not None:
        if not _has_retention():
            raise CaseError(f"prefix_cache_retention_interval: vLLM {version()} has no such setting")
        more["prefix_cache_retention_interval"] = interval
    return KVCacheConfig(num_blocks=settings["num_blocks"], kv_cache_tensors=tensors, kv_cache_groups=groups, **more)


def _hash_function(name: str) -> Any:
    from vllm.utils.hashing import get_hash_fn_by_name

    return get_hash_fn_by_name(name)


@cache
def _model() -> Any:
    from vllm.config import ModelConfig

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(_MODEL))
        return ModelConfig(
            model=folder, tokenizer=folder, skip_tokenizer_init=True, dtype="float16", max_model_len=65536
        )
