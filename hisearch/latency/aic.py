"""aiconfigurator-core as a predictor of steps: queried on a grid of batches, with the results cached on disk.

Notation, per attention group, milliseconds in its interface and seconds here
    token_s(T)           all but attention of a step of T prompt tokens (``mixed_step_breakdown``)
    chunk_s(P, cached)   attention of a prompt chunk, likewise
    decode_s(n, mean)    a step of n decodes of ``mean`` tokens (``decode_step_latency``) beyond token_s(n)

The grid is geometric: two points per octave, from 1 to the power of two at or above the limit. Workers of similar size
therefore share a cache entry. The package's version is part of the cache path.

Interface: ``aiconfigurator_core.sdk.EngineHandle`` of aiconfigurator-core 0.12, the package's supported facade.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.resources
import importlib.util
import logging
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from hisearch.base.dtypes import F8
from hisearch.traces.cache import cache_folder

T = TypeVar("T")

PACKAGE, MODULE = "aiconfigurator-core", "aiconfigurator_core"
#: Versions whose interface and units are known.
VERSIONS = ("0.12",)
#: Version of the cache files' format.
FORM = "1"
#: Attention runs in 16 bits, whatever the format of the KV cache, as everywhere in hisearch.
ATTENTION_MODE = "bfloat16"
#: Batch for which the share of calculated operators is reported.
TYPICAL_TOKENS, TYPICAL_DECODES = 2048, 64


class AicError(ValueError):
    """The package cannot price a worker; says why."""


class AicQuestion(NamedTuple):
    """A worker in the package's names. gemm, moe, kv: quantisation modes; None: the checkpoint's own."""

    model: str
    system: str
    backend: str
    backend_version: str | None
    tensor: int
    attention_data: int
    pipeline: int
    expert_tensor: int
    expert: int
    gemm: str | None
    moe: str | None
    kv: str


class AicTables(NamedTuple):
    """The package's results on the grid, seconds.

    tokens: (A,), token_s: (A,). cached: (C,), chunk_s: (A, C). sequences: (N,), mean: (M,), decode_s: (N, M).
    calculated: share of a typical step's time from the package's formulas rather than its measurements.
    """

    tokens: F8
    token_s: F8
    cached: F8
    chunk_s: F8
    sequences: F8
    mean: F8
    decode_s: F8
    calculated: float


def aic_version() -> str:
    """The installed package's version.

    Raises:
        AicError: it is not installed, or its version is not supported.
    """
    if importlib.util.find_spec(MODULE) is None:
        raise AicError(f"{PACKAGE} is not installed: pip install 'hisearch[aic]'")
    version = importlib.metadata.version(PACKAGE)
    if not version.startswith(tuple(f"{known}." for known in VERSIONS)):
        raise AicError(f"{PACKAGE} {version}: expected version {' or '.join(f'{known}.*' for known in VERSIONS)}")
    return version


def aic_tables(question: AicQuestion, max_tokens: int, max_sequences: int, max_tokens_each: int) -> AicTables:
    """The results on the grid, from the disk cache where present.

    Args:
        question: the worker.
        max_tokens: most tokens of a step.
        max_sequences: most sequences of a step.
        max_tokens_each: most tokens of a sequence.

    Raises:
        AicError: the package is missing, or cannot price the worker.
    """
    version = aic_version()
    axes = tuple(_octaves(limit) for limit in (max_tokens, max_sequences, max_tokens_each))
    text = repr((FORM, version, question, [int(axis[-1]) for axis in axes]))
    path = cache_folder().parent / "aic" / version / f"{hashlib.sha256(text.encode()).hexdigest()}.npz"
    tables = _read(path)
    if tables is None:
        with quiet():
            tables = _ask_grid(_engine(question), question, *axes)
        _write(path, tables)
    return tables


def _octaves(limit: int) -> F8:
    """1, 2, 3, 4, 6, 8, 12, … up to the power of two at or above ``limit``."""
    top = max(int(np.ceil(np.log2(max(limit, 2)))), 1)
    points = {1, *(2**k for k in range(top + 1)), *(3 * 2 ** (k - 1) for k in range(1, top))}
    return np.array(sorted(points), dtype=np.float64)


def configured(question: AicQuestion) -> dict[str, Any]:
    """The worker's split and formats as the package's settings.

    Raises:
        AicError: the package lacks the model; it would look for it online.
    """
    configs = importlib.resources.files(MODULE) / "model_configs"
    known = sorted(
        entry.name.removesuffix("_config.json").replace("--", "/")
        for entry in configs.iterdir()
        if entry.name.endswith("_config.json") and not entry.name.endswith("_hf_quant_config.json")
    )
    if question.model not in known:
        raise AicError(f"{PACKAGE} knows no model {question.model}; known: {', '.join(known)}")
    return {
        "tp_size": question.tensor,
        "pp_size": question.pipeline,
        "attention_dp_size": question.attention_data,
        "moe_tp_size": question.expert_tensor,
        "moe_ep_size": question.expert,
        "gemm_quant_mode": question.gemm,
        "moe_quant_mode": question.moe,
        "kvcache_quant_mode": question.kv,
        "fmha_quant_mode": ATTENTION_MODE,
    }


def _engine(question: AicQuestion) -> Any:
    """The package's handle of a worker.

    Raises:
        AicError: the package lacks the model, or refuses the settings.
    """
    from aiconfigurator_core.sdk import EngineHandle

    names, settings = (question.model, question.system, question.backend), configured(question)
    return answered(
        question, lambda: EngineHandle.compile(*names, backend_version=question.backend_version, **settings)
    )


def _ask_grid(engine: Any, question: AicQuestion, tokens: F8, sequences: F8, lengths: F8) -> AicTables:
    def breakdown(new: float, cached: float) -> tuple[float, float]:
        """Seconds of a prompt chunk alone: (all but attention, attention)."""
        parts = engine.mixed_step_breakdown(int(new), 0, int(new + cached), 2, int(cached))
        return parts[1] / 1e3, parts[2] / 1e3

    def decode(count: float, mean: float) -> float:
        return float(engine.decode_step_latency(int(count), int(mean), 2)) / 1e3

    def grid() -> AicTables:
        cached = np.concatenate(([0.0], lengths))
        alone = [[breakdown(new, before) for before in cached] for new in tokens]
        token_s = np.array([row[0][0] for row in alone])
        steps_s = np.array([[decode(count, mean) for mean in lengths] for count in sequences])
        others_s = np.interp(sequences, tokens, token_s)
        return AicTables(
            tokens, np.maximum.accumulate(token_s), cached, np.array([[cell[1] for cell in row] for row in alone]),
            sequences, lengths, np.maximum(steps_s - others_s[:, None], 0.0), _calculated(engine),
        )  # fmt: skip

    tables = answered(question, grid)
    for name in ("token_s", "chunk_s", "decode_s"):
        values = getattr(tables, name)
        if not (np.isfinite(values).all() and (values >= 0).all()):
            raise AicError(
                f"{PACKAGE} {aic_version()}, {_format_question(question)}: {name} is not finite and non-negative"
            )
    return tables


def _calculated(engine: Any) -> float:
    parts = engine.mixed_step_breakdown_per_op(TYPICAL_TOKENS, TYPICAL_DECODES, TYPICAL_TOKENS, 2, 0)
    operators = [(milliseconds, source) for part in parts for _, milliseconds, _, source in part]
    total = sum(milliseconds for milliseconds, _ in operators)
    return sum(milliseconds for milliseconds, source in operators if source != "silicon") / total if total else 1.0


def answered(question: AicQuestion, ask: Callable[[], T]) -> T:
    """Result of ``ask``, with the package's refusals raised as ``AicError``."""
    from aiconfigurator_core.sdk.errors import PerfDataNotAvailableError

    try:
        return ask()
    except (ValueError, KeyError, NotImplementedError, PerfDataNotAvailableError) as error:
        raise AicError(f"{PACKAGE} {aic_version()} cannot price {_format_question(question)}: {error}") from error


def _format_question(question: AicQuestion) -> str:
    given = {name: value for name, value in question._asdict().items() if value is not None}
    return ", ".join(f"{name} {value}" for name, value in given.items())


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the package's warnings about fallback tables."""
    logger = logging.getLogger(MODULE)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _read(path: Path) -> AicTables | None:
    """The file's tables; None where it is absent or truncated."""
    try:
        with path.open("rb") as file, np.load(file) as stored:
            arrays = {name: stored[name] for name in AicTables._fields}
    except (FileNotFoundError, zipfile.BadZipFile, KeyError, EOFError):
        return None
    return AicTables(**arrays | {"calculated": float(arrays["calculated"])})


def _write(path: Path, tables: AicTables) -> None:
    """Write atomically: several processes may compute the same worker."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".npz", delete=False) as temporary:
        np.savez(temporary, **tables._asdict())
    Path(temporary.name).replace(path)
