"""A served workload, measured end to end: a folder of requests with their times, settings and operator tables.

requests.jsonl[.gz]   a request a line: id, arrival_s, input_tokens, output_tokens, block_ids (see docs/traces.md),
                      measured: {client_send_s, queued_s, first_token_s, last_token_s}, seconds of one clock
vllm_meta.json        model, vllm_version, engine_kwargs (vLLM's own names), and if known how many KV blocks one
                      engine had: num_gpu_blocks, or kv_cache: {num_gpu_blocks: …}
model_config.json     the model's config.json
operators/            measured operator tables (``latency.measured.operator_tables``), with meta.yaml
peer_summary.txt      optional: another simulator's errors on the same run, a line per figure: "TTFT Mean … -4.0%"
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hisearch.latency.measured.operator_tables import table_hardware, table_meta
from hisearch.latency.sharding import Parallelism
from hisearch.latency.sheets import called
from hisearch.specs.base import DType
from hisearch.specs.deployments.deployment import EngineSpec
from hisearch.specs.documents.huggingface import read_config
from hisearch.specs.errors import SpecError, dotted
from hisearch.specs.models.model import ModelSpec
from hisearch.specs.validation_messages import describe

_DTYPES: dict[str, DType] = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "fp8": "fp8", "fp8_e4m3": "fp8"}
#: Default block size of vLLM.
_BLOCK_TOKENS = 16

#: Key under which vLLM's recorders put the number of blocks, among other facts of the cache.
_NESTED_BLOCKS = "kv_cache.num_gpu_blocks"


#: Arguments of vLLM that change no step: the model's name, loading, sampling, logging.
WITHOUT_EFFECT = frozenset(
    {
        "model", "tokenizer", "revision", "served_model_name", "trust_remote_code", "download_dir", "load_format",
        "seed", "generation_config", "disable_log_stats", "disable_log_requests",
    }
)  # fmt: skip


class CaseError(SpecError):
    """A case that cannot be used; ``str`` of it is ``file: key: what is wrong``."""


class _Row(BaseModel):
    model_config = ConfigDict(frozen=True, allow_inf_nan=False, extra="ignore")


class MeasuredTimes(_Row):
    """Seconds of one clock."""

    client_send_s: float | None = None
    queued_s: float
    first_token_s: float
    last_token_s: float


class MeasuredRequest(_Row):
    """One request and its measured times."""

    id: str | int
    arrival_s: float = Field(ge=0)
    input_tokens: int = Field(ge=1)
    output_tokens: int = Field(ge=1)
    block_ids: list[int] = Field(default_factory=list)
    measured: MeasuredTimes

    @property
    def sent_s(self) -> float:
        """When it was actually sent; load generators are sometimes late."""
        return self.arrival_s if self.measured.client_send_s is None else self.measured.client_send_s


class EngineArguments(_Row):
    """vLLM's engine arguments, by their own names."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    tensor_parallel_size: int = Field(1, ge=1)
    data_parallel_size: int = Field(1, ge=1)
    pipeline_parallel_size: int = Field(1, ge=1, le=1)
    enable_expert_parallel: bool = False
    max_num_seqs: int = Field(256, ge=1)
    max_num_batched_tokens: int = Field(2048, ge=1)
    max_model_len: int | None = Field(None, ge=1)
    block_size: int = Field(_BLOCK_TOKENS, ge=1)
    gpu_memory_utilization: float = Field(0.9, gt=0, le=1)
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    async_scheduling: bool = True
    enforce_eager: bool = False
    dtype: str = "bfloat16"
    kv_cache_dtype: str = "auto"


@dataclass(frozen=True)
class MeasuredCase:
    """A folder, read.

    Attributes:
        accelerator: name in the catalogue.
        kv_capacity_tokens: of one engine, as measured; None where not known.
        peer: the other simulator's relative errors by (metric, statistic), e.g. ("ttft_s", "p50"); empty without one.
        warnings: settings of the engine that are ignored.
    """

    path: Path
    model: ModelSpec
    arguments: EngineArguments
    engine_version: str
    accelerator: str
    requests: list[MeasuredRequest]
    kv_capacity_tokens: int | None
    peer: dict[tuple[str, str], float]
    warnings: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The folder's."""
        return self.path.absolute().name

    @property
    def operators(self) -> Path:
        """Folder of the operator tables."""
        return self.path / "operators"

    @property
    def split(self) -> Parallelism:
        """The model's parallelism. Without expert parallelism, data-parallel engines are replicas."""
        arguments = self.arguments
        if self.model.moe is None or not arguments.enable_expert_parallel:
            return Parallelism(tensor=arguments.tensor_parallel_size)
        ranks = arguments.tensor_parallel_size * arguments.data_parallel_size
        return Parallelism(arguments.tensor_parallel_size, arguments.data_parallel_size, expert=ranks).under("vllm")

    @property
    def engine(self) -> EngineSpec:
        """The engine's settings for the simulation."""
        arguments = self.arguments
        return EngineSpec(
            name="vllm",
            version=self.engine_version,
            max_running_requests=arguments.max_num_seqs,
            chunk_tokens=arguments.max_num_batched_tokens,
            page_tokens=arguments.block_size,
            prefix_caching=arguments.enable_prefix_caching,
            chunked_prefill=arguments.enable_chunked_prefill,
            memory_fraction=arguments.gpu_memory_utilization,
            overlap=arguments.async_scheduling,
            enforce_eager=arguments.enforce_eager,
        )

    @property
    def kv_dtype(self) -> DType:
        """Format of the KV cache."""
        name = self.arguments.kv_cache_dtype
        return self._dtype("kv_cache_dtype", self.arguments.dtype if name == "auto" else name)

    @property
    def weight_dtype(self) -> DType:
        """Format of the weights."""
        return self._dtype("dtype", self.arguments.dtype)

    def _dtype(self, key: str, name: str) -> DType:
        if name not in _DTYPES:
            choices = ", ".join(sorted(_DTYPES))
            raise _error(
                self.path / "vllm_meta.json", f"engine_kwargs.{key}", f"expected one of {choices}, not '{name}'"
            )
        return _DTYPES[name]


def read_case(path: Path, accelerators: list[str]) -> MeasuredCase:
    """Read a case; ``accelerators``: the catalogue's names.

    Raises:
        CaseError: a file is missing or not of the form stated above.
        SpecError: the model's configuration is not understood.
    """
    if not path.is_dir():
        raise _error(path, "", "expected a folder")
    meta = _json(path / "vllm_meta.json")
    engine_kwargs = meta.get("engine_kwargs")
    if not isinstance(engine_kwargs, dict):
        raise _error(path / "vllm_meta.json", "engine_kwargs", "expected an object")
    arguments = _checked(EngineArguments, {key: value for key, value in engine_kwargs.items() if value is not None})
    if isinstance(arguments, str):
        raise _error(path / "vllm_meta.json", "engine_kwargs", arguments)
    blocks = _blocks(path / "vllm_meta.json", meta)
    operators = table_meta(path / "operators")
    model: ModelSpec = read_config(path / "model_config.json").spec
    return MeasuredCase(
        path=path,
        # A configuration does not always name its model.
        model=model.model_copy(update={"huggingface_id": str(meta.get("model") or model.huggingface_id)}),
        arguments=arguments,
        engine_version=str(meta.get("vllm_version", "")),
        accelerator=_accelerator(path, operators, accelerators),
        requests=_requests(path),
        # vLLM keeps one block of the pool for itself.
        kv_capacity_tokens=None if blocks is None else (blocks - 1) * arguments.block_size,
        peer=_peer(path / "peer_summary.txt"),
        warnings=_warnings(engine_kwargs),
    )


def _warnings(engine_kwargs: dict[str, Any]) -> tuple[str, ...]:
    """Warnings about ignored arguments that change steps or memory."""
    return tuple(
        f"engine_kwargs.{key} is not simulated, and left out"
        for key, value in engine_kwargs.items()
        if value is not None and key not in EngineArguments.model_fields and key not in WITHOUT_EFFECT
    )


def _blocks(path: Path, meta: dict[str, Any]) -> int | None:
    """KV blocks of one engine, by either key; None without both.

    Raises:
        CaseError: not a whole number from 2, or two numbers that differ.
    """
    cache = meta.get("kv_cache")
    if cache is not None and not isinstance(cache, dict):
        raise _error(path, "kv_cache", f"expected an object, not {cache!r}")
    stated = {"num_gpu_blocks": meta.get("num_gpu_blocks"), _NESTED_BLOCKS: (cache or {}).get("num_gpu_blocks")}
    blocks_by_key: dict[str, int] = {}
    for key, blocks in stated.items():
        if blocks is None:
            continue
        if not isinstance(blocks, int) or isinstance(blocks, bool) or blocks < 2:
            raise _error(path, key, f"expected a whole number from 2, not {blocks!r}")
        blocks_by_key[key] = blocks
    if len(set(blocks_by_key.values())) > 1:
        raise _error(
            path,
            _NESTED_BLOCKS,
            f"{blocks_by_key[_NESTED_BLOCKS]} is not num_gpu_blocks, {blocks_by_key['num_gpu_blocks']}",
        )
    return next(iter(blocks_by_key.values()), None)


def _error(path: Path, key: str, message: str) -> SpecError:
    return CaseError.at(message, path=path, key=key)


def _checked(kind: type[Any], data: Any) -> Any:
    """The model, or its first problem as text."""
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        return f"{dotted(problem['loc'])}: {describe(problem)}"


def _text(path: Path) -> str:
    try:
        raw = path.read_bytes()
        return (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise _error(path, "", f"cannot be read: {error}") from None


def _json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(_text(path))
    except json.JSONDecodeError as error:
        raise CaseError.at(f"not JSON: {error.msg}", path=path, line=error.lineno) from None
    if not isinstance(data, dict):
        raise _error(path, "", "expected an object")
    return data


def _requests(folder: Path) -> list[MeasuredRequest]:
    paths = [path for path in (folder / "requests.jsonl", folder / "requests.jsonl.gz") if path.exists()]
    if not paths:
        raise _error(folder / "requests.jsonl", "", "is missing (.jsonl or .jsonl.gz)")
    rows = []
    for number, line in enumerate(_text(paths[0]).splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = _checked(MeasuredRequest, json.loads(line))
        except json.JSONDecodeError as error:
            raise CaseError.at(f"not JSON: {error.msg}", path=paths[0], line=number) from None
        if isinstance(row, str):
            raise CaseError.at(row, path=paths[0], line=number)
        rows.append(row)
    if not rows:
        raise _error(paths[0], "", "has no requests")
    return rows


def _accelerator(folder: Path, meta: dict[str, Any], names: list[str]) -> str:
    """The catalogue's name of the tables' hardware."""
    hardware = table_hardware(meta)
    if (name := called(hardware, names)) is not None:
        return name
    raise _error(
        folder / "operators" / "meta.yaml",
        "hardware",
        f"'{hardware}' is no accelerator of the catalogue; known: {', '.join(sorted(names))}",
    )


_PEER_METRICS = {"TTFT": "ttft_s", "TPOT": "tpot_s", "Latency": "latency_s"}
_PEER_STATISTICS = {"Mean": "mean", "Median": "p50", "P90": "p90", "P95": "p95", "P99": "p99"}


def _peer(path: Path) -> dict[tuple[str, str], float]:
    if not path.exists():
        return {}
    errors = {}
    for line in _text(path).splitlines():
        match = re.match(r"(TTFT|TPOT|Latency) (Mean|Median|P90|P95|P99)\s.*?([-+]?[\d.]+)%\s*$", line)
        if match:
            metric, statistic, percent = match.groups()
            errors[_PEER_METRICS[metric], _PEER_STATISTICS[statistic]] = float(percent) / 100
    return errors
