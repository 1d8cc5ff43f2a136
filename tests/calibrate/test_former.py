"""Tables of engines' former versions, and the laws that rest on them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from hisearch.calibrate.aic_tables import read_former_sparse
from hisearch.calibrate.former import former_folder
from hisearch.latency.laws.sheet import Sheet
from hisearch.latency.laws.sparse import indexer, sparse_decode_s
from hisearch.latency.sharding import Parallelism, shard
from hisearch.specs.catalogue import Catalogue
from hisearch.specs.laws import SparseTerms

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
    found = frame.set_index("phase")[["model", "dtype", "kv_dtype", "new_tokens", "cached_tokens", "latency_s"]]
    assert found.loc["prefill"].tolist() == ["glm-5", "bf16", "fp8", 4096, 0, pytest.approx(2.5e-4)]
    assert found.loc["decode"].tolist() == ["glm-5", "bf16", "fp8", 1, 511, pytest.approx(2.5e-4)]
    with pytest.raises(FileNotFoundError):
        read_former_sparse(former_folder(tmp_path), "b200_sxm", "sglang", "0.5.9")


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
