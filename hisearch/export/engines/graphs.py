"""Settings of CUDA graphs on command lines: vLLM's compilation config, SGLang's flags by release."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hisearch.export.engines.launch import Launch
from hisearch.export.engines.releases import is_changed


def vllm_compilation(launch: Launch) -> dict[str, Any] | None:
    """VLLM's compiler passes and CUDA graphs where stated."""
    engine = launch.pool.engine
    fused, mode = engine.fused_all_reduce, engine.cudagraph_mode
    settings: dict[str, Any] = {
        "pass_config": None if fused is None else {"fuse_allreduce_rms": fused},
        "cudagraph_mode": None if mode is None else mode.upper(),
        "cudagraph_capture_sizes": engine.cudagraph_capture_sizes,
        "max_cudagraph_capture_size": engine.max_cudagraph_capture_size,
    }
    return {name: value for name, value in settings.items() if value is not None} or None


def _sglang(key: str, *, by_phase: bool) -> Callable[[Launch], Any]:
    """A setting by the flag of releases that name graphs ``by_phase`` or do not; None where the other flag is."""

    def value(launch: Launch) -> Any:
        engine = launch.pool.engine
        return getattr(engine, key) if is_changed(engine, "names_graphs_by_phase") is by_phase else None

    return value


#: Flag -> value, of SGLang.
SGLANG_TABLE: tuple[tuple[str, Callable[[Launch], Any]], ...] = (
    ("--disable-cuda-graph", _sglang("enforce_eager", by_phase=False)),
    ("--cuda-graph-bs", _sglang("cudagraph_capture_sizes", by_phase=False)),
    ("--cuda-graph-max-bs", _sglang("max_cudagraph_capture_size", by_phase=False)),
    ("--disable-decode-cuda-graph", _sglang("enforce_eager", by_phase=True)),
    ("--disable-prefill-cuda-graph", _sglang("enforce_eager", by_phase=True)),
    ("--cuda-graph-bs-decode", _sglang("cudagraph_capture_sizes", by_phase=True)),
    ("--cuda-graph-max-bs-decode", _sglang("max_cudagraph_capture_size", by_phase=True)),
)
