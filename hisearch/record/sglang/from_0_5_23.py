"""SGLang 0.5.23: its scheduler without devices, processes and weights, on the Python core of its radix tree."""

# mypy: allow-untyped-defs, no-warn-unused-ignores, disable-error-code="has-type,var-annotated,func-returns-value"

from __future__ import annotations

from array import array
from types import SimpleNamespace
from typing import Any

from hisearch.record.sglang import hicache_0_5_23
from hisearch.record.sglang.drafts import write_slots
from hisearch.record.sglang.scheduler import OrderedSet, Recording
from hisearch.record.sglang.settings import CONTEXT_TOKENS, Ignored, arguments, block_tokens, pool_tokens
from hisearch.record.sglang.states import has_states, request_slots
from hisearch.record.sglang.timeline import Ticks, Timeline
from hisearch.record.sglang.windows import has_windows, window_pools


def id_sequence(tokens: list[int]) -> array[int]:
    """How requests hold their tokens."""
    return array("q", tokens)


def build(config: dict[str, Any], timeline: Timeline, vocabulary: int) -> Any:
    """The scheduler, ready to run.

    Args:
        config: a case's settings.
        timeline: the clock.
        vocabulary: number of token ids.
    """
    from sglang.srt.managers import schedule_batch, schedule_policy, scheduler
    from sglang.srt.managers.scheduler_components.batch_result_processor import SchedulerBatchResultProcessor
    from sglang.srt.managers.scheduler_components.new_token_ratio_tracker import NewTokenRatioTracker
    from sglang.srt.managers.scheduler_components.recv_skipper import SchedulerRecvSkipper
    from sglang.srt.runtime_context import get_context, get_parallel, get_server_args
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    chosen = arguments(config)
    chosen.pop("disable_hicache_numa_detect", None)
    chosen["pp_max_micro_batch_size"] = chosen["max_running_requests"]
    get_context().override_server_args(**chosen).install()
    get_parallel().override_permanently(**dict.fromkeys(_RANKS, 0), **dict.fromkeys(_GROUPS))
    ticks = Ticks(timeline)
    _replace_time(ticks)
    schedule_policy.set = OrderedSet

    if config.get("speculation") is not None:
        from sglang.srt.mem_cache import allocation

        allocation.assign_req_to_token_pool_func = write_slots
    if config.get("hicache") is not None:
        hicache_0_5_23.install_laws(config["hicache"], timeline, ticks)

    class RecordingScheduler(Recording, scheduler.Scheduler):  # type: ignore[misc, name-defined]
        """The engine's own scheduler; what is replaced talks to devices, processes or people."""

        def __init__(self) -> None:
            self.server_args = get_server_args()
            self.timeline = timeline
            self.pending = {}
            for name, value in _ATTRIBUTES.items():
                setattr(self, name, value)
            for name in _COMPONENTS:
                setattr(self, name, Ignored())
            self.metrics_reporter.num_generated_tokens = self.metrics_reporter.forward_ct_decode = 0
            keep = _first_argument
            self.dp_attn_adapter = SimpleNamespace(
                maybe_prepare_mlp_sync_batch=keep, maybe_convert_decode_to_extend=keep
            )
            self.ngram_embedding_manager = SimpleNamespace(prepare_for_forward=keep)
            self.beam_coordinator = SimpleNamespace(pending_member_rows=lambda _: 0, commit_decode=lambda _: ())
            self.spec_algorithm = SpeculativeAlgorithm.from_string(chosen.get("speculative_algorithm"))
            for name in _COPIED:
                setattr(self, name, chosen[name])
            self.enable_overlap = not chosen["disable_overlap_schedule"]
            self.enable_hierarchical_cache = chosen.get("enable_hierarchical_cache", False)
            self.enable_hicache_storage = chosen.get("hicache_storage_backend") is not None
            self.max_total_num_tokens = pool_tokens(config)
            self.max_req_len = min(CONTEXT_TOKENS, self.max_total_num_tokens) - 1
            self.model_config = SimpleNamespace(
                vocab_size=vocabulary, is_matryoshka=False, is_encoder_decoder=False, is_multimodal=False,
                context_len=CONTEXT_TOKENS,
                is_hybrid_swa=has_windows(config), think_end_id=None, self_opened_think_start_ids=None,
                hf_text_config=_text_config(config),
            )  # fmt: skip
            self.tp_worker = _Worker()
            self.is_hybrid_swa = self.tp_worker.is_hybrid_swa = has_windows(config)
            self.is_hybrid_ssm = has_states(config)
            self.sliding_window_size = config.get("sliding_window_size")
            self.req_to_token_pool, self.token_to_kv_pool_allocator = _pools(config, chosen, self.max_total_num_tokens)
            self.tree_cache = _tree(self, chosen)
            if self.enable_hicache_storage:
                timeline.wakes.append(lambda: hicache_0_5_23.next_deadline(self.tree_cache, timeline))
            self.init_running_status()
            self.chunked_prefill_size = chosen["chunked_prefill_size"] if chosen["chunked_prefill_size"] > 0 else None
            self.is_mixed_chunk = self.chunked_prefill_size is not None and chosen["enable_mixed_chunk"]
            self.init_schedule_policy()
            self.new_token_ratio_tracker = NewTokenRatioTracker.from_config()
            self.recv_skipper = SchedulerRecvSkipper.maybe_create()
            self.disaggregation_mode = scheduler.DisaggregationMode.NULL
            self.batch_result_processor = SchedulerBatchResultProcessor(
                is_generation=True, disaggregation_mode=self.disaggregation_mode, enable_overlap=self.enable_overlap,
                enable_overlap_mlx=False, model_config=self.model_config,
                token_to_kv_pool_allocator=self.token_to_kv_pool_allocator, tree_cache=self.tree_cache,
                hisparse_coordinator=None, req_to_token_pool=self.req_to_token_pool, decode_offload_manager=None,
                metrics_collector=Ignored(), metrics_reporter=self.metrics_reporter, draft_worker=None,
                model_worker=SimpleNamespace(on_verify_complete_cpu=lambda *_, **__: None),
                logprob_result_processor=Ignored(), output_streamer=Ignored(), beam_coordinator=self.beam_coordinator,
                abort_request=None,
            )  # fmt: skip

        def ingest_requests(self, stop_at_pause: bool = False) -> list[Any]:
            if self.recv_skipper is not None and not self.recv_skipper.handle(self.last_batch):
                return self.pass_without_arrivals()
            requests = self.arrivals()
            self.take(requests)
            return requests

        def run_batch(self, batch: Any, pp_proxy_tensors: Any = None) -> Any:
            import torch

            self.forward_ct += 1
            self.processed_tokens_counter += batch.extend_num_tokens or 0
            end, tokens = self.launch(batch)
            batch.input_ids = None
            result = scheduler.GenerationBatchResult(next_token_ids=torch.tensor(tokens))
            if self.drafts is not None and batch.forward_mode.is_decode():
                result.accept_lens = torch.tensor(self.drafts.lengths)
                result.speculative_num_draft_tokens = 1 + self.drafts.count
            result.copy_done = SimpleNamespace(end=end, synchronize=lambda: None)
            return result

        def process_batch_result(self, batch: Any, result: Any) -> None:
            self.timeline.result(result.copy_done.end)
            processor = self.batch_result_processor
            if batch.forward_mode.is_decode():
                processor.process_batch_result_decode(batch, result)
            else:
                processor.process_batch_result_prefill(batch, result)
            self.tree_cache.flush_pending_backups()
            self.note_results(batch)

        def on_idle(self) -> None:
            if self.is_fully_idle():
                self.new_token_ratio_tracker.reset()
            self.timeline.idle_pass()

        def pool(self) -> tuple[int, ...]:
            if self.is_hybrid_ssm:
                states = self.req_to_token_pool.mamba_allocator.available_size()
                return (*super().pool(), int(states), int(self.tree_cache.mamba_evictable_size()))
            if not self.is_hybrid_swa:
                return super().pool()
            allocator, tree = self.token_to_kv_pool_allocator, self.tree_cache
            return (
                int(allocator.full_available_size()), int(tree.full_evictable_size()),
                int(allocator.swa_available_size()), int(tree.swa_evictable_size()),
            )  # fmt: skip

        def ratio(self) -> float:
            return float(self.new_token_ratio_tracker.current)

        def _note_cut(self, batch: Any, request: Any, length: int) -> None:
            super()._note_cut(batch, request, length)
            if self.is_hybrid_swa and self._cut.get(request.rid):
                # It frees slots by the whole prompt's length, of which it has a part alone.
                raise RuntimeError(f"the engine cut two prompts in one pass, and lost track of request {request.rid}")

        def send_abort_output(self, abort: Any, request: Any) -> None:
            raise RuntimeError(f"the engine gives up request {request.rid}: not even it alone fits the pools")

        def _apply_war_barrier(self) -> None:
            pass

    for module in (schedule_batch,):
        module.set_schedule_time_batch = lambda *_: None
    return RecordingScheduler()


_RANKS = (
    "tp_rank", "pp_rank", "attn_tp_rank", "attn_dp_rank", "attn_cp_rank", "moe_ep_rank", "moe_dp_rank", "moe_tp_rank",
    "dp_rank", "attn_dcp_rank",
)  # fmt: skip
_GROUPS = ("tp_group", "pp_group", "attn_tp_group", "attn_cp_group", "world_group")
_COPIED = (
    "page_size", "schedule_policy", "enable_priority_scheduling", "schedule_low_priority_values_first",
    "priority_scheduling_preemption_threshold", "max_prefill_tokens", "max_running_requests",
)  # fmt: skip
#: Parts that report, publish, or serve other kinds of models.
_COMPONENTS = (
    "metrics_reporter", "metrics_collector", "load_publisher", "load_inquirer", "dllm_manager",
    "grammar_manager", "output_streamer", "profiler_manager", "lora_drainer", "session_controller",
    "scheduler_stage_metrics", "pool_stats_observer", "invariant_checker", "kv_events_publisher",
)  # fmt: skip
_ATTRIBUTES: dict[str, Any] = {
    "abort_on_priority_when_disabled": False, "enable_lora": False, "enable_lora_overlap_loading": False,
    "enable_overlap_mlx": False, "enable_lmcache": False, "enable_hisparse": False, "enable_unified_memory": False,
    "enable_unified_cache_external_linker": False, "enable_pdmux": False, "is_generation": True, "dllm_config": None,
    "hisparse_coordinator": None, "decode_offload_manager": None, "draft_worker": None, "lora_drainer": None,
    "max_queued_requests": None, "max_new_tokens_limit": None, "kv_shard_widening": 1,
    "truncation_align_size": None, "require_mlp_sync": False,
    "min_free_slots_delayer": None, "dynamic_chunk_sizer": None, "chunked_req": None,
    "_pending_chunked_abort_req": None,
    "prefill_decode_interval": 0, "_prefill_decode_interval_remaining": 0, "prefill_decode_interval_min_bs": 0,
    "processed_tokens_counter": 0, "forward_ct": 0, "scripted_scheduler_hook": None, "future_map": None,
    "external_corpus_manager": None, "_sched_idled": False, "_war_barrier_enabled": False, "device": "cpu",
}  # fmt: skip


def _first_argument(value: Any, *args: Any, **kwargs: Any) -> Any:
    return value


def _text_config(config: dict[str, Any]) -> Any:
    """What is read of the model: the chunk of its linear attention, if it states one."""
    chunk = config.get("mamba_chunk_size")
    return SimpleNamespace() if chunk is None else SimpleNamespace(mamba_chunk_size=chunk)


class _Worker:
    """The model worker: nothing to run."""

    def __init__(self) -> None:
        self.is_hybrid_swa = False
        self.model_runner = SimpleNamespace(attn_backend=None, prefill_aware_swa=False, forward_stream=None)

    def register_hicache_layer_transfer_counter(self, counter: Any) -> None:
        pass


def _pools(config: dict[str, Any], chosen: dict[str, Any], size: int) -> tuple[Any, Any]:
    """Slots of requests and of tokens; the paged allocator lays its slots out without GPU kernels."""
    import torch
    from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
    from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator
    from sglang.srt.mem_cache.memory_pool import ReqToTokenPool

    page = block_tokens(config)
    rows, context = chosen["max_running_requests"], size + 64 + page
    if has_states(config):
        requests = request_slots(config, rows, context)
    else:
        requests = ReqToTokenPool(rows, context, "cpu", False)
    if has_windows(config):
        return requests, window_pools(size, config["swa_max_total_num_tokens"] // page * page, page)
    kv_cache = hicache_0_5_23.kv_cache(size, page) if chosen.get("enable_hierarchical_cache") else Ignored()
    if page == 1:
        return requests, TokenToKVPoolAllocator(size, torch.int64, "cpu", kv_cache, False)
    allocator = PagedTokenToKVPoolAllocator(size, page, torch.int64, "cpu", kv_cache, False)
    allocator.use_triton_kernels = False
    return requests, allocator


def _tree(scheduler: Any, chosen: dict[str, Any]) -> Any:
    from sglang.srt.mem_cache.cache_init_params import CacheInitParams
    from sglang.srt.mem_cache.registry import TreeCacheBuildContext, create_tree_cache
    from sglang.srt.runtime_context import get_exec

    params = CacheInitParams(
        disable=chosen["disable_radix_cache"], req_to_token_pool=scheduler.req_to_token_pool,
        token_to_kv_pool_allocator=scheduler.token_to_kv_pool_allocator,
        page_size=scheduler.token_to_kv_pool_allocator.page_size,
        eviction_policy=chosen["radix_eviction_policy"], chunked_prefill_size=chosen["chunked_prefill_size"],
        tree_core_backend="python", is_eagle=scheduler.spec_algorithm.is_eagle(),
        sliding_window_size=scheduler.sliding_window_size,
        enable_mamba_extra_buffer=get_exec().mamba.enable_mamba_extra_buffer,
        enable_mamba_extra_buffer_lazy=get_exec().mamba.enable_mamba_extra_buffer_lazy,
    )  # fmt: skip
    return create_tree_cache(
        TreeCacheBuildContext(
            server_args=scheduler.server_args,
            params=params,
            is_hybrid_swa=scheduler.is_hybrid_swa,
            full_tokens_per_layer=scheduler.max_total_num_tokens,
            is_hybrid_ssm=scheduler.is_hybrid_ssm,
            enable_hierarchical_cache=chosen.get("enable_hierarchical_cache", False),
            disable_radix_cache=chosen["disable_radix_cache"],
            tp_worker=scheduler.tp_worker,
            model_config=scheduler.model_config,
            tp_size=1,
            tp_rank=0,
            tp_group=None,
        )
    )


def _replace_time(ticks: Ticks) -> None:
    """Every module of the tree and of the scheduler that looks at a clock gets the virtual one."""
    import sys
    import time

    for name, module in list(sys.modules.items()):
        if name.startswith(("sglang.srt.mem_cache", "sglang.srt.managers", "sglang.srt.observability")) and getattr(
            module, "time", None
        ) in (time, *_replaced):
            module.time = ticks  # type: ignore[attr-defined]
    _replaced.append(ticks)


_replaced: list[Any] = []
