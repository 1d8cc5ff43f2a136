"""Constants of the memory plan, each with its unit, plausible range and source.

Bytes are per rank unless the unit says otherwise. A constant outside its range raises an error on import.
The figures of vLLM's source are those of its wheels 0.9.2, 0.11.1, 0.13.0, 0.15.1, 0.16.0, 0.17.0, 0.19.0, 0.20.0 and
0.33.0.
"""

from __future__ import annotations

from dataclasses import dataclass

GIB = float(2**30)
MIB = float(2**20)


@dataclass(frozen=True)
class Constant:
    """One constant.

    Attributes:
        value: in ``unit``.
        least, most: plausible range.
        source: of the value; says so where logs of KV capacity decided it.

    Raises:
        ValueError: the value is outside its range.
    """

    value: float
    unit: str
    least: float
    most: float
    source: str

    def __post_init__(self) -> None:
        if not self.least <= self.value <= self.most:
            raise ValueError(f"{self.value:g} {self.unit} is outside {self.least:g} to {self.most:g}")


CONSTANTS: dict[str, Constant] = {
    "driver": Constant(
        0.47 * GIB, "bytes", 0.3 * GIB, 0.7 * GIB,
        "nvidia-smi's total less CUDA's, a line through seven accelerators. 0.42 GiB of 22.5 (A10G), 0.47 "
        "of 24 (RTX 4090), 0.57 of 45 (L40S), 0.56 of 48 (A6000), 0.51 of 80 (H100), 0.62 of 96 (RTX PRO 6000), 0.59 "
        "of 140 (H200)",
    ),
    "driver_share": Constant(
        0.001, "bytes per byte of memory", 0.0, 0.003, "the slope of the same line",
    ),
    "kernels": Constant(
        0.044 * GIB, "bytes", 0.01 * GIB, 0.2 * GIB,
        "vLLM from 0.11.1 on: modules that CUDA loads after the first snapshot of memory, all that is used outside "
        "PyTorch then. In sight of the logs: RTX 4090, H100 (Llama-2-7B) and A6000 (twice) leave 0.04 to 0.05 GiB",
    ),
    "former_kernels": Constant(
        0.12 * GIB, "bytes", 0.05 * GIB, 0.5 * GIB,
        "vLLM before 0.11.1: 'non_torch_memory takes 0.12GiB' in the log of Llama-3.1-8B on H100",
    ),
    "collectives": Constant(
        0.5 * GIB, "bytes", 0.3 * GIB, 0.8 * GIB,
        "vLLM from 0.11.1 on, several ranks: buffers that NCCL connects at the first collectives of the profiling run; "
        "those of its start come before the snapshot. In sight of the logs: TP 2 and 4 on H100 leave 0.45 to 0.55 GiB",
    ),
    "former_collectives": Constant(
        1.79 * GIB, "bytes", 0.8 * GIB, 3.5 * GIB,
        "vLLM before 0.11.1, several ranks: all of NCCL's and the all-reduce's buffers, 3.58 - 1.79 GiB in its pull "
        "request 10511. TensorRT-LLM: the same, assumed",
    ),
    "sglang_collectives": Constant(
        1.65 * GIB, "bytes", 0.8 * GIB, 2.5 * GIB,
        "SGLang, several ranks: its free memory excludes them. In sight of its two logs, which leave 1.55 and 1.87 GiB",
    ),
    "context": Constant(
        0.62 * GIB, "bytes", 0.4 * GIB, 1.0 * GIB,
        "SGLang and TensorRT-LLM: CUDA's context and loaded modules, which their free memory excludes; assumed",
    ),
    "sort_sampler": Constant(
        38.0, "bytes per sequence and vocabulary entry", 36.0, 50.0,
        "vLLM before 0.17.0 sorts all logits: 2 in 16 bits, 4 in float32, 4 sorted, 8 of indices, and in PyTorch's "
        "segmented sort 8 of indices and 12 of scratch. Logged: 1.19 GiB for 256 sequences of Llama-3.1-8B",
    ),
    "sampler": Constant(
        18.0, "bytes per sequence and vocabulary entry", 10.0, 24.0,
        "vLLM from 0.17.0 on masks logits in place (a kernel of its own, later FlashInfer): 2 in 16 bits, 4 in "
        "float32, up to 4 of the kernel's buffer, 4 of probabilities, 4 of exponentials",
    ),
    "other_sampler": Constant(
        14.0, "bytes per sequence and vocabulary entry", 8.0, 40.0,
        "SGLang and TensorRT-LLM: logits in 16 bits and float32, and probabilities; assumed",
    ),
    "flush": Constant(
        60.0 * MIB, "bytes", 4.0 * MIB, 256.0 * MIB,
        "Inductor clears the L2 cache between timings with a buffer of its size: 50 MiB on H100, 72 on RTX 4090, 40 on "
        "A100, 96 on L40S; one figure stands for all",
    ),
    "graphs": Constant(
        1.0 * GIB, "bytes", 0.2 * GIB, 3.0 * GIB, "SGLang's and TensorRT-LLM's decode graphs; assumed",
    ),
    "graph_estimate": Constant(
        0.5 * GIB, "bytes", 0.1 * GIB, 1.5 * GIB,
        "vLLM from 0.20.0 on subtracts an estimate of its CUDA graphs; its logs say 0.17 GiB (few sizes), 0.36 "
        "(16 sizes) and 0.73 (51 and 35 sizes)",
    ),
}  # fmt: skip


def constant(name: str) -> float:
    """The value of one of ``CONSTANTS``."""
    return CONSTANTS[name].value


#: Bytes outside PyTorch's allocations that SGLang and TensorRT-LLM do not count as free: of one rank; more of several.
RUNTIME_BYTES: dict[str, float] = {"sglang": constant("context"), "trtllm": constant("context")}
COLLECTIVE_BYTES: dict[str, float] = {
    "sglang": constant("sglang_collectives"),
    "trtllm": constant("former_collectives"),
}
CUDA_GRAPH_BYTES = constant("graphs")
