"""KV capacities that engines logged when they started, and what the plan says of each.

Sources: vLLM's start-up log of late 2024 (Llama-3.1-8B) and its issue 21348; SGLang's log in the same issue, and pull
request 263 of ai-dynamo/aisimulate; github inference-sim/inference-sim, testdata/trained_physics_iter29.json and
sim-to-real-accuracy-validation (vLLM 0.15.1 on H100, 128 sequences); github casys-kaist/LLMServingSim (RTX A6000); a
start of vLLM on an RTX 4090 with 25,250,627,584 bytes, 2,588 blocks of 16; vLLM's issue 40691 (Qwen3.5-27B; that its
H20 has 141 GB is inferred: weights and logged blocks do not fit 96).
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass, field
from typing import Any

from hisearch.latency.device_memory.constants import GIB, constant
from hisearch.latency.device_memory.kv_groups import kv_groups_of
from hisearch.latency.device_memory.plan import MemoryPlan, plan_memory
from hisearch.latency.sharding import Parallelism
from hisearch.specs.base import DType, EngineName
from hisearch.specs.deployments.deployment import EngineSpec
from hisearch.specs.deployments.pool import PoolSpec
from hisearch.specs.documents.catalogue import Catalogue
from hisearch.specs.models.model import ModelSpec


def _model(name: str, **fields: object) -> ModelSpec:
    """A published model that the catalogue does not have, by its config.json."""
    facts = {"source": f"config.json of {name}", "as_of": datetime.date(2026, 11, 1)}
    return ModelSpec.model_validate({"huggingface_id": name, "head_dim": 128, "provenance": facts, **fields})


LLAMA_2_7B = _model(
    "meta-llama/Llama-2-7b-hf", layers=32, hidden_size=4096, attention_heads=32, kv_heads=32, intermediate_size=11008,
    vocab_size=32000, max_context_tokens=4096,
)  # fmt: skip
NEMO_12B = _model(
    "mistralai/Mistral-Nemo-Instruct-2407", layers=40, hidden_size=5120, attention_heads=32, kv_heads=8,
    intermediate_size=14336, vocab_size=131072, max_context_tokens=131072,
)  # fmt: skip
YI_34B = _model(
    "01-ai/Yi-34B", layers=60, hidden_size=7168, attention_heads=56, kv_heads=8, intermediate_size=20480,
    vocab_size=64000, max_context_tokens=4096,
)  # fmt: skip


@dataclass(frozen=True)
class Logged:
    """A start of an engine.

    Attributes:
        model: name in the catalogue, or its own.
        version: of the engine, where known.
        tokens: KV capacity as logged; ``about``: rounded in the source. Of groups of layers: tokens of all blocks.
        chose: the constant that was chosen in sight of it, "" for none.
        longest: sequence that was asked for; 0: the model's.
    """

    title: str
    model: str | ModelSpec
    accelerator: str
    tokens: int
    engine: EngineName = "vllm"
    version: str = ""
    tensor: int = 1
    expert: int = 1
    eager: bool = False
    weight_dtype: DType | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    about: str = ""
    chose: str = ""
    longest: int = 0

    def plan(self, catalogue: Catalogue) -> MemoryPlan:
        """As planned; of groups of layers, tokens of all blocks."""
        model = self.model if isinstance(self.model, ModelSpec) else catalogue.get("Model", self.model).spec
        if self.longest:
            model = model.model_copy(update={"max_context_tokens": self.longest})
        accelerator = catalogue.get("Accelerator", self.accelerator).spec
        engine = {"name": self.engine} | ({"version": self.version} if self.version else {}) | self.settings
        pool = PoolSpec.model_validate(
            {"accelerator": self.accelerator, "tensor_parallel": self.tensor, "kv_dtype": "bf16", "engine": engine}
        )
        return plan_memory(
            model,
            accelerator,
            kv_groups=kv_groups_of(pool, model, accelerator),
            tensor_parallel=self.tensor,
            parallelism=Parallelism(self.tensor, expert=self.expert),
            weight_dtype=self.weight_dtype,
            kv_dtype="bf16",
            engine=EngineSpec.model_validate({"name": self.engine} | self.settings),
            accelerator_name=self.accelerator,
            engine_version=self.version,
            eager=self.eager,
        )

    def left(self, catalogue: Catalogue) -> float:
        """Bytes that the log leaves for the constant which it chose, all else as planned."""
        plan = self.plan(catalogue)
        missing = (plan.kv_capacity_tokens - self.tokens) * plan.kv_bytes_per_token_per_rank
        share = self.settings.get("memory_fraction", 0.9) if self.engine == "sglang" else 1.0
        return constant(self.chose) + missing / share


def _open_loop(
    title: str, model: str | ModelSpec, tokens: int, chunk: int, tensor: int = 1, chose: str = "", **fields: Any
) -> Logged:
    """A run of vLLM 0.15.1 on H100."""
    settings = {"chunk_tokens": chunk, "max_running_requests": 128}
    return Logged(
        title, model, "h100-sxm", tokens, version="0.15.1", tensor=tensor, settings=settings, chose=chose, **fields
    )


LOGGED = (
    Logged(
        "vLLM of late 2024, Llama-3.1-8B, H100", "llama-3.1-8b", "h100-sxm", 449_986, version="0.6.4",
        settings={"chunk_tokens": 2048}, chose="former_kernels",
    ),
    Logged(
        "vLLM of July 2025, Qwen3-235B FP8, 4 x H100, 1,024 sequences", "qwen3-235b-a22b", "h100-sxm", 178_880,
        version="0.9.2", tensor=4, weight_dtype="fp8", settings={"max_running_requests": 1024},
    ),
    Logged(
        "vLLM 0.11.1, Llama-3.1-8B, A6000, eager", "llama-3.1-8b", "a6000", 216_720, version="0.11.1", eager=True,
        settings={"chunk_tokens": 2048}, chose="kernels",
    ),
    Logged(
        "vLLM 0.13.0rc2, Llama-3.1-8B, A6000, 128 sequences, eager", "llama-3.1-8b", "a6000", 221_504,
        version="0.13.0rc2", eager=True, settings={"chunk_tokens": 2048, "max_running_requests": 128}, chose="kernels",
    ),
    Logged(
        "vLLM, Llama-3.1-8B, RTX 4090", "llama-3.1-8b", "rtx4090", 2588 * 16, settings={"chunk_tokens": 2048},
        chose="kernels",
    ),
    _open_loop("vLLM 0.15.1, Llama-2-7B, H100 (four runs)", LLAMA_2_7B, 119_408, 2048, chose="kernels"),
    _open_loop("vLLM 0.15.1, Qwen2.5-7B, H100, 2,048 tokens", "qwen2.5-7b", 1_045_632, 2048, chose="kernels"),
    _open_loop("vLLM 0.15.1, Qwen2.5-7B, H100, 1,024 tokens", "qwen2.5-7b", 1_045_888, 1024, chose="kernels"),
    _open_loop("vLLM 0.15.1, Mistral-Nemo-12B, H100", NEMO_12B, 308_016, 2048, chose="kernels"),
    _open_loop("vLLM 0.15.1, Mistral-Nemo-12B, 2 x H100", NEMO_12B, 768_144, 1024, 2, "collectives"),
    _open_loop("vLLM 0.15.1, Yi-34B, 2 x H100", YI_34B, 332_688, 2048, 2, "collectives"),
    _open_loop("vLLM 0.15.1, Llama-3.1-70B, 4 x H100, 8,192 tokens", "llama-3.1-70b", 484_016, 8192, 4, "collectives"),
    _open_loop("vLLM 0.15.1, Llama-3.1-70B, 4 x H100, 2,048 tokens", "llama-3.1-70b", 486_800, 2048, 4, "collectives"),
    _open_loop(
        "vLLM 0.15.1, Llama-4-Scout FP8, 2 x H100 (four runs)", "llama-4-scout", 132_048, 2048, 2, expert=2,
        weight_dtype="fp8",
    ),
    Logged(
        "SGLang, Qwen3-235B FP8, 4 x H100", "qwen3-235b-a22b", "h100-sxm", 367_404, "sglang", tensor=4,
        weight_dtype="fp8", settings={"memory_fraction": 0.93}, chose="sglang_collectives",
    ),
    Logged(
        "SGLang, DeepSeek-R1, 8 x H200", "deepseek-v3", "h200", 509_000, "sglang", tensor=8, about="about ",
        settings={"memory_fraction": 0.82, "chunk_tokens": 32768}, chose="sglang_collectives",
    ),
    # 33.04 requests of 32,768 tokens, each of 42 blocks and a state in each of three groups: 1,487 blocks of 784.
    Logged(
        "vLLM 0.19.0, Qwen3.5-27B, H20 of 141 GB", "qwen3.5-27b", "h20-3e", 1_487 * 784, version="0.19.0",
        settings={"chunk_tokens": 16384, "max_running_requests": 16, "prefix_caching": False}, longest=32768,
    ),
)  # fmt: skip


def without_itself(logged: Logged, catalogue: Catalogue) -> float | None:
    """Error of the plan where ``logged`` has no say in its constant, which is the mean of what the others leave for it.

    None where no other log bears on the constant, or none chose it in sight of this log.
    """
    if not logged.chose:
        return None
    others = [other.left(catalogue) for other in LOGGED if other is not logged and other.chose == logged.chose]
    if not others:
        return None
    plan = logged.plan(catalogue)
    share = logged.settings.get("memory_fraction", 0.9) if logged.engine == "sglang" else 1.0
    more = (constant(logged.chose) - sum(others) / len(others)) * share
    return (plan.kv_bytes + more) / plan.kv_bytes_per_token_per_rank / logged.tokens - 1.0


def rows(catalogue: Catalogue) -> list[list[str]]:
    """Cells of the table: log, logged, planned, error, GiB of a rank, which constant it chose, error without itself."""
    body = []
    for logged in LOGGED:
        plan = logged.plan(catalogue)
        disaggregated = plan.kv_capacity_tokens - logged.tokens
        alone = without_itself(logged, catalogue)
        body.append(
            [
                logged.title,
                f"{logged.about}{logged.tokens:,}",
                f"{plan.kv_capacity_tokens:,}",
                f"{100 * disaggregated / logged.tokens:+.2f} %",
                f"{disaggregated * plan.kv_bytes_per_token_per_rank / GIB:+.2f}",
                f"`{logged.chose}`" if logged.chose else "none",
                "" if alone is None else f"{100 * alone:+.2f} %",
            ]
        )
    return body


HEADS = ("engine, model, accelerators", "logged tokens", "planned", "error", "GiB a rank", "chose", "without itself")
