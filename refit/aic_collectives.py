"""Readers of aiconfigurator-core's collectives: between ranks, and to and from the ranks of experts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hisearch.calibrate.tables import COLUMNS
from refit.aic_files import DTYPES, newest, read, source_of

if TYPE_CHECKING:
    import pandas as pd

#: An engine's own all-reduce.
ALL_REDUCE_TABLE = "custom_allreduce_perf"

#: Multiprocessors that DeepEP's high-throughput kernels use by default (``Buffer.num_sms``).
DEEP_EP_MULTIPROCESSORS = 20


def read_collectives(data: Path, system: str, engine: str) -> tuple[pd.DataFrame, str] | None:
    """Collectives of 16-bit elements, and the tables' names; None where none was measured.

    The all-reduce is the engine's own inside a CUDA graph; the other collectives are NCCL's.
    """
    import pandas as pd

    folder = data / system / "comm"
    engine_table = newest(folder / engine, ALL_REDUCE_TABLE)
    nccl = newest(folder / "nccl", "nccl_perf")
    parts, sources = [], []
    if engine_table is not None:
        parts.append(_in_graph(read(engine_table)).assign(collective="all_reduce"))
        sources.append(f"{engine}/{engine_table.parent.name}/{engine_table.stem}")
    if nccl is not None:
        frame = read(nccl)
        frame = frame[frame["nccl_dtype"] == "half"]
        frame = frame.assign(collective=frame["op_name"].replace("alltoall", "all_to_all"))
        known = {"all_gather", "reduce_scatter", "all_to_all"} | ({"all_reduce"} if engine_table is None else set())
        parts.append(frame[frame["collective"].isin(known)])
        sources.append(f"nccl/{nccl.parent.name}/{nccl.stem}")
    if not parts:
        return None
    return _as_collectives(pd.concat(parts)), ", ".join(sources)


def read_exchange(data: Path, system: str, engine: str) -> tuple[dict[str, pd.DataFrame], str] | None:
    """The experts' all-to-all by format, in the columns of collectives, and the tables' names; None where not measured.

    TensorRT-LLM runs its two-sided kernels over NVLink, with the low-precision combine where measured. vLLM runs the
    one-sided ones (FlashInfer's). SGLang runs DeepEP's: low-latency kernels up to the most tokens they were measured
    with, high-throughput kernels beyond. ``payload_bytes``: a rank's tokens in 16 bits, a copy for each expert.
    """
    folder = data / system / "comm"
    if engine == "sglang":
        return _deep_ep(folder / "sglang", data)
    path = newest(folder / "trtllm", "trtllm_alltoall_perf")
    if path is None:
        return None
    frame = read(path)
    kernels = "NVLinkTwoSided" if engine == "trtllm" else "NVLinkOneSided"
    frame = frame[frame["source"] == kernels].rename(columns={"sets": "ranks"})
    frame["payload_bytes"] = 2.0 * frame["tokens"] * frame["hidden"] * frame["per_token"]
    by_format = {}
    for dtype, rows in frame.groupby("moe_dtype"):
        narrow_combine = "alltoall_combine_low_precision"
        dropped = "alltoall_combine" if (rows["op_name"] == narrow_combine).any() else narrow_combine
        total = rows[rows["op_name"] != dropped].groupby(["ranks", "payload_bytes"])["latency_s"].sum()
        by_format[DTYPES[str(dtype)]] = total.reset_index()
    return by_format, f"{source_of(path, data)} ({kernels})"


def _deep_ep(folder: Path, data: Path) -> tuple[dict[str, pd.DataFrame], str] | None:
    """``read_exchange`` for SGLang: tables of one host; tokens go out in 8 bits and come back in 16."""
    import pandas as pd

    low = newest(folder, "wideep_deepep_ll_perf")
    high = newest(folder, "wideep_deepep_normal_perf")
    if low is None or high is None:
        return None
    system = folder.parent.parent.name
    low_latency, high_throughput = pd.read_parquet(low), pd.read_parquet(high)
    low_latency["latency_s"] = (low_latency["dispatch_avg_t_us"] + low_latency["combine_avg_t_us"]) * 1e-6
    columns = ("dispatch_transmit_us", "dispatch_notify_us", "combine_transmit_us", "combine_notify_us")
    high_throughput["latency_s"] = high_throughput[list(columns)].sum(axis=1) * 1e-6
    share = DEEP_EP_MULTIPROCESSORS
    high_throughput = high_throughput[
        (high_throughput["dispatch_sms"] == share) & (high_throughput["combine_sms"] == share)
    ]
    shape = {"hidden_size": 7168, "num_topk": 8, "num_experts": 256}
    low_latency, high_throughput = (
        frame[(frame[list(shape)] == pd.Series(shape)).all(axis=1)] for frame in (low_latency, high_throughput)
    )
    frame = pd.concat([low_latency, high_throughput[high_throughput["num_token"] > low_latency["num_token"].max()]])
    payload_bytes = 2.0 * frame["num_token"] * frame["hidden_size"] * frame["num_topk"]
    ranks = 4 if system.startswith("gb") else 8
    rows = frame.assign(payload_bytes=payload_bytes, ranks=ranks)[["ranks", "payload_bytes", "latency_s"]]
    return {"fp8_block": rows}, f"{source_of(low, data)}, {high.stem}"


def read_all_reduce(data: Path, system: str, engine: str, version: str) -> pd.DataFrame:
    """The all-reduce of one version of an engine. ``read_aiconfigurator`` reads the newest version.

    Raises:
        FileNotFoundError: it was not measured.
    """
    path = data / system / "comm" / engine / version / f"{ALL_REDUCE_TABLE}.parquet"
    return _as_collectives(_in_graph(read(path)).assign(collective="all_reduce"))


def _in_graph(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows measured inside a CUDA graph; all rows where none was."""
    if "backend" not in frame.columns:
        return frame
    in_graph = frame["backend"].str.endswith("_graph")
    return frame[in_graph] if in_graph.any() else frame


def _as_collectives(frame: pd.DataFrame) -> pd.DataFrame:
    frame = frame.assign(payload_bytes=frame["message_size"] * 2.0)
    return frame[[*COLUMNS["collectives"], "latency_s", "source"]]
