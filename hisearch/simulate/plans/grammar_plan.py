"""How a worker serves structured output, compiled: threads, and seconds of the host."""

from __future__ import annotations

from dataclasses import dataclass

from hisearch.kernels.layout import grammars as gr
from hisearch.latency.device_memory.plan import MemoryPlan
from hisearch.latency.sharding import InvalidParallelism
from hisearch.specs.base import ENGINE_TITLES
from hisearch.specs.deployments.engine_rules import rules_in_force
from hisearch.specs.deployments.pool import PoolSpec
from hisearch.specs.machines.hardware import HostSpec

#: Seconds of a look at a grammar that is being compiled, before vLLM's rule ``one_waiting_queue``: its
#: ``Future.result(timeout=0.0001)`` (``v1/structured_output/request.py``).
RESULT_TIMEOUT_S = 1e-4
#: Most threads with which vLLM fills masks of large batches (``StructuredOutputManager``).
MOST_FILL_THREADS = 8
#: Most threads of Python's pools by default, and how many more than cores.
MOST_THREADS, MORE_THREADS = 32, 4


@dataclass(frozen=True)
class GrammarPlan:
    """A worker's grammars.

    Attributes:
        threads: that compile.
        compile_s: of a grammar of which the workload does not say how long it takes.
        fill_s, accept_s: host time of a step for each sequence with a grammar: its mask, and its token.
        fill_threads: that fill the masks of large batches; 0: one after another.
        look_s: host time of a pass for each request whose grammar it finds not there.
    """

    threads: int
    compile_s: float = 0.0
    fill_s: float = 0.0
    accept_s: float = 0.0
    fill_threads: int = 0
    look_s: float = 0.0


def plan_grammars(pool: PoolSpec, memory: MemoryPlan, host: HostSpec | None) -> GrammarPlan | None:
    """The plan of the pool's section ``structured_output``; None without one.

    Raises:
        InvalidParallelism: KV in several groups or pools, or nobody says how many cores the host has; with the key.
    """
    structured, engine = pool.structured_output, pool.engine
    if structured is None:
        return None
    if memory.kv_groups is not None or memory.window_pools is not None or memory.state_pools is not None:
        message = (
            f"grammars are not simulated where {ENGINE_TITLES[engine.name]} keeps KV in several groups or pools; leave "
            "structured_output out to take all outputs for free text"
        )
        raise InvalidParallelism(message, "structured_output")
    cores = structured.cpu_cores or (host.cpu_cores if host is not None else 0)
    if not cores:
        message = "the host does not say how many cores it has; give structured_output.cpu_cores"
        raise InvalidParallelism(message, "structured_output.cpu_cores")
    laws = structured.compile_s, structured.fill_s, structured.accept_s
    if engine.name == "sglang":
        return GrammarPlan(min(cores + MORE_THREADS, MOST_THREADS), *laws)
    fills_in_parallel = engine.max_running_requests > gr.PARALLEL_FROM
    looks_wait = not rules_in_force("vllm", engine.version)["one_waiting_queue"]
    return GrammarPlan(
        (cores + 1) // 2,
        *laws,
        fill_threads=max(1, min(cores // 2, MOST_FILL_THREADS)) if fills_in_parallel else 0,
        look_s=RESULT_TIMEOUT_S if looks_wait else 0.0,
    )
