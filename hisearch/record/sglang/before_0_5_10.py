"""SGLang 0.5.9: its scheduler without devices, processes and weights."""

# mypy: allow-untyped-defs, no-warn-unused-ignores, disable-error-code="has-type,var-annotated,func-returns-value"

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

from hisearch.record.sglang import hicache_0_5_9
from hisearch.record.sglang.scheduler import OrderedSet, Recording
from hisearch.record.sglang.settings import CONTEXT_TOKENS, Ignored, arguments, pool_tokens
from hisearch.record.sglang.timeline import Ticks, Timeline

#: How requests hold their tokens.
id_sequence = list


def build(config: dict[str, Any], timeline: Timeline, vocabulary: int) -> Any:
    """The scheduler, ready to run.

    Args:
        config: a case's settings.
        timeline: the clock.
        vocabulary: number of token ids.
    """
    from sglang.srt import server_args
    from sglang.srt.managers import schedule_batch, schedule_policy, scheduler
    from sglang.srt.mem_cache import hiradix_cache, radix_cache
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    ticks = Ticks(timeline)
    for module in (radix_cache, hiradix_cache, scheduler, schedule_batch):
        module.time = ticks
    schedule_policy.set = OrderedSet
    args = _server_args(server_args.ServerArgs, arguments(config))
    args.pp_max_micro_batch_size = args.max_running_requests
    server_args.set_global_server_args_for_scheduler(args)

    if config.get("hicache") is not None:
        hicache_0_5_9.install_laws(config["hicache"], timeline, ticks)

    class RecordingScheduler(Recording, scheduler.Scheduler):  # type: ignore[misc, name-defined]
        """The engine's own scheduler; what is replaced talks to devices, processes or people."""

        def __init__(self) -> None:
            self.server_args = args
            self.timeline = timeline
            self.pending = {}
            for name, value in _ATTRIBUTES.items():
                setattr(self, name, value)
            self.spec_algorithm = SpeculativeAlgorithm.NONE
            self.schedule_policy = args.schedule_policy
            self.enable_priority_scheduling = args.enable_priority_scheduling
            self.schedule_low_priority_values_first = args.schedule_low_priority_values_first
            self.priority_scheduling_preemption_threshold = args.priority_scheduling_preemption_threshold
            self.enable_overlap = not args.disable_overlap_schedule
            self.page_size = args.page_size
            self.enable_hierarchical_cache = args.enable_hierarchical_cache
            self.enable_hicache_storage = args.hicache_storage_backend is not None
            self.max_total_num_tokens = pool_tokens(config)
            self.max_prefill_tokens = args.max_prefill_tokens
            self.max_running_requests = args.max_running_requests
            self.max_req_len = min(CONTEXT_TOKENS, self.max_total_num_tokens) - 1
            self.model_config = SimpleNamespace(
                vocab_size=vocabulary, is_matryoshka=False, is_encoder_decoder=False, is_multimodal=False
            )
            self.tp_worker = _Worker(self)
            self.init_cache_with_memory_pool()
            if self.enable_hierarchical_cache:
                timeline.wakes.append(self.tree_cache.next_deadline)
            self.init_running_status()
            self.init_chunked_prefill()
            self.init_schedule_policy()
            self.recv_skipper = scheduler.SchedulerRecvSkipper.maybe_create(args)
            self.disaggregation_mode = scheduler.DisaggregationMode.NULL

        def recv_requests(self) -> list[Any]:
            if self.recv_skipper is not None:
                mode = self.last_batch.forward_mode if self.last_batch is not None else None
                if not self.recv_skipper.handle(mode):
                    return self.pass_without_arrivals()
            return self.arrivals()

        def process_input_requests(self, recv_reqs: list[Any]) -> None:
            self.take(recv_reqs)

        def run_batch(self, batch: Any, pp_proxy_tensors: Any = None) -> Any:
            import torch

            self.forward_ct += 1
            end, tokens = self.launch(batch)
            batch.output_ids = torch.zeros(len(tokens), dtype=torch.int64)
            return SimpleNamespace(
                end=end, next_token_ids=torch.tensor(tokens), copy_done=None, logits_output=None,
                can_run_cuda_graph=False, extend_input_len_per_req=None, extend_logprob_start_len_per_req=None,
                delay_sample_func=None,
            )  # fmt: skip

        def process_batch_result(self, batch: Any, result: Any) -> None:
            self.timeline.result(result.end)
            super().process_batch_result(batch, result)
            self.note_results(batch)

        def self_check_during_idle(self) -> None:
            super().self_check_during_idle()
            self.timeline.idle_pass()

        def ratio(self) -> float:
            return float(self.new_token_ratio)

        def stream_output(self, *args: Any, **kwargs: Any) -> None:
            pass

        log_batch_result_stats = log_decode_stats = maybe_collect_routed_experts = maybe_collect_customized_info = (
            stream_output
        )
        maybe_sleep_on_idle = _publish_kv_events = stream_output

    return RecordingScheduler()


def _server_args(arguments_class: type, chosen: dict[str, Any]) -> Any:
    """Server arguments at their defaults but for the chosen ones; nothing is resolved from a model or a device."""
    args = object.__new__(arguments_class)
    for field in dataclasses.fields(arguments_class):  # type: ignore[arg-type]
        value = field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default
        setattr(args, field.name, None if value is dataclasses.MISSING else value)
    for name, value in chosen.items():
        setattr(args, name, value)
    return args


#: What a scheduler for one GPU, without speculation, adapters, metrics and other processes has.
_ATTRIBUTES: dict[str, Any] = {
    "tp_rank": 0, "pp_rank": 0, "tp_size": 1, "pp_size": 1, "dp_size": 1, "attn_tp_rank": 0, "dp_rank": None,
    "abort_on_priority_when_disabled": False, "enable_lora": False, "enable_lora_overlap_loading": False,
    "enable_metrics": False, "current_scheduler_metrics_enabled": False, "enable_trace": False, "is_generation": True,
    "enable_kv_cache_events": False, "max_queued_requests": None, "tp_cpu_group": None, "attn_tp_cpu_group": None,
    "truncation_align_size": None, "dllm_config": None, "dllm_manager": Ignored(), "grammar_manager": Ignored(),
    "require_mlp_sync": False, "draft_worker": None, "offload_tags": (), "num_generated_tokens": 0,
    "idle_sleeper": None, "forward_ct_decode": 0, "hicache_layer_transfer_counter": None,
}  # fmt: skip


class _Worker:
    """The model worker: memory pools and nothing to run."""

    is_hybrid_swa = False
    sliding_window_size = None

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self.model_runner = SimpleNamespace(hybrid_gdn_config=None, mamba2_config=None)

    def get_memory_pool(self) -> tuple[Any, Any]:
        import torch
        from sglang.srt.mem_cache import allocator
        from sglang.srt.mem_cache.memory_pool import ReqToTokenPool

        scheduler = self._scheduler
        size, page = scheduler.max_total_num_tokens, scheduler.page_size
        requests = ReqToTokenPool(scheduler.max_running_requests, size + 64, "cpu", False)
        kv_cache = hicache_0_5_9.kv_cache(size) if scheduler.enable_hierarchical_cache else Ignored()
        if page == 1:
            return requests, allocator.TokenToKVPoolAllocator(size, torch.int64, "cpu", kv_cache, False)
        return requests, _paged(allocator)(size, page, torch.int64, "cpu", kv_cache, False)

    def register_hicache_layer_transfer_counter(self, counter: Any) -> None:
        pass


def _paged(allocator: Any) -> type:
    """The engine's paged allocator; slots are counted by it, and laid out by plain code instead of GPU kernels."""
    import torch

    class PagedAllocator(allocator.PagedTokenToKVPoolAllocator):  # type: ignore[misc]
        def alloc_extend(self, prefix_lens, prefix_lens_cpu, seq_lens, seq_lens_cpu, last_loc, extend_num_tokens):  # type: ignore[no-untyped-def]
            pages = -(-seq_lens_cpu // self.page_size) - -(-prefix_lens_cpu // self.page_size)
            if int(pages.sum()) > len(self.free_pages):
                return None
            offsets = torch.arange(self.page_size)
            slots, used = [], 0
            for start, end, last, count in zip(
                prefix_lens_cpu.tolist(), seq_lens_cpu.tolist(), last_loc.tolist(), pages.tolist(), strict=True
            ):
                old = min(-start % self.page_size, end - start)
                taken = self.free_pages[used : used + count]
                used += count
                slots.append(torch.arange(last + 1, last + 1 + old))
                slots.append((taken[:, None] * self.page_size + offsets).reshape(-1)[: end - start - old])
            self.free_pages = self.free_pages[used:]
            return torch.cat(slots)

        def alloc_decode(self, seq_lens, seq_lens_cpu, last_loc):  # type: ignore[no-untyped-def]
            fresh = (seq_lens_cpu - 1) % self.page_size == 0
            count = int(fresh.sum())
            if count > len(self.free_pages):
                return None
            slots = last_loc.to(torch.int64) + 1
            slots[fresh] = self.free_pages[:count] * self.page_size
            self.free_pages = self.free_pages[count:]
            return slots

    return PagedAllocator
