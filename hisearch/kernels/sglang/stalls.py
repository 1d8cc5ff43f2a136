"""What a step of SGLang waits for besides its work: adapters and objects under way, and kernels to be compiled."""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.engine import lora, schedulers
from hisearch.kernels.layout import sim as la


@kernel
def stall_seconds(sim, w, entries, size, decoding):
    """Seconds for which the step with ``size`` prompt chunks and ``decoding`` decodes waits."""
    seconds = 0.0
    if sim.config.serves_adapters:
        lora.account(sim, w, 1)
        seconds = lora.take_stall(sim, w)
    if sim.config.objects:
        seconds += sim.agents.loaders[w].at_launch_s
        sim.agents.loaders[w].at_launch_s = 0.0
    return seconds + compile_seconds(sim, w, entries, size, decoding)


@kernel
def hold_up(sim, w, entries, size, decoding):
    """Add what DP rank ``w`` waits for to its part of a lockstep step, on the device and on the host."""
    worker = sim.workers[w]
    stall_s = compile_seconds(sim, w, entries, size, decoding)
    worker.own_s += stall_s
    worker.host_s += stall_s


@kernel
def compile_seconds(sim, w, entries, size, decoding):
    """Seconds in which worker ``w`` compiles a kernel for the step's number of tokens, if it has prompts.

    It does so for each number once (rule ``keeps_kernels``). The micro-batches of a pipeline share its processes.
    """
    if sim.config.kernel_compile_s == 0.0 or size == 0:
        return 0.0
    tokens = decoding
    for k in range(size):
        tokens += sim.requests[entries[k]].chunk
    known = sim.compiled_lengths
    if tokens < known.shape[1]:
        row = schedulers.leader(sim, w) if sim.config.scheduler_kind == la.PIPE else w
        if known[row, tokens]:
            return 0.0
        known[row, tokens] = 1
    return sim.config.kernel_compile_s
