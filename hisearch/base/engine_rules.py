"""What engines decide otherwise from one release to the next, as data.

A rule is named, dated by the first release that has it, and sourced. Kernels ask for it by name, ``sim.config.RULE``
(1: it holds); the record's fields are made from this table. ``specs.deployments.engine_rules`` says which hold in a
release.
Settings that a release does not have are refused by the specs (``SETTINGS_SINCE``).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Rule:
    """A decision that changed.

    Attributes:
        name: field of the kernels' record of settings.
        since: first release that decides so.
        before: what releases before it do. after: what it and later ones do.
        source: where the engine does it.
    """

    name: str
    since: str
    before: str
    after: str
    source: str


#: Releases whose decisions were recorded and are reproduced step by step, oldest first.
MODELLED: dict[str, tuple[str, ...]] = {"vllm": ("0.19.1", "0.33.0"), "sglang": ("0.5.9", "0.5.23")}

#: Releases whose rules were read in their source and compared with no recording, oldest first. A rule is dated by the
#: first release behind the merge of its pull request.
UNRECORDED: dict[str, tuple[str, ...]] = {"trtllm": ("1.1.0", "1.3.0rc27")}

RULES: dict[str, tuple[Rule, ...]] = {
    "vllm": (
        Rule(
            "unhashed_first",
            "0.24.0",
            "Freed blocks join the back of the free queue.",
            "Freed blocks without a hash, which no look-up finds, join its front (since 0.23 those out of a window).",
            "block_pool.BlockPool.free_blocks",
        ),
        Rule(
            "exact_victims",
            "0.28.0",
            "Under priority, a victim ahead of the request being served that had no part in the step makes the pass "
            "skip a request.",
            "The pass goes on with the next request.",
            "sched.scheduler.Scheduler.schedule",
        ),
        Rule(
            "outlives_own_preemption",
            "0.33.0",
            "Under priority, a request that preempts itself ends the service of running requests.",
            "The requests behind it are still served.",
            "sched.scheduler.Scheduler.schedule",
        ),
        Rule(
            "lone_prompt_uncut",
            "0.31.0",
            "long_prefill_token_threshold cuts every prompt.",
            "It does not cut the prompt of the only request.",
            "sched.scheduler.Scheduler.schedule",
        ),
        Rule(
            "caps_windows",
            "0.20.0",
            "Admission counts all blocks of a request for layers with a sliding window too.",
            "It counts those of the window and of the tokens in flight, and one more.",
            "kv_cache_interface.SlidingWindowSpec.max_admission_blocks_per_request",
        ),
        Rule(
            "frees_processed",
            "0.26.0",
            "Blocks leave the window by the tokens that are scheduled.",
            "They leave it by those whose results are known.",
            "kv_cache_manager.KVCacheManager.allocate_slots",
        ),
        Rule(
            "stops_at_states",
            "0.27.0",
            "With states of linear attention and prefix caching, a chunk before the last full block of what is known "
            "takes whole blocks, or waits.",
            "A chunk ends at the end of a block (since 0.26 too where it starts within one), and at that of a prefix "
            "that full attention has further than the states. Where a step holds no block, chunks end within it.",
            "sched.scheduler.Scheduler._mamba_block_aligned_split",
        ),
        Rule(
            "leaves_state_token",
            "0.32.0",
            "The last chunk of what fills whole blocks ends with them.",
            "It begins a block earlier: a prompt that is repeated finds no state at its own end.",
            "sched.scheduler.Scheduler._mamba_block_aligned_split",
        ),
        Rule(
            "offloads_by_chunk",
            "0.23.0",
            "The offloading connector copies prompts and outputs. Blocks can be hit once their request has ended, of "
            "which the device's blocks are kept until then.",
            "It copies prompts alone. Blocks can be hit once they are copied, and a request waits for hits under way. "
            "Device blocks are free at once; a step waits for the copy of one that is given away (all since 0.21, of "
            "outputs too). Uses count when a request ends (0.31), thresholds by offers (0.30). Attention groups are "
            "refused.",
            "kv_connector.v1.offloading.scheduler.OffloadingConnectorScheduler, SchedulerOffloadConfig",
        ),
        Rule(
            "defers_frees",
            "0.30.0",
            "With a KV connector too, blocks are free when their request ends or is preempted.",
            "With one and asynchronous scheduling they are once the steps launched by then have ended (since 0.24). A "
            "request in the newest step is not preempted.",
            "sched.scheduler.Scheduler._free_request_blocks",
        ),
        Rule(
            "resumes_as_new",
            "0.25.0",
            "LMCache is told all tokens of a resumed request.",
            "It is told those of its prompt, as of a new one: hits beyond them are not loaded.",
            "sched.scheduler.Scheduler.schedule, config.vllm.VllmConfig.use_v2_model_runner",
        ),
        Rule(
            "pads_new_decodes",
            "0.29.0",
            "An admitted request with one token to compute computes that one.",
            "Beside decodes alone, or with the others cached, it computes as many drafts as they do, all rejected.",
            "sched.scheduler.Scheduler.schedule",
        ),
        Rule(
            "publishes_accepted",
            "0.33.0",
            "With drafts, a synchronous scheduler lets look-ups find blocks by what is known when they are scheduled.",
            "It also lets them find the blocks that a step's results fill.",
            "sched.scheduler.Scheduler.update_from_output",
        ),
        Rule(
            "hashes_ahead",
            "0.33.0",
            "The last block of a hit is computed again where a drafter needs the inputs behind it (EAGLE, MTP).",
            "The token behind a block is part of its hash: hits keep their last block, and a block is findable once "
            "the token behind it is known.",
            "config.vllm.VllmConfig.num_hash_lookahead_tokens",
        ),
        Rule(
            "looks_ahead_at_once",
            "0.27.0",
            "Admission takes no pages for the drafter's tokens; the first decode does.",
            "It takes them, unless KV is loaded first.",
            "sched.scheduler.Scheduler.schedule",
        ),
        Rule(
            "reserves_first_check",
            "0.32.0",
            "With drafts, KV is asked for where there are blocks for it.",
            "There must also be blocks for the request's first drafts, and for those of all whose KV was asked for.",
            "sched.scheduler.Scheduler._inflight_prefill_reserved_blocks",
        ),
        Rule(
            "unpins_loaded",
            "0.32.0",
            "LMCache keeps chunks that a request hits until its own saves.",
            "LMCache 0.5.6 keeps those that it loads until they are loaded.",
            "lmcache.integration.vllm.vllm_v1_adapter.LMCacheConnectorV1Impl.start_load_kv",
        ),
    ),
    "sglang": (
        Rule(
            "relaxes_groups",
            "0.3.6",
            "Admission takes schedule_conservativeness as it is.",
            "Under attention groups it takes 0.3 times that.",
            "server_args.ServerArgs._handle_data_parallelism",
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
    ),
}


#: What SGLang multiplies its schedule conservativeness by under attention groups (``relaxes_groups``).
GROUPS_CONSERVATIVENESS = 0.3

#: First releases that have a setting, by engine and key of the deployment's engine.
SETTINGS_SINCE: dict[str, dict[str, str]] = {
    "vllm": {"watermark": "0.24.0", "long_prefill_adaptive": "0.31.0"},
    "sglang": {},
    "trtllm": {},
}


def fields_of(engine: str) -> list[tuple[str, str]]:
    """Fields of the kernels' record of settings, one for each rule of ``engine``."""
    return [(rule.name, "i8") for rule in RULES[engine]]
