"""From tables to a profile: own files, engines that lend laws, documents that read back."""

from __future__ import annotations

import datetime
import itertools
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from hisearch.calibrate import families
from hisearch.calibrate.build import CURVE_KNOTS, Measured, Target, _family, _order, build_profile, curves_of
from hisearch.calibrate.families import quantise
from hisearch.calibrate.fitting import LEAST_POINTS
from hisearch.calibrate.own_tables import read_own
from hisearch.calibrate.profiles import calibrate_own
from hisearch.calibrate.tables import Tables
from hisearch.calibrate.writing import profile_yaml
from hisearch.latency.laws.attention import Heads, decode_s, prefill_s
from hisearch.latency.laws.gemm import gemm_s
from hisearch.latency.laws.sheet import Sheet
from hisearch.specs.documents.catalogue import Catalogue
from hisearch.specs.machines.laws import DecodeTerms, FitError, GemmTerms, MoeTerms, PrefillTerms
from hisearch.specs.machines.profile import LatencyProfileSpec
from refit.aic_collectives import read_all_reduce
from refit.aic_tables import read_aiconfigurator, read_experts, read_quantise
from refit.former import shorter_launch
from refit.profiles import aic_profile, auto_profile
from refit.shipped import (
    BLACKWELL,
    BOARDS,
    LENT,
    VLLM_FUSED_MIB,
    data_folder,
    link_collectives,
    with_more_ranks,
)
from tests.latency.laws import MOE

CATALOGUE = Catalogue()
H100 = CATALOGUE.get("Accelerator", "h100-sxm").spec
ROOFLINE = CATALOGUE.get("LatencyProfile", "roofline").spec
SHEET = Sheet(132, H100.peak_flops["bf16"], H100.memory_bandwidth_bytes_per_s)
TODAY = datetime.date(2026, 11, 21)

GEMM = GemmTerms(
    source="made up", launch_s=3e-6, fill_s=2e-6, fill_depth=800, bandwidth=0.8, flops=0.7,
    tile_losses=(0.1, 0.2, 0.3), wave_s=1e-6, quantisation=0.4, sharpness=4,
)  # fmt: skip
PREFILL = PrefillTerms(
    source="made up", launch_s=9e-6, flops=0.55, rate_64=0.8, rate_256=1, bandwidth=0.6, pad_tokens=128, tile_s=2e-6,
    longest_share=0.7, sharpness=2,
)  # fmt: skip
DECODE = DecodeTerms(
    source="made up", launch_s=7e-6, fill_s=5e-6, fill_tokens=2000, bandwidth=0.85, rate_64=0.9, rate_256=1, flops=0.4,
    unit_s=2e-6, head_s=1e-7, serial_token_s=1e-11, sharpness=3, cache_bytes=4e7, cache_speedup=2, cached_fill=0.5,
)  # fmt: skip


def gemm_frame(scale: float = 1.0, source: str = "kernel") -> pd.DataFrame:
    sizes = (256, 1024, 4096, 8192, 16384)
    rows = pd.DataFrame(itertools.product((1, 8, 64, 256, 1024, 4096), sizes, sizes), columns=["m", "n", "k"])
    m, n, k = (rows[name].to_numpy(float) for name in "mnk")
    seconds = gemm_s(GEMM, SHEET, m, n, k, weight_bytes=2.0, operand_bytes=2.0)
    return rows.assign(dtype="bf16", latency_s=scale * seconds, source=source)


def attention_frames() -> dict[str, pd.DataFrame]:
    heads = [(32, 8, 128), (16, 4, 128), (8, 1, 128), (64, 8, 64)]
    prefill = [
        {
            "kv_dtype": "bf16", "batch": batch, "new_tokens": new, "heads": h, "kv_heads": kv, "head_dim": width,
            "value_dim": width, "latency_s": float(prefill_s(
                PREFILL, SHEET, Heads(h, kv, width, kv * 2 * width * 2.0), float(batch), np.array([float(new)]),
                np.zeros(1),
            )[0]),
        }
        for batch, new, (h, kv, width) in itertools.product((1, 4, 16), (64, 512, 2048, 8192), heads)
    ]  # fmt: skip
    decode = [
        {
            "kv_dtype": "bf16", "batch": batch, "context_tokens": context, "heads": h, "kv_heads": kv,
            "head_dim": width, "latency_s": float(decode_s(
                DECODE, SHEET, Heads(h, kv, width, kv * 2 * width * 2.0), np.array([float(batch)]),
                np.array([float(batch * context)]), warm=True,
            )[0]),
        }
        for batch, context, (h, kv, width) in itertools.product((1, 8, 64, 256), (128, 1024, 8192, 65536), heads)
    ]  # fmt: skip
    return {"prefill_attention": pd.DataFrame(prefill), "decode_attention": pd.DataFrame(decode)}


def linear_frame() -> pd.DataFrame:
    """25 us, 20 ns a token of a prompt, 2 ns a token and head."""
    rows = pd.DataFrame(
        itertools.product((1, 4, 16), (64, 512, 2048, 4096), (4, 8, 16, 64)),
        columns=["batch", "new_tokens", "value_heads"],
    )
    work_s = 2e-9 * rows["batch"] * rows["new_tokens"] * rows["value_heads"]
    return rows.assign(dtype="bf16", latency_s=25e-6 + 20e-9 * rows["new_tokens"] + work_s)


def collectives_frame() -> pd.DataFrame:
    sizes = 256.0 * 2.0 ** np.arange(20)
    seconds = 5e-6 + sizes / 200e9
    seconds[3] = 1.0
    return pd.DataFrame({"collective": "all_reduce", "ranks": 2, "payload_bytes": sizes, "latency_s": seconds})


def write_own_tables(path: Path) -> Path:
    """Made-up tables of operators in hisearch's own form, in the folder ``path``."""
    path.mkdir(exist_ok=True)
    gemm_frame().to_csv(path / "gemm.csv", index=False)
    for name, frame in attention_frames().items():
        frame.to_parquet(path / f"{name}.parquet")
    collectives_frame().to_csv(path / "collectives.csv", index=False)
    linear_frame().to_csv(path / "linear_attention.csv", index=False)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_own_tables(tmp_path_factory.mktemp("tables"))


@pytest.fixture(scope="module")
def profile(folder: Path) -> LatencyProfileSpec:
    return calibrate_own(
        folder, accelerator="h100-sxm", engine="vllm", engine_version="1.2", multiprocessors=132, source="made up"
    ).profile


def test_laws_of_one_s_own_tables_are_found_again(profile: LatencyProfileSpec) -> None:
    assert profile.estimator == "scaled"
    laws = profile.laws
    assert laws is not None
    for terms in (laws.gemm["bf16"], laws.prefill_attention["bf16"], laws.decode_attention["bf16"]):
        assert terms.error is not None
        assert terms.error.median < 0.05
    assert laws.gemm["bf16"].bandwidth == pytest.approx(0.8, rel=0.05)
    assert laws.decode_attention["bf16"].bandwidth == pytest.approx(0.85, rel=0.1)
    linear = laws.linear_attention["bf16"]
    made = (25e-6, 20e-9, 2e-9)
    assert (linear.launch_s, linear.serial_token_s, linear.head_token_s) == pytest.approx(made, rel=0.02)
    assert laws.gemm["bf16"].ranges["n"] == (256.0, 16384.0)
    assert laws.engine_version == profile.engines["vllm"].version == "1.2"


def test_a_slow_small_collective_is_an_outlier(profile: LatencyProfileSpec) -> None:
    assert profile.laws is not None
    assert profile.laws.collectives is not None
    (curve,) = profile.laws.collectives.all_reduce
    assert curve.payload_bytes == [knot for knot in CURVE_KNOTS if knot <= 256 * 2**19]
    assert max(curve.seconds) < 1e-3
    assert curve.seconds == sorted(curve.seconds)


def test_the_document_reads_back(profile: LatencyProfileSpec) -> None:
    document = yaml.safe_load(profile_yaml("mine", "Mine.", profile))
    assert document["metadata"]["name"] == "mine"
    assert LatencyProfileSpec.model_validate(document["spec"]) == profile


def test_rows_that_show_the_host_are_left_out() -> None:
    frame = gemm_frame()
    slow = np.maximum(frame["latency_s"], 80e-6)
    with pytest.raises(families.HostBound, match="bound by the host"):
        families.without_host_bound(frame.assign(latency_s=slow))
    few = frame.assign(latency_s=np.maximum(frame["latency_s"] * 40.0, 80e-6))
    kept = families.without_host_bound(few)
    assert len(frame) / 2 < len(kept) < len(frame)
    assert kept["latency_s"].min() > 160e-6
    assert len(families.without_host_bound(frame)) == len(frame)


def test_a_format_that_shows_the_host_is_taken_from_another_engine() -> None:
    slow_gemm = gemm_frame().assign(latency_s=lambda rows: np.maximum(rows["latency_s"], 80e-6))
    tables = [
        Measured("vllm", "1", Tables({"gemm": slow_gemm, **attention_frames()}, {
            "gemm": "vllm/gemm", "prefill_attention": "vllm/p", "decode_attention": "vllm/d",
        })),
        Measured("sglang", "2", Tables({"gemm": gemm_frame()}, {"gemm": "sglang/gemm"})),
    ]  # fmt: skip
    messages: list[str] = []
    target = Target("h100-sxm", H100, 132, "vllm")
    laws = build_profile(target, tables, ROOFLINE, source="made up", as_of=TODAY, report=messages.append).laws
    assert laws is not None
    assert laws.gemm["bf16"].source == "sglang/gemm"
    assert laws.engine_version == "1"
    assert any("bound by the host" in line for line in messages)


def test_a_family_that_every_step_has_is_needed() -> None:
    tables = Tables({"gemm": gemm_frame()}, {"gemm": "gemm.csv"})
    target = Target("h100-sxm", H100, 132, "vllm")
    with pytest.raises(ValueError, match="nothing to fit prefill_attention, decode_attention on"):
        build_profile(target, [Measured("vllm", "1", tables)], ROOFLINE, source="made up", as_of=TODAY)


def test_folders_without_tables_or_columns_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"none of gemm\.csv"):
        read_own(tmp_path)
    gemm_frame().drop(columns=["k"]).to_csv(tmp_path / "gemm.csv", index=False)
    with pytest.raises(ValueError, match=r"gemm\.csv: columns k are missing"):
        read_own(tmp_path)
    with pytest.raises(ValueError, match="neither it nor systems/data"):
        data_folder(tmp_path)


def test_the_automatic_profile_lists_every_shipped_one() -> None:
    auto = auto_profile()
    assert len(auto.choices) == 3 * len(BOARDS)
    assert CATALOGUE.get("LatencyProfile", "auto").spec == auto


def test_the_external_profile_is_what_make_profiles_writes() -> None:
    assert CATALOGUE.get("LatencyProfile", "aic").spec == aic_profile()


def test_a_format_whose_kernels_another_engine_measured_is_lent() -> None:
    """SGLang's table of MXFP4 experts comes before the engine's own; the others stay in their order."""

    def experts(*dtypes: str) -> pd.DataFrame:
        return pd.DataFrame({"dtype": np.repeat(dtypes, LEAST_POINTS)})

    def fits(rows: pd.DataFrame, dtype: str, target: Target, source: str) -> MoeTerms:
        error = FitError(points=LEAST_POINTS, median=0.1, p90=0.2, fitted_median=0.1)
        return MOE.model_copy(update={"source": f"{source} {dtype}", "error": error})

    choices = [
        Measured(engine, "1", Tables({"moe": experts("bf16", "fp4")}, {"moe": engine}))
        for engine in ("vllm", "trtllm", "sglang")
    ]
    target, lent = Target("b200", H100, 132, "vllm"), LENT["b200", "vllm"]
    by_dtype = _family("moe", fits, target, choices, lambda _: None, lent)
    assert {dtype: law.source for dtype, law in by_dtype.items()} == {"bf16": "vllm bf16", "fp4": "sglang fp4"}
    shipped = CATALOGUE.get("LatencyProfile", "vllm-b200").spec.laws.moe
    assert {dtype: "sglang" in law.source for dtype, law in shipped.items()} == {
        dtype: ("moe", dtype) in lent for dtype in shipped
    }


def test_narrow_products_are_of_the_table_that_is_fastest_where_all_measured() -> None:
    """Only shapes in every table count. Tables without the format or with 16-bit operands do not."""
    fast, slow = gemm_frame(0.5).assign(dtype="fp8"), gemm_frame().assign(dtype="fp8")
    outlier = fast.head(1).assign(m=3, latency_s=1e3)
    frames = {"vllm": slow, "sglang": gemm_frame(0.1), "trtllm": pd.concat([fast, outlier])}
    choices = [Measured(engine, "1", Tables({"gemm": frame}, {"gemm": engine})) for engine, frame in frames.items()]
    assert [choice.engine for choice in _order("gemm", "fp8", choices, None)] == ["trtllm", "vllm"]
    assert [choice.engine for choice in _order("gemm", "bf16", choices, None)] == list(frames)


def write_products(folder: Path, passes: dict[str, float]) -> None:
    """Tables of one product in fp8 and one in bf16, 30 us each, and of passes by their file, in microseconds."""
    products = pd.DataFrame({"gemm_dtype": ["fp8", "bfloat16"], "m": 64, "n": 4096, "k": 8192, "latency": 0.03})
    for family, name, frame in (
        ("gemm", "gemm_perf", products.assign(kernel_source="kernel")),
        *(
            ("quantize", name, pd.DataFrame({"m": [64], "k": [8192], "latency": [us * 1e-3]}))
            for name, us in passes.items()
        ),
    ):
        path = folder / "board" / family / "vllm" / "1.0"
        path.mkdir(parents=True, exist_ok=True)
        frame.to_parquet(path / f"{name}.parquet")


@pytest.mark.parametrize(
    ("passes", "fp8_us"),
    [
        ({"computescale_perf": 8.0, "scale_matrix_perf": 2.0}, 20.0),
        ({"computescale_perf": 0.0, "scale_matrix_perf": 2.0}, 30.0),
        ({"computescale_perf": 8.0}, 30.0),
        ({}, 30.0),
    ],
)
def test_products_in_fp8_are_without_the_passes_that_quantise(
    tmp_path: Path, passes: dict[str, float], fp8_us: float
) -> None:
    """Where both parts were measured, and of fp8 alone."""
    write_products(tmp_path, passes)
    frame = read_aiconfigurator(tmp_path, "board", "vllm").frames["gemm"].set_index("dtype")
    assert frame.loc["fp8", "latency_s"] == pytest.approx(fp8_us * 1e-6)
    assert frame.loc["bf16", "latency_s"] == pytest.approx(30e-6)


def test_a_product_shorter_than_its_passes_is_left_out(tmp_path: Path) -> None:
    write_products(tmp_path, {"computescale_perf": 29.0, "scale_matrix_perf": 2.0})
    assert list(read_aiconfigurator(tmp_path, "board", "vllm").frames["gemm"]["dtype"]) == ["bf16"]


def test_passes_that_quantise_are_found_again(tmp_path: Path) -> None:
    sheet = Sheet(100, 1e15, 3e12)
    m, k = (grid.ravel() for grid in np.meshgrid(2.0 ** np.arange(15), [512.0, 2048.0, 8192.0]))
    folder = tmp_path / "board" / "quantize" / "vllm" / "1.0"
    folder.mkdir(parents=True)
    milliseconds = 1e3 * (2e-6 + m * k * 3.0 / (0.6 * sheet.bytes_per_s))
    with pytest.raises(ValueError, match="no table of passes"):
        read_quantise(tmp_path, "board", "vllm")
    for name, share in (("computescale_perf", 0.75), ("scale_matrix_perf", 0.25)):
        pd.DataFrame({"m": m, "k": k, "latency": share * milliseconds}).to_parquet(folder / f"{name}.parquet")
    frame, source = read_quantise(tmp_path, "board", "vllm")
    terms = quantise(frame, source, sheet)
    assert source == "board/quantize/vllm/1.0/computescale_perf + board/quantize/vllm/1.0/scale_matrix_perf"
    assert (terms.launch_s, terms.bandwidth) == pytest.approx((2e-6, 0.6), rel=0.02)
    with pytest.raises(ValueError, match="no table of passes"):
        read_quantise(tmp_path, "board", "sglang")


def test_an_all_reduce_is_that_of_the_version_inside_a_graph(tmp_path: Path) -> None:
    """``message_size`` counts elements of 16 bits, ``latency`` milliseconds."""
    for version, slower in (("0.1", 3.0), ("0.2", 1.0)):
        folder = tmp_path / "board" / "comm" / "sglang" / version
        folder.mkdir(parents=True)
        sizes = [2**k for k in range(7, 28)]
        rows = [
            {"num_gpus": 4, "message_size": size, "latency": factor * 1e-3 * size**0.5, "backend": f"sglang_{where}"}
            for size in sizes
            for where, factor in (("graph", slower), ("eager", 50.0))
        ]
        pd.DataFrame(rows).to_parquet(folder / "custom_allreduce_perf.parquet")
    (former,), (present,) = (
        curves_of(read_all_reduce(tmp_path, "board", "sglang", version)) for version in ("0.1", "0.2")
    )
    assert former.ranks == present.ranks == 4
    np.testing.assert_allclose(former.seconds, 3.0 * np.array(present.seconds), rtol=1e-3)
    np.testing.assert_allclose(present.seconds, 1e-6 * np.sqrt(np.array(present.payload_bytes) / 2.0), rtol=1e-2)
    with pytest.raises(FileNotFoundError):
        read_all_reduce(tmp_path, "board", "sglang", "0.3")


def test_experts_of_former_versions_are_those_of_a_table_and_a_kernel(tmp_path: Path) -> None:
    """Rows of a kernel, of the version asked for; a launch is shorter by what fewer experts save."""
    folder = tmp_path / "board" / "moe" / "vllm" / "0.1"
    folder.mkdir(parents=True)
    rows = [
        {
            "moe_dtype": dtype, "num_tokens": 1, "hidden_size": 4096, "inter_size": 1024, "topk": 8,
            "num_experts": experts, "moe_tp_size": 1, "moe_ep_size": 1, "distribution": "balanced", "latency": took,
            "kernel_source": kernel,
        }
        for dtype, experts, kernel, took in (
            ("int4_wo", 384, "marlin", 0.040), ("w4a16_mxfp4", 896, "marlin", 0.060),
            ("w4a16_mxfp4", 896, "triton", 0.020),
        )
    ]  # fmt: skip
    pd.DataFrame(rows).to_parquet(folder / "moe_perf.parquet")
    frame, source = read_experts(tmp_path, "board", "vllm", "0.1")
    assert source == "board/moe/vllm/0.1/moe_perf"
    marlin = frame[frame["source"].str.contains("marlin")]
    assert shorter_launch(marlin, ("fp4",), 128) == pytest.approx(0.030e-3)
    with pytest.raises(FileNotFoundError):
        read_experts(tmp_path, "board", "vllm", "0.2")


def write_links(folder: Path, system: str, allreduce: dict[int, float], nccl: dict[int, float]) -> None:
    """Tables of the all-reduce of an engine and of NCCL's all-gather, by ranks, in milliseconds for 2 kB."""
    for family, times, frame in (
        ("vllm/1.0/custom_allreduce_perf", allreduce, {"backend": "vllm_graph"}),
        ("nccl/2.0/nccl_perf", nccl, {"op_name": "all_gather", "nccl_dtype": "half"}),
    ):
        path = folder / system / "comm" / f"{family}.parquet"
        path.parent.mkdir(parents=True)
        rows = [
            {"num_gpus": ranks, "message_size": size, "latency": ms * size / 1024, "kernel_source": "k", **frame}
            for ranks, ms in times.items()
            for size in (1024, 65536)
        ]
        pd.DataFrame(rows).to_parquet(path)


def test_collectives_are_of_the_first_system_that_measured_so_many_ranks(tmp_path: Path) -> None:
    write_links(tmp_path, "gb300", {2: 1.0, 16: 2.0}, {2: 3.0})
    write_links(tmp_path, "b300_sxm", {2: 9.0, 8: 4.0}, {2: 9.0, 8: 5.0})
    frame, source = link_collectives("gb200", tmp_path, "vllm")
    at = frame[frame["payload_bytes"] == 2048].set_index(["collective", "ranks"])["latency_s"].mul(1e3).to_dict()
    assert at == {
        ("all_reduce", 2): 1.0, ("all_reduce", 16): 2.0, ("all_reduce", 8): 4.0,
        ("all_gather", 2): 3.0, ("all_gather", 8): 5.0,
    }  # fmt: skip
    assert source.startswith("gb300: vllm/1.0/custom_allreduce_perf, nccl/2.0/nccl_perf; b300_sxm: ")
    assert source.endswith("(all_gather, all_reduce on 8 ranks)")
    curves = curves_of(frame[frame["collective"] == "all_reduce"])
    assert [curve.ranks for curve in with_more_ranks(curves[:1], curves)] == [2, 8, 16]
    with pytest.raises(ValueError, match="no collectives of system b200_sxm"):
        link_collectives("b200", tmp_path, "vllm")


@pytest.mark.parametrize("accelerator", BLACKWELL)
def test_shipped_profiles_of_blackwell_have_what_their_links_and_kernels_do(accelerator: str) -> None:
    racks = accelerator.startswith("gb")
    for engine in ("sglang", "vllm", "trtllm"):
        laws = CATALOGUE.get("LatencyProfile", f"{engine}-{accelerator}").spec.laws
        assert [curve.ranks for curve in laws.collectives.all_reduce] == ([2, 4, 8, 16] if racks else [2, 4, 8])
        assert [curve.ranks for curve in laws.collectives.all_gather] == [2, 4, 8]
        for (family, dtype), lender in LENT.get((accelerator, engine), {}).items():
            assert f"{BOARDS[accelerator].system}/{family}/{lender}/" in getattr(laws, family)[dtype].source
    fused = CATALOGUE.get("LatencyProfile", f"vllm-{accelerator}").spec.laws.fused_all_reduce
    assert {curve.ranks: curve.up_to_bytes / 2**20 for curve in fused} == VLLM_FUSED_MIB[accelerator]
