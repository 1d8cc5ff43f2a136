"""CUDA graphs of an engine: in which steps the host launches kernels one by one, and which batches are captured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol, get_args

from hisearch.specs.base import ENGINE_TITLES, EngineName
from hisearch.specs.errors import KeyedError
from hisearch.specs.versions import precedes

#: vLLM's modes (``CUDAGraphMode`` in ``config/compilation.py``, 0.19.1).
GraphMode = Literal["none", "piecewise", "full", "full_decode_only", "full_and_piecewise"]

#: Mode of each engine where none is stated: vLLM's since 0.11; SGLang and TensorRT-LLM capture decode steps.
GRAPH_MODES: dict[EngineName, GraphMode] = {
    "vllm": "full_and_piecewise", "sglang": "full_decode_only", "trtllm": "full_decode_only",
}  # fmt: skip

#: Modes that other engines than vLLM have. TensorRT-LLM's pieces hold steps of up to ``max_num_tokens``
#: (``torch_compile_config.enable_piecewise_cuda_graph``, ``TorchCompileConfig`` in ``llm_args.py``).
MODES: dict[EngineName, tuple[GraphMode, ...]] = {
    "sglang": (), "trtllm": ("full_decode_only", "full_and_piecewise"),
}  # fmt: skip

#: MiB of an accelerator from which SGLang's largest decode graph is this, on less than ``MANY_RANKS`` ranks and on more
#: (``_handle_gpu_memory_settings``, 0.5.23), and before ``MORE_GRAPHS_SINCE`` (0.5.9).
SGLANG_LARGEST = (
    (160 * 1024, 512, 512), (60 * 1024, 256, 512), (35 * 1024, 32, 160), (20 * 1024, 48, 160), (0, 8, 8),
)  # fmt: skip
FORMER_SGLANG_LARGEST = (*SGLANG_LARGEST[:3], (20 * 1024, 24, 80), SGLANG_LARGEST[-1])
MANY_RANKS = 4
#: Some release after 0.5.9 and by 0.5.23.
MORE_GRAPHS_SINCE = "0.5.23"


class Engine(Protocol):
    """The settings (``specs.deployments.engine.EngineSpec``) that are read."""

    @property
    def name(self) -> EngineName: ...  # noqa: D102
    @property
    def version(self) -> str: ...  # noqa: D102
    @property
    def enforce_eager(self) -> bool: ...  # noqa: D102
    @property
    def cudagraph_mode(self) -> GraphMode | None: ...  # noqa: D102
    @property
    def cudagraph_capture_sizes(self) -> list[int] | None: ...  # noqa: D102
    @property
    def max_cudagraph_capture_size(self) -> int | None: ...  # noqa: D102


def graph_mode(engine: Engine) -> GraphMode:
    """The mode, stated or not."""
    return "none" if engine.enforce_eager else engine.cudagraph_mode or GRAPH_MODES[engine.name]


def capture_sizes(engine: Engine, known: Sequence[int], memory_bytes: float, ranks: int) -> list[int]:
    """Tokens of a step for which graphs are captured, rising; none without graphs.

    Args:
        engine: its settings.
        known: sizes that the engine captures by default, SGLang those up to its default for the accelerator; empty:
            decode steps of any size.
        memory_bytes: of the accelerator.
        ranks: of a worker, over all attention groups (SGLang ``tp_size``).

    Sizes up to a stated largest are the default ones, or vLLM's: 1, 2, 4, by 8 up to 256, by 16 beyond
    (``VllmConfig._set_cudagraph_sizes``, 0.19.1). The largest is captured too.
    """
    if graph_mode(engine) == "none":
        return []
    if engine.cudagraph_capture_sizes is not None:
        return list(engine.cudagraph_capture_sizes)
    most = engine.max_cudagraph_capture_size
    if most is None:
        if engine.name == "sglang":
            largest = _sglang_largest(engine.version, memory_bytes, ranks)
            return [size for size in known if size <= largest]
        return list(known)
    if engine.name == "sglang" and known:
        known = (*known, *range(544, most + 1, 32))
    pattern = known or (1, 2, 4, *range(8, 257, 8), *range(272, most + 1, 16))
    return sorted({*(size for size in pattern if size <= most), most})


def _sglang_largest(version: str, memory_bytes: float, ranks: int) -> int:
    """Requests of SGLang's largest decode graph where none is stated."""
    largest = FORMER_SGLANG_LARGEST if precedes(version, MORE_GRAPHS_SINCE) else SGLANG_LARGEST
    of_few, of_many = next(sizes for least_mib, *sizes in largest if memory_bytes >= least_mib * 2**20)
    return of_few if ranks < MANY_RANKS else of_many


def check_graphs(engine: Engine) -> None:
    """Refuse settings of CUDA graphs that contradict each other, or that the engine does not have.

    Raises:
        KeyedError: which key, and what is expected.
    """
    sizes, most = engine.cudagraph_capture_sizes, engine.max_cudagraph_capture_size
    mode, known = engine.cudagraph_mode, MODES.get(engine.name, get_args(GraphMode))
    if mode is not None and mode not in known:
        expected = f"has {' and '.join(known)} alone" if known else "has enforce_eager"
        raise KeyedError(("cudagraph_mode",), f"is {mode}; {ENGINE_TITLES[engine.name]} {expected}")
    if sizes is not None and (not sizes or sizes != sorted(set(sizes))):
        raise KeyedError(("cudagraph_capture_sizes",), f"need to rise, got {sizes}")
    if sizes is not None and most is not None and most != sizes[-1]:
        raise KeyedError(("max_cudagraph_capture_size",), f"is {most}, but the largest captured size is {sizes[-1]}")
    stated = [
        name for name, value in (("cudagraph_capture_sizes", sizes), ("max_cudagraph_capture_size", most)) if value
    ]
    if engine.enforce_eager and engine.cudagraph_mode not in (None, "none"):
        raise KeyedError(("cudagraph_mode",), f"is {engine.cudagraph_mode}, but enforce_eager leaves no graph")
    if graph_mode(engine) == "none" and stated:
        raise KeyedError((stated[0],), "needs CUDA graphs, of which these settings have none")
