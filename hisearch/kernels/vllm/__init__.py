"""vLLM: its step rule, block memory, offloading and LMCache; and decode workers, which share its step rule.

The event loop calls ``entry``, or ``offload_entry`` and ``lmcache_entry`` with these connectors, or ``groups.entry``
for models whose layers have several kinds of KV, or ``drafts.entry`` where tokens are drafted.
Imports ``engine`` and packages below it.

    vLLM's name                         ours
    Scheduler.schedule                  entry.form: step.serve_running, entry._admit_waiting, step.admit
    Scheduler.running, waiting          lists by REQUEST.next from WORKER.running_head and waiting_head
    Scheduler.skipped_waiting           REQUEST.passed_over (see waiting), CONNECTOR.skipped_head
    Scheduler._preempt_request          memory.preempt
    Scheduler.update_from_output        entry.account at launch, when durations are known; entry.complete ends requests
    token_budget, num_new_tokens        budget; share, tokens
    max_num_scheduled_tokens            CONFIG.chunk_tokens; max_num_running_reqs: CONFIG.max_running
    SchedulerOutput                     Sim.batch: prompt chunks, and decodes that the clock does not count; the clock
    num_scheduled_tokens                REQUEST.chunk of an entry of Sim.batch; 1 for a decode that the clock counts
    scheduled in the step being formed  REQUEST.scheduled_step == WORKER.launched_step + 1
    Request.num_computed_tokens         REQUEST.computed; while it decodes, input_tokens + memory.sampled - 1
    Request.num_output_placeholders     memory.output_placeholders: 0 or 1, from the numbers of steps
    Request.num_output_tokens           memory.sampled (REQUEST.generated, or from the clock) less the placeholders
    Request.status RUNNING              REQUEST.status ADMITTED in this pass, PROMPT, DECODING, SKIPPED in this step,
                                        VERIFYING drafts, DRAINING: its last token is a placeholder
    Request.status WAITING, PREEMPTED   REQUEST.status WAITING; DRAINED: its last token is a placeholder
    KVCacheManager.get_computed_blocks  step.look_up
    KVCacheManager.allocate_slots       queue.take, then memory.publish for cache_full_blocks
    KVCacheManager.free                 memory.release
    BlockPool.free_block_queue          kernels.cache.queue

The decode clock. Decodes make a token a step, all together, so none is visited. A worker counts its steps in
``WORKER.clock``. A request that joins (``lists.join_decode``) with g of its o output tokens keeps
``finish_clock = clock + o - g``: it has o - (finish_clock - clock) tokens at any later clock. The heap
``Sim.finish_heap`` gives those that end. ``Sim.residue[w, (computed - clock) % P]`` counts decodes, so that
``residue[w, -clock % P]`` of them take a page in the next step. With one token of 5 made, in pages of 16::

    clock 100: prompt 30, generated 1, computed 30  joins: finish_clock 104, residue[w, (30 - 100) % 16 = 10] += 1
    clock 100: the next step computes token 31      residue[w, -100 % 16 = 12] take a page: others, not this one
    clock 102: generated 3, computed 32             residue[w, -102 % 16 = 10] take a page: this one, for token 33
    clock 104: generated 5                          leaves the clock (``entry._drain``), ends with the step's results
"""
