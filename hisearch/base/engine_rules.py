"""What engines decide otherwise from one release to the next, as data.

A rule is named, dated by the first release that has it, and sourced; ``docs/engines.md`` says who reads it. Kernels
ask for it by name, ``sim.config.RULE`` (1: it holds); the record's fields are made from this table, but for rules that
decide what kernels are given. ``specs.deployments.engine_rules`` says which hold in a release. Settings that a release
does not have are refused by the specs (``SETTINGS_SINCE``).
"""

from __future__ import annotations

from hisearch.base.rule import Rule
from hisearch.base.vllm_rules import VLLM_RULES

#: Releases whose decisions were recorded and are reproduced step by step, oldest first.
MODELLED: dict[str, tuple[str, ...]] = {"vllm": ("0.19.1", "0.33.0"), "sglang": ("0.5.9", "0.5.23")}

#: Releases whose rules were read in their source and compared with no recording, oldest first. A rule is dated by the
#: first release behind the merge of its pull request.
UNRECORDED: dict[str, tuple[str, ...]] = {"trtllm": ("1.1.0", "1.3.0rc27")}

RULES: dict[str, tuple[Rule, ...]] = {
    "vllm": VLLM_RULES,
    "sglang": (
        Rule(
            "relaxes_groups",
            "0.3.6",
            "Admission takes schedule_conservativeness as it is.",
            "Under attention groups it takes 0.3 times that.",
            "server_args.ServerArgs._handle_data_parallelism",
            in_kernels=False,
        ),
        Rule(
            "charges_page",
            "0.5.10",
            "An admitted request is charged its tokens in full pages.",
            "It is charged a page more, for rounding.",
            "managers.schedule_policy.PrefillAdder._update_prefill_budget",
        ),
        Rule(
            "counts_hits",
            "0.5.10",
            "Insertions count hits with a host tier alone.",
            "They count without one.",
            "mem_cache.radix_cache.RadixCache._insert_helper",
        ),
        Rule(
            "needs_page",
            "0.5.11",
            "Admission needs a request's tokens.",
            "It needs a page more.",
            "managers.schedule_policy.PrefillAdder.add_one_req",
        ),
        Rule(
            "looks_for_places_first",
            "0.5.11",
            "A pass without places orders the queue before it marks the batch as full; a prompt in chunks waits.",
            "It does not look at the queue, and a prompt in chunks goes on.",
            "managers.scheduler.Scheduler._get_new_batch_prefill_raw",
        ),
        Rule(
            "resets_ratio_when_empty",
            "0.5.11",
            "An idle pass resets the new-token ratio.",
            "It does where no request waits and nothing is under way in HiCache.",
            "managers.scheduler.Scheduler.on_idle",
        ),
        Rule(
            "matches_less_than_all",
            "0.5.13",
            "lpm counts all tokens that a prompt finds in HBM.",
            "It counts those on the host too, and one less than the prompt has at most.",
            "mem_cache.common.match_kv_cache",
        ),
        Rule(
            "knows_lost_tokens",
            "0.5.15",
            "A request that was retracted and not tried since counts as without prompt where it might preempt others.",
            "It counts with its prompt and output.",
            "managers.schedule_policy.PrefillAdder.preempt_to_schedule",
        ),
        Rule(
            "keeps_kernels",
            "0.5.16",
            "Linear attention compiles a kernel for each new number of prompt tokens in a step.",
            "One kernel serves all.",
            "layers.attention.fla.l2norm.l2norm_fwd_kernel (pull request 31558)",
            in_kernels=False,
        ),
        Rule(
            "evicts_shortfall",
            "0.5.17",
            "Where memory is short, the tree evicts as much as is asked for.",
            "It evicts what is missing.",
            "mem_cache.allocator.base.BaseTokenToKVPoolAllocator.evict_to_free_tokens",
        ),
        Rule(
            "raises_covered",
            "0.5.19",
            "With a host tier, an insertion that ends within a node raises the priority of all of it.",
            "It raises that of the part which it covers.",
            "mem_cache.unified_cache.unified_tree_core.UnifiedTreeCore._insert_walk_step",
        ),
        Rule(
            "bounds_uncut_input",
            "0.5.20",
            "max_prefill_tokens bounds each prompt behind the first, before and after its load-back.",
            "It bounds prompts that cannot be cut, and all limits are looked at before the load-back.",
            "managers.schedule_policy.PrefillAdder._select_prefill_admission",
        ),
        Rule(
            "notes_every_pass",
            "0.5.20",
            "Ends of HiCache's copies are noted by passes that look at the queue.",
            "Every pass notes them.",
            "managers.scheduler.Scheduler._process_hicache_events",
        ),
        Rule(
            "splits_at_prompt",
            "0.5.20",
            "A finished request's prompt and output are one node.",
            "They are split, the prompt with a priority of one more.",
            "mem_cache.unified_radix_cache.UnifiedRadixCache.checkpoint_into_tree",
        ),
        Rule(
            "clips_to_pages",
            "0.5.21",
            "A request may have two tokens less than the pool.",
            "Its prompt is rounded up to pages, and a page and a token are left.",
            "mem_cache.allocator.base.BaseTokenToKVPoolAllocator.max_new_tokens_for_memory",
            in_kernels=False,
        ),
        Rule(
            "reserves_pinned",
            "0.5.22",
            "Admission reserves the new-token ratio of all outputs to come.",
            "It reserves all of those that ignore end-of-sequence tokens.",
            "managers.schedule_policy.PrefillAdder._get_running_request_total_token_offset",
        ),
        Rule(
            "touches_waiting",
            "0.5.22",
            "A waiting request's cached prefix ages.",
            "Every 32nd pass that looks at the queue touches the prefixes of its first 128, under lru.",
            "managers.schedule_policy.SchedulePolicy._touch_waiting_prefixes",
        ),
        Rule(
            "skips_last_decode",
            "0.5.22",
            "With overlap, a request whose last token is in flight decodes once more.",
            "It does not where its declared limit ends it; a step that lacks memory waits for it.",
            "managers.scheduler.Scheduler._reqs_finishing_inflight",
        ),
        Rule(
            "mixes_what_fits",
            "0.5.22",
            "A mixed step takes all running requests along.",
            "It leaves them out where their next tokens lack memory.",
            "managers.scheduler.Scheduler._get_new_batch_prefill_raw",
        ),
        Rule(
            "counts_chunked_lora",
            "0.5.23",
            "Adapters of the running batch count towards max_loras_per_batch, also of requests that have ended. With "
            "overlapped loading every adapter is copied before a request of it is admitted.",
            "Those of requests that have ended do not, that of the prompt in chunks does. An adapter that has a slot "
            "is not copied again.",
            "managers.scheduler.Scheduler._get_new_batch_prefill_raw, lora.lora_overlap_loader.LoRAOverlapLoader",
            later_than="0.5.9",
        ),
        Rule(
            "stops_polling",
            "0.5.23",
            "A pass with requests that wait for grammars polls these for 5 ms.",
            "It goes on once all are compiled.",
            "constrained.grammar_manager.GrammarManager.get_ready_grammar_requests",
            later_than="0.5.9",
        ),
        Rule(
            "full_if_occupied",
            "0.5.22",
            "Without a host tier, a request that lacks memory marks the batch as full.",
            "It does where something runs or was admitted.",
            "managers.scheduler.Scheduler._get_new_batch_prefill_raw",
        ),
        Rule(
            "counts_hits_once",
            "0.5.22",
            "Each insertion counts hits, except those of chunks.",
            "A request counts once for each node.",
            "mem_cache.unified_cache.unified_tree_core.UnifiedTreeCore._finish_insert_walk_node",
        ),
        Rule(
            "keeps_creation",
            "0.5.19",
            "The upper part of a split node is new.",
            "It was created when the node was.",
            "mem_cache.unified_cache.unified_tree_core.UnifiedTreeCore._split_node",
        ),
        Rule(
            "filters_every_pass",
            "0.5.23",
            "A request that finished in a decode step stays in the batch until the next decode pass.",
            "It leaves at the next pass; an empty batch is not full (since 0.5.22).",
            "managers.scheduler.Scheduler.get_next_batch_to_run",
        ),
        Rule(
            "copies_chains",
            "0.5.19",
            "A node that has the hits is copied to the host alone.",
            "Nodes above it that are not on the host are copied before.",
            "mem_cache.unified_cache.unified_tree_core.UnifiedTreeCore._build_backup_kv_action",
        ),
        Rule(
            "merges_copies",
            "0.5.21",
            "Each node is copied to the host by itself; write_back waits for all that it evicts.",
            "What the results of a step or a pass add is one copy; write_back waits for each, and drops nodes where "
            "the host is full.",
            "mem_cache.unified_radix_cache.UnifiedRadixCache.flush_pending_backups",
        ),
        Rule(
            "fetches_by_hits",
            "0.5.20",
            "A fetch takes host memory for all that it looks for, and is not repeated.",
            "A pass takes it for what storage has; a miss is looked up again, and so is a prefix that was lost.",
            "mem_cache.unified_radix_cache.UnifiedRadixCache.prefetch_from_storage",
        ),
        Rule(
            "ends_on_spent_budget",
            "0.5.23",
            "Each waiting request is tried until one is not admitted.",
            "A spent budget ends the pass before the next is tried.",
            "managers.scheduler.Scheduler._get_new_batch_prefill_raw",
        ),
    ),
    "trtllm": (
        Rule(
            "ends_by_length",
            "1.2.0rc3",
            "With overlap, a request whose last token is in flight decodes once more.",
            "It does not where its declared limit ends it.",
            "_torch.pyexecutor.py_executor.PyExecutor, GENERATION_TO_COMPLETE; pull request 8587",
        ),
        Rule(
            "credits_reuse",
            "1.3.0rc7",
            "A prompt that starts counts in full: its pages, and its tokens of the step's budget.",
            "Cached pages that a request holds leave its need of pages, cached tokens its need of tokens; a chunk that "
            "finds less is cut after its start.",
            "batch_manager/kvCacheManager.cpp: getRemainingBlocksToCompletion; pull requests 11490, 11637, 12976",
        ),
        Rule(
            "stores_computed",
            "1.3.0rc11",
            "All pages of a prompt can be found after its first chunk.",
            "Those that are computed can be found after each chunk.",
            "batch_manager/kvCacheManager.cpp: BlockManager::storeContextBlocks; pull request 12673",
        ),
        Rule(
            "credits_unheld",
            "1.3.0rc19",
            "Under max_utilization, only cached tokens that a request holds leave the budget.",
            "All cached ones do.",
            "batch_manager/kvCacheManager.cpp: getNeededBlocksOneStep; pull request 15066",
        ),
        Rule(
            "extends_mtp",
            "1.3.0rc27",
            "With EAGLE-3 a prompt takes KV for as many tokens behind it as are drafted, less one; with MTP for none.",
            "With MTP it does too.",
            "_torch.speculative.utils.get_num_extra_kv_tokens",
            in_kernels=False,
            later_than="1.2",
        ),
    ),
}


#: What SGLang multiplies its schedule conservativeness by under attention groups (``relaxes_groups``).
GROUPS_CONSERVATIVENESS = 0.3
#: Tokens out of the window that a decoding request of SGLang lets come together before it frees them
#: (SGLANG_SWA_EVICTION_INTERVAL).
WINDOW_EVICTION_INTERVAL = 128

#: First releases that have a setting, by engine and key of the deployment's engine.
SETTINGS_SINCE: dict[str, dict[str, str]] = {
    "vllm": {"watermark": "0.24.0", "long_prefill_adaptive": "0.31.0"},
    "sglang": {},
    "trtllm": {},
}


def fields_of(engine: str) -> list[tuple[str, str]]:
    """Fields of the kernels' record of settings, one for each rule of ``engine`` that kernels ask for."""
    return [(rule.name, "i8") for rule in RULES[engine] if rule.in_kernels]
