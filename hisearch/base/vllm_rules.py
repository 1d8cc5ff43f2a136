"""What vLLM decides otherwise from one release to the next, as data (see ``engine_rules``)."""

from __future__ import annotations

from hisearch.base.rule import Rule

VLLM_RULES: tuple[Rule, ...] = (
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
        in_kernels=False,
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
        "retains_ends",
        "0.29.0",
        "By default look-ups find all blocks of windows and all states at ends of blocks, until they are taken.",
        "They find those before the prompt's last token, and at the end of a prefix that full attention has "
        "further (prefix_cache_retention_interval 0).",
        "config.cache.CacheConfig.prefix_cache_retention_interval",
        in_kernels=False,
    ),
    Rule(
        "exports_states",
        "0.33.0",
        "A chunk of linear attention ends where its state is to be found.",
        "FlashInfer's kernels, on Hopper and Blackwell, export the state at a prompt's last full block from within "
        "its last chunk.",
        "model_executor.layers.mamba.gdn.qwen_gdn_linear_attn._resolve_gdn_prefill_backend",
        in_kernels=False,
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
        in_kernels=False,
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
        "counts_idle_loras",
        "0.33.0",
        "Adapters of requests in the step count towards max_loras.",
        "Adapters of all running requests do.",
        "sched.scheduler.Scheduler.schedule",
        later_than="0.19.1",
    ),
    Rule(
        "one_waiting_queue",
        "0.33.0",
        "Requests with a grammar, and those whose adapter had no place, stand in a queue of their own until they run. "
        "Under fcfs it goes before all others, preempted ones too. A look at a grammar that is being compiled takes "
        "0.1 ms.",
        "They stand where they arrived; preempted requests go first; looks take no time.",
        "sched.scheduler.Scheduler.schedule, structured_output.request.StructuredOutputRequest",
        later_than="0.19.1",
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
)
