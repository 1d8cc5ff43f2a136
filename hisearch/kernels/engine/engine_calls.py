"""Engines as the event loop sees them: each has an ``engine_entry`` function, called by its address.

So the event loop does not contain the engines, and each engine is compiled separately, when it is first used.

To add an engine: a module with an ``engine_entry``, a plain function of the signature below that passes each operation
on to its kernels, and its code in ``MODULES`` and ``NAMES``.
"""

from __future__ import annotations

import enum
import functools
import importlib
from typing import Any

from llvmlite import ir
from numba import config, types
from numba.extending import intrinsic, overload

from hisearch.base.jit import c_function
from hisearch.base.kernel_cache import is_cached
from hisearch.kernels.core.handle import HandleType
from hisearch.kernels.layout import sim as la


class Op(enum.IntEnum):
    """Operations that the event loop calls an engine with, for worker w and request r at time now."""

    RESET = 0  #: Empty worker w's caches.
    NEVER_FITS = 1  #: Returns 1 where r can never be served.
    RECEIVE = 2  #: r reaches w.
    FORM_BATCH = 3  #: Form w's next batch.
    COMPLETE_STEP = 4  #: w's oldest step, or its fast-forward, has ended.
    SERVE = 5  #: Server w has finished a part of its job.
    LAUNCH_LOCKSTEP = 6  #: Launch the batch that w formed for a lockstep step (see ``schedulers``).
    RECEIVE_KV = 7  #: The KV of r has arrived at w from its prefill worker.
    RELEASE_KV = 8  #: The KV of r has been sent from w, which computed it, or is not needed any more.
    CANCEL_KV = 9  #: The KV of r will not arrive at w, which waits for it.
    #: w, of SGLang with storage, vLLM with tiers or a decode worker with host memory, has died; the states of its
    #: requests are still those before.
    HALT = 10
    LOSE_HOST = 11  #: The node of w has died too.
    #: A decode worker has written the next part of r's output to the storage of tier w (see ``output_write_back``).
    WRITE_BACK_OUTPUT = 12
    #: TensorRT-LLM: the DP ranks of leader w take new requests, and choose what they will compute.
    CHOOSE_TOGETHER = 13


#: Engine -> its module in this package.
MODULES = {
    la.VLLM: "vllm.entry", la.SGLANG: "sglang.entry", la.TRTLLM: "trtllm.entry",
    la.VLLM_OFFLOAD: "vllm.offload_entry", la.VLLM_LMCACHE: "vllm.lmcache_entry", la.DECODE_WORKER: "vllm.decoding",
    la.AGENTS: "agents.entry", la.VLLM_GROUPS: "vllm.groups.entry",
    la.VLLM_CHUNK_OFFLOAD: "vllm.chunk_offload_entry", la.VLLM_DRAFTS: "vllm.drafts.entry",
    la.SGLANG_DRAFTS: "sglang.drafts.entry", la.DRAFTS_DECODE_WORKER: "vllm.drafts.decoding",
    la.TRTLLM_DRAFTS: "trtllm.drafts.entry",
}  # fmt: skip

#: Names of engines in messages about compilation.
NAMES = {
    la.VLLM: "vLLM", la.SGLANG: "SGLang", la.TRTLLM: "TensorRT-LLM",
    la.VLLM_OFFLOAD: "vLLM's offloading", la.VLLM_LMCACHE: "vLLM with LMCache", la.DECODE_WORKER: "decode workers",
    la.AGENTS: "agents", la.VLLM_GROUPS: "vLLM with groups of KV blocks",
    la.VLLM_CHUNK_OFFLOAD: "vLLM's offloading as of 0.33", la.VLLM_DRAFTS: "vLLM with drafted tokens",
    la.SGLANG_DRAFTS: "SGLang with drafted tokens", la.DRAFTS_DECODE_WORKER: "decode workers with drafted tokens",
    la.TRTLLM_DRAFTS: "TensorRT-LLM with drafted tokens",
}  # fmt: skip

#: All engines.
ENGINES = tuple(MODULES)

#: engine_entry(sim, op, w, r, now) -> int
_SIGNATURE = types.int64(HandleType(la.Sim), types.int64, types.int64, types.int64, types.float64)


def is_compiled(engine: int) -> bool:
    """Whether this version of ``engine`` is in the on-disk cache."""
    return is_cached(f"hisearch.kernels.{MODULES[engine]}", "engine_entry")


@functools.cache
def _compiled(engine: int) -> Any:
    """The compiled ``engine_entry`` of ``engine``, cached on disk and kept alive with the address of its code."""
    function = importlib.import_module(f"hisearch.kernels.{MODULES[engine]}").engine_entry
    return c_function(function, _SIGNATURE)


def address(engine: int) -> int:
    """Address of the ``engine_entry`` of ``engine``, for ``call_engine``; compiles it if necessary."""
    return engine if config.DISABLE_JIT else int(_compiled(int(engine)).address)


def call_engine(address: int, sim: Any, op: int, w: int, r: int, now: float) -> int:
    """Call the ``engine_entry`` at ``address`` with ``op``; with the jit off ``address`` is the engine's number."""
    module = importlib.import_module(f"hisearch.kernels.{MODULES[address]}")
    return int(module.engine_entry(sim, op, w, r, now))


@intrinsic
def _call(_typing: Any, _address: Any, sim: Any, _op: Any, _w: Any, _r: Any, _now: Any) -> Any:
    def generate(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        word = ir.IntType(64)
        kind = ir.FunctionType(word, [word, word, word, word, ir.DoubleType()])
        return builder.call(builder.inttoptr(values[0], kind.as_pointer()), values[1:])

    return types.int64(types.int64, sim, types.int64, types.int64, types.int64, types.float64), generate


@overload(call_engine)
def _call_engine(address, sim, op, w, r, now):  # type: ignore[no-untyped-def]  # numba compares the argument lists
    def call(address, sim, op, w, r, now):  # type: ignore[no-untyped-def]
        return _call(address, sim, op, w, r, now)

    return call
