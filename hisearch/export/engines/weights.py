"""The weights that a launch loads: the published ones, quantized ones, or those that the user has to bring."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from hisearch.export.engines.launch import Launch
from hisearch.latency.device_memory.loading import FullLoad, full_load
from hisearch.specs.models.model import names_weights

#: Formats in which an engine computes -> their names.
HALF_OR_FULL = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


class Checkpoint(NamedTuple):
    """Weights that the user has to supply: their format, and why the published ones do not suffice."""

    dtype: str
    reason: str


def loading(launch: Launch) -> FullLoad | None:
    """A rank's memory while its weights are quantised; None where they are never all held (vLLM), or not quantised."""
    pool = launch.pool
    return full_load(
        launch.model,
        launch.accelerator,
        engine=pool.engine.name,
        tensor_parallel=pool.tensor_parallel,
        parallelism=pool.parallelism,
        weight_dtype=pool.weight_dtype,
    )


def needs_checkpoint(launch: Launch) -> Checkpoint | None:
    """The weights that need a separately quantized checkpoint, or None.

    vLLM and SGLang quantize 16-bit weights to fp8 while loading, SGLang only where the 16-bit weights fit. Every other
    change of format needs a separate checkpoint, as does any change on TensorRT-LLM.
    """
    pool, stored = launch.pool, launch.model.weight_dtype
    weight_dtype = pool.weight_dtype or stored
    if weight_dtype == stored or (stored in HALF_OR_FULL and weight_dtype in HALF_OR_FULL):
        return None
    if weight_dtype != "fp8" or stored not in HALF_OR_FULL or pool.engine.name == "trtllm":
        return Checkpoint(
            weight_dtype, f"the published ones have {stored}, and the engine cannot convert them while loading"
        )
    held = loading(launch)
    return None if held is None or held.fits else Checkpoint(weight_dtype, held.sentence(stored, pool.accelerator))


def weights_to_bring(launch: Launch) -> Checkpoint | None:
    """The weights that the user has to name, or None where the published ones are known and suffice."""
    needed = needs_checkpoint(launch)
    if needed is not None or names_weights(launch.model.huggingface_id):
        return needed
    stored = launch.model.weight_dtype
    return Checkpoint(stored, f"{launch.model.huggingface_id} is the name of a file, no Hugging Face id")


def weights_notice(launches: Iterable[Launch]) -> str:
    """A notice where the export does not know the weights' Hugging Face id; "" where it does."""
    unknown = [launch.model.huggingface_id for launch in launches if not names_weights(launch.model.huggingface_id)]
    if not unknown:
        return ""
    return (
        f"REPLACE THE MODEL'S NAME: {unknown[0]} is what its file is called, and no Hugging Face id. Set MODEL to "
        "the id or folder of the weights wherever this export asks for it; clients ask for that name too. To have it "
        "written here, run the study with --set spec.huggingface_id=ORGANISATION/MODEL."
    )
