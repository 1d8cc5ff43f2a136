"""Tables of engines' former versions, and the laws that rest on them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from hisearch.latency.laws.gemm import gemm_s
from hisearch.latency.laws.moe import Experts, drawn, moe_s
from hisearch.latency.laws.sheet import Sheet
from hisearch.latency.laws.sparse import indexer, sparse_decode_s
from hisearch.latency.sharding import Parallelism, shard
from hisearch.specs.documents.catalogue import Catalogue
from hisearch.specs.machines.laws import SparseTerms
from refit.aic_tables import read_former_experts, read_former_products, read_former_sparse
from refit.former import FORMER_TABLES, former_folder

CATALOGUE = Catalogue()


def write_tables(root: Path) -> None:
    """Tables as aiconfigurator 0.8.0 has them: two blocks that count, one of another model, one not measured."""
    folder = root / "b200_sxm" / "sglang" / "0.5.10"
    folder.mkdir(parents=True)
    for phase, isl, step in (("context", 4096, 0), ("generation", 1, 511)):
        name = f"dsa_{phase}_module"
        cells = {
            "op_name": name, "kernel_source": "dsa_nsa", "gemm_type": "float16", "kv_cache_dtype": "fp8",
            "num_heads": 8, "batch_size": 2, "isl": isl, "step": step,
        }  # fmt: skip
        rows = [
            {**cells, "model": "zai-org/GLM-5", "latency": 0.25},
            {**cells, "model": "zai-org/GLM-5", "latency": 0.0},
            {**cells, "model": "another/model", "latency": 0.5},
        ]
        pd.DataFrame(rows).to_csv(folder / f"{name}_perf.txt", index=False)


def test_blocks_are_read_from_the_former_layout(tmp_path: Path) -> None:
    write_tables(tmp_path / "aiconfigurator" / "systems" / "data")
    frame, source = read_former_sparse(former_folder(tmp_path), "b200_sxm", "sglang", "0.5.10")
    assert source == "aiconfigurator 0.8.0, b200_sxm/sglang/0.5.10/dsa_*_module_perf"
    rows = frame.set_index("phase")[["model", "dtype", "kv_dtype", "new_tokens", "cached_tokens", "latency_s"]]
    assert rows.loc["prefill"].tolist() == ["glm-5", "bf16", "fp8", 4096, 0, pytest.approx(2.5e-4)]
    assert rows.loc["decode"].tolist() == ["glm-5", "bf16", "fp8", 1, 511, pytest.approx(2.5e-4)]
    with pytest.raises(FileNotFoundError):
        read_former_sparse(former_folder(tmp_path), "b200_sxm", "sglang", "0.5.9")


def test_experts_are_read_from_the_former_layout(tmp_path: Path) -> None:
    folder = tmp_path / "h200_sxm" / "trtllm" / "1.0.0rc3"
    folder.mkdir(parents=True)
    cells = {
        "kernel_source": "moe_torch_flow", "num_tokens": 64, "hidden_size": 4096, "inter_size": 14336, "topk": 2,
        "num_experts": 8, "moe_tp_size": 2, "moe_ep_size": 1, "distribution": "power_law_1.2", "latency": 0.4,
    }  # fmt: skip
    rows = [cells | {"moe_dtype": "fp8"}, cells | {"moe_dtype": "float16"}]
    pd.DataFrame(rows).to_csv(folder / "moe_perf.txt", index=False)
    frame, source = read_former_experts(tmp_path, "h200_sxm", "trtllm", "1.0.0rc3")
    assert source == "aiconfigurator 0.8.0, h200_sxm/trtllm/1.0.0rc3/moe_perf"
    assert frame["dtype"].tolist() == ["fp8", "bf16"]
    assert frame["width"].tolist() == [7168, 7168]
    assert frame["latency_s"].tolist() == pytest.approx([4e-4, 4e-4])


@pytest.mark.parametrize("accelerator", ["h100-sxm", "h200"])
def test_the_shipped_law_of_former_experts_is_slower_in_large_steps(accelerator: str) -> None:
    """Mixtral's experts in fp8 take 11 to 26 % longer in the table of 1.0.0rc3 than in that of 1.2.0rc5."""
    laws = CATALOGUE.get("LatencyProfile", f"trtllm-{accelerator}").spec.laws
    assert laws is not None
    sheet = Sheet(laws.multiprocessors, 1978.9e12, laws.memory_bandwidth_bytes_per_s)
    mixtral, tokens = Experts(4096, 14336, 8, 2, 1, 2.0), np.array([2048.0, 4096.0])
    former, present = (
        moe_s(of.moe["fp8"], sheet, mixtral, tokens, drawn(mixtral, tokens), weight_bytes=1.0, operand_bytes=1.0)
        for of in (laws.of_version("0.21.0"), laws)
    )
    assert (former > 1.1 * present).all()
    assert (former < 1.3 * present).all()
    assert laws.of_version("1.1.0") == laws


def test_a_folder_without_them_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="neither it nor systems/data"):
        former_folder(tmp_path)


def test_the_shipped_law_of_former_blocks_is_slower_where_their_tables_are() -> None:
    """Decodes of GLM-5 on 8 heads of a B200 take some 35 us more in the table of 0.5.10 than in that of 0.5.14."""
    laws = CATALOGUE.get("LatencyProfile", "sglang-b200").spec.laws
    model = CATALOGUE.get("Model", "glm-5").spec
    sheet = Sheet(148, 4.5e15, laws.memory_bandwidth_bytes_per_s)
    of_rank = indexer(model, shard(model, Parallelism(8)))

    def seconds(terms: SparseTerms) -> float:
        return terms.launch_s + float(sparse_decode_s(terms, sheet, of_rank, np.array([4.0]), np.array([8192.0]))[0])

    then, now = (seconds(of.sparse_attention["fp8"]) for of in (laws.of_version("0.5.10"), laws))
    assert 25e-6 < then - now < 45e-6
    assert laws.of_version("0.5.14").sparse_attention == laws.sparse_attention


def test_products_are_read_from_the_former_layout(tmp_path: Path) -> None:
    folder = tmp_path / "b200_sxm" / "trtllm" / "1.2.0rc5"
    folder.mkdir(parents=True)
    (tmp_path / "b200_sxm" / "sglang").mkdir()
    cells = {"kernel_source": "torch_flow", "m": 64, "n": 512, "k": 7168}
    rows = [
        {**cells, "gemm_dtype": "float16", "latency": 0.02},
        {**cells, "gemm_dtype": "fp8_block", "latency": 0.01},
        {**cells, "gemm_dtype": "fp8_block", "latency": 0.0},
    ]
    pd.DataFrame(rows).to_csv(folder / "gemm_perf.txt", index=False)
    frame, source = read_former_products(former_folder(tmp_path), "b200_sxm", "trtllm", "1.2.0rc5")
    assert source == "aiconfigurator 0.8.0, b200_sxm/trtllm/1.2.0rc5/gemm_perf"
    assert frame[["dtype", "m", "n", "k"]].values.tolist() == [["bf16", 64, 512, 7168], ["fp8_block", 64, 512, 7168]]
    assert frame["latency_s"].tolist() == pytest.approx([2e-5, 1e-5])


@pytest.mark.parametrize("accelerator", sorted(name for name, _ in FORMER_TABLES))
def test_former_products_in_fp8_blocks_take_a_time_of_each_token(accelerator: str) -> None:
    """A product of 8,192 tokens with 2,112 x 7,168 took 0.39 ms in 1.2.0rc5's table of a B200, and takes 0.11."""
    laws = CATALOGUE.get("LatencyProfile", f"trtllm-{accelerator}").spec.laws
    peak = CATALOGUE.get("Accelerator", accelerator).spec.peak_flops["fp8"]
    sheet = Sheet(laws.multiprocessors, peak, laws.memory_bandwidth_bytes_per_s)

    def seconds(version: str, tokens: float) -> float:
        terms = laws.of_version(version).gemm["fp8_block"]
        return float(gemm_s(terms, sheet, np.array([tokens]), 2112.0, 7168.0, weight_bytes=1.0, operand_bytes=1.0)[0])

    assert seconds("1.2.0rc6.post2", 8192.0) == pytest.approx(0.39e-3, rel=0.25)
    assert seconds("1.3.0", 8192.0) == pytest.approx(0.11e-3, rel=0.25)
    assert seconds("1.2.0rc6.post2", 16.0) < 1.8 * seconds("1.3.0", 16.0)
