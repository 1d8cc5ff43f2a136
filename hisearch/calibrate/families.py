"""One fit per operator family: which rows, which coefficients, inside which bounds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from hisearch.base.dtypes import I8
from hisearch.calibrate.fitting import LEAST_POINTS, Bounds, Fit, Problem, fit
from hisearch.calibrate.routing import measured
from hisearch.calibrate.tables import MLA_KEY, MLA_LATENT, MLA_ROTARY
from hisearch.latency.laws.attention import Heads, decode_s, prefill_s
from hisearch.latency.laws.formats import GemmFormat
from hisearch.latency.laws.gemm import gemm_s, quantise_s
from hisearch.latency.laws.linear import parallel_s, serial_s
from hisearch.latency.laws.moe import Experts, Routing, moe_s
from hisearch.latency.laws.sheet import Sheet
from hisearch.specs.machines.laws import DecodeTerms, GemmTerms, LinearTerms, MoeTerms, PrefillTerms, QuantiseTerms

if TYPE_CHECKING:
    import pandas as pd


#: Least seconds of a kernel's fastest calls that mean launches without a CUDA graph. Calls within ``HOST_FACTOR`` times
#: the fastest then show the host. A small product with the pass that quantises its input takes 4 to 7 us in a graph.
HOST_BOUND_S = 9e-6
HOST_QUANTILE = 0.02
HOST_FACTOR = 2.0

#: Shapes used in fits: width of a dense matrix and of an expert, width of a head, heads of a rank, queries per KV head,
#: tokens of a chunk and of a context, sets of ranks that share the experts. Real shards lie within. Outside, libraries
#: choose kernels that no server runs.
LEAST_WIDTH, LEAST_EXPERT = 256, 128
HEAD_DIMS = (64, 128, 256)
LEAST_HEADS, QUERIES_PER_HEAD = 4, (2, 32)
LEAST_CHUNK, LEAST_CONTEXT = 16, 64
MOST_SETS = 32
#: Most tokens of a step of linear attention used in fits.
MOST_TOKENS = 65536

#: Knots of the corrections by tokens.
GEMM_KNOTS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 16384)
MOE_KNOTS = (1, 4, 16, 64, 128, 256, 512, 1024, 2048, 4096, 16384)

_GEMM = {
    "launch_s": Bounds(1e-7, 2.3e-6, 3e-5), "fill_s": Bounds(1e-8, 2.5e-6, 3e-5), "fill_depth": Bounds(50, 1e3, 2e4),
    "bandwidth": Bounds(0.3, 0.9, 1.05), "flops": Bounds(0.2, 0.8, 1.2), "tile_losses.0": Bounds(1e-4, 0.1, 2),
    "tile_losses.1": Bounds(1e-4, 0.2, 2), "tile_losses.2": Bounds(1e-4, 0.3, 2), "wave_s": Bounds(1e-9, 1e-6, 3e-5),
    "quantisation": Bounds(1e-3, 0.3, 1), "sharpness": Bounds(1, 3, 32), "quantise_bandwidth": Bounds(0.02, 0.5, 50),
}  # fmt: skip
#: Seconds per row of a quantising kernel that takes a row at a time: a few microseconds, many rows at once.
_QUANTISE_TOKEN_S = Bounds(1e-10, 1e-8, 1e-7)
_QUANTISE = {"launch_s": Bounds(1e-7, 1.5e-6, 3e-5), "bandwidth": Bounds(0.05, 0.8, 1)}
#: Bounds of attention's coefficients, of prompts and of new tokens.
PREFILL = {
    "launch_s": Bounds(1e-7, 8e-6, 1e-4), "flops": Bounds(0.05, 0.6, 1.2), "rate_64": Bounds(0.2, 0.7, 3),
    "rate_256": Bounds(0.2, 1, 3), "bandwidth": Bounds(0.05, 0.7, 1), "pad_tokens": Bounds(1, 128, 1000),
    "tile_s": Bounds(1e-9, 2e-6, 1e-4), "sharpness": Bounds(1, 2, 32), "longest_share": Bounds(0.1, 0.6, 1),
}  # fmt: skip
DECODE = {
    "launch_s": Bounds(1e-7, 6e-6, 1e-4), "fill_s": Bounds(1e-8, 5e-6, 1e-4), "fill_tokens": Bounds(50, 2e3, 1e6),
    "bandwidth": Bounds(0.05, 0.85, 1), "rate_64": Bounds(0.2, 1, 2), "rate_256": Bounds(0.2, 1, 2),
    "flops": Bounds(0.005, 0.4, 1.2), "unit_s": Bounds(1e-8, 2e-6, 1e-4),
    "serial_token_s": Bounds(1e-12, 1e-11, 1e-6), "sharpness": Bounds(1, 3, 32), "cache_bytes": Bounds(3e6, 4e7, 4e8),
    "cache_speedup": Bounds(1, 2, 6), "cached_fill": Bounds(0.05, 0.6, 1), "head_s": Bounds(1e-10, 3e-8, 1e-5),
}  # fmt: skip
_MOE = {
    "launch_s": Bounds(1e-6, 2e-5, 3e-4), "bandwidth": Bounds(0.05, 0.8, 1), "flops": Bounds(0.02, 0.6, 1.2),
    "small_tile_loss": Bounds(1e-3, 0.3, 4), "wave_s": Bounds(1e-9, 1e-6, 3e-5), "quantisation": Bounds(1e-3, 0.3, 1),
    "permute_bandwidth": Bounds(0.02, 0.6, 50), "route_bandwidth": Bounds(0.02, 2, 100),
    "sharpness": Bounds(1, 3, 32),
}  # fmt: skip

_LINEAR = {
    "launch_s": Bounds(1e-6, 2e-5, 3e-4), "serial_token_s": Bounds(1e-10, 2e-8, 1e-6),
    "head_token_s": Bounds(1e-11, 1e-9, 1e-7),
}  # fmt: skip


class HostBound(ValueError):  # noqa: N818
    """A table shows the host's launches rather than kernels."""


def gemm(
    frame: pd.DataFrame, layout: GemmFormat, sheet: Sheet, source: str, *, quantises_by_token: bool = False
) -> GemmTerms:
    """Coefficients of dense products in one format; ``frame`` has that format's rows.

    ``quantises_by_token``: the kernel that quantises activations takes a fixed time per token, whatever its width.
    """
    frame = without_host_bound(frame)
    frame = frame[(frame["n"] >= LEAST_WIDTH) & (frame["k"] >= LEAST_WIDTH)]
    m, n, k = floats(frame, "m", "n", "k")
    bounds = dict(_GEMM)
    if layout.operand_bytes >= 2.0:
        del bounds["quantise_bandwidth"]
    if quantises_by_token:
        bounds["quantise_token_s"] = _QUANTISE_TOKEN_S

    def predict(coefficients: Mapping[str, Any], at: I8) -> npt.NDArray[np.float64]:
        terms = GemmTerms.model_construct(**(BLANK | dict(coefficients)))
        return gemm_s(
            terms, sheet, m[at], n[at], k[at], weight_bytes=layout.weight_bytes, operand_bytes=layout.operand_bytes
        )

    fitted = fit(Problem(bounds, predict, seconds_of(frame), groups_of(frame, "n", "k"), m, GEMM_KNOTS))
    return GemmTerms(**described(fitted, source, frame, "m", "n", "k"))


def prefill(frame: pd.DataFrame, kv_bytes: float, sheet: Sheet, source: str) -> PrefillTerms:
    """Coefficients of prompt attention with one format of KV; bytes of a KV element."""
    frame = _usual_kernel(_usual_heads(frame[frame["new_tokens"] >= LEAST_CHUNK]))
    parts = _by_heads(frame)
    batch, new = floats(frame, "batch", "new_tokens")

    def predict(coefficients: Mapping[str, Any], at: I8) -> npt.NDArray[np.float64]:
        terms = PrefillTerms.model_construct(**(BLANK | dict(coefficients)))
        seconds = np.empty(len(at))
        for (heads, kv_heads, width, kv_elements), inside in _parts(parts, at):
            shape = Heads(heads, kv_heads, width, kv_elements * kv_bytes)
            rows = at[inside]
            seconds[inside] = prefill_s(terms, sheet, shape, batch[rows], new[rows], np.zeros(len(rows)))
        return seconds

    bounds = _with_widths(PREFILL, frame)
    fitted = fit(Problem(bounds, predict, seconds_of(frame), groups_of(frame, "heads", "kv_heads", "head_dim"), new))
    return PrefillTerms(**with_rates(described(fitted, source, frame, "batch", "new_tokens", "heads", "kv_heads")))


def decode(frame: pd.DataFrame, kv_bytes: float, sheet: Sheet, source: str) -> DecodeTerms:
    """Coefficients of decode attention with one format of KV; bytes of a KV element."""
    grouped = (frame["heads"] / frame["kv_heads"]).between(*QUERIES_PER_HEAD) | (frame["head_dim"] == MLA_LATENT)
    frame = _usual_kernel(_usual_heads(frame[grouped & (frame["context_tokens"] >= LEAST_CONTEXT)]))
    parts = _by_heads(frame)
    batch, context = floats(frame, "batch", "context_tokens")

    def predict(coefficients: Mapping[str, Any], at: I8) -> npt.NDArray[np.float64]:
        terms = DecodeTerms.model_construct(**(BLANK | dict(coefficients)))
        seconds = np.empty(len(at))
        for (heads, kv_heads, width, kv_elements), inside in _parts(parts, at):
            shape = Heads(heads, kv_heads, width, kv_elements * kv_bytes)
            rows = at[inside]
            seconds[inside] = decode_s(terms, sheet, shape, batch[rows], batch[rows] * context[rows], warm=True)
        return seconds

    bounds = _with_widths(DECODE, frame)
    fitted = fit(Problem(bounds, predict, seconds_of(frame), groups_of(frame, "heads", "kv_heads", "head_dim"), batch))
    return DecodeTerms(**with_rates(described(fitted, source, frame, "batch", "context_tokens", "heads", "kv_heads")))


def moe(frame: pd.DataFrame, layout: GemmFormat, sheet: Sheet, source: str) -> MoeTerms:
    """Coefficients of routed experts in one format; ``frame`` has that format's rows."""
    frame = _usual_kernel(frame[(frame["width"] >= LEAST_EXPERT) & (frame["sets"] <= MOST_SETS)])
    tokens, hidden, width, per_token, experts, sets = floats(
        frame, "tokens", "hidden", "width", "per_token", "experts", "sets"
    )
    shape = Experts(hidden, width, experts, per_token, sets)
    routing = measured(shape, tokens, np.asarray(frame["routing"] == "even"))

    def predict(coefficients: Mapping[str, Any], at: I8) -> npt.NDArray[np.float64]:
        terms = MoeTerms.model_construct(**(BLANK | dict(coefficients)))
        rows = Experts(hidden[at], width[at], experts[at], per_token[at], sets[at])
        work = Routing(routing.used[at], routing.load[at], tuple(groups[at] for groups in routing.groups))
        return moe_s(
            terms, sheet, rows, tokens[at], work,
            weight_bytes=layout.weight_bytes, operand_bytes=layout.operand_bytes,
        )  # fmt: skip

    groups = groups_of(frame, "hidden", "width", "experts", "per_token", "sets")
    fitted = fit(Problem(_MOE, predict, seconds_of(frame), groups, tokens, MOE_KNOTS))
    return MoeTerms(**described(fitted, source, frame, "tokens", "hidden", "width", "experts", "per_token", "sets"))


def linear(frame: pd.DataFrame, source: str) -> LinearTerms:
    """Coefficients of prompts in linear attention."""
    total = frame["batch"] * frame["new_tokens"]
    frame = frame[(frame["new_tokens"] >= LEAST_CHUNK) & (total <= MOST_TOKENS)]
    batch, new, heads = floats(frame, "batch", "new_tokens", "value_heads")

    def predict(coefficients: Mapping[str, Any], at: I8) -> npt.NDArray[np.float64]:
        terms = LinearTerms.model_construct(**(BLANK | dict(coefficients)))
        work = parallel_s(terms, 1.0, heads[at] * batch[at] * new[at])
        return np.asarray(serial_s(terms, new[at]) + work)

    fitted = fit(Problem(_LINEAR, predict, seconds_of(frame), groups_of(frame, "value_heads"), new))
    return LinearTerms(**described(fitted, source, frame, "batch", "new_tokens", "value_heads"))


def quantise(frame: pd.DataFrame, source: str, sheet: Sheet) -> QuantiseTerms:
    """Coefficients of passes that quantise the activations of a product."""
    frame = frame[(frame["m"] <= MOST_TOKENS) & (frame["k"] >= LEAST_WIDTH)]
    tokens, width = floats(frame, "m", "k")

    def predict(coefficients: Mapping[str, Any], at: I8) -> npt.NDArray[np.float64]:
        terms = QuantiseTerms.model_construct(**(BLANK | dict(coefficients)))
        return quantise_s(terms, sheet, tokens[at], width[at])

    fitted = fit(Problem(_QUANTISE, predict, seconds_of(frame), groups_of(frame, "k"), tokens))
    return QuantiseTerms(**described(fitted, source, frame, "m", "k"))


def without_host_bound(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows that show the kernel, not the host's launch (see ``HOST_BOUND_S``).

    Raises:
        HostBound: fewer than half of the rows show the kernel.
    """
    if "source" not in frame.columns:
        return frame
    floor = frame.groupby("source")["latency_s"].transform(lambda seconds: seconds.quantile(HOST_QUANTILE))
    kept = frame[(floor < HOST_BOUND_S) | (frame["latency_s"] > HOST_FACTOR * floor)]
    if 2 * len(kept) < len(frame):
        raise HostBound(f"{len(frame) - len(kept)} of {len(frame)} calls were bound by the host that launched them")
    return kept


#: Descriptive fields of terms under trial.
BLANK: dict[str, Any] = {
    "evidence": "fitted", "source": "", "error": None, "ranges": {}, "quantise_bandwidth": None,
    "quantise_token_s": None, "tokens": [], "correction": [], "rate_64": 1.0, "rate_256": 1.0,
}  # fmt: skip


def floats(frame: pd.DataFrame, *columns: str) -> tuple[npt.NDArray[np.float64], ...]:
    """Columns of a table."""
    return tuple(frame[column].to_numpy(dtype=np.float64) for column in columns)


def seconds_of(frame: pd.DataFrame) -> npt.NDArray[np.float64]:
    """Measured seconds of each row."""
    return frame["latency_s"].to_numpy(dtype=np.float64)


def groups_of(frame: pd.DataFrame, *columns: str) -> I8:
    """Shape of each row, as an integer."""
    return np.asarray(frame.groupby(list(columns), sort=True).ngroup(), dtype=np.int64)


def _usual_heads(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows with head widths that models have, MLA's included."""
    usual: pd.DataFrame = frame[
        frame["head_dim"].isin([*HEAD_DIMS, MLA_KEY, MLA_LATENT]) & (frame["heads"] >= LEAST_HEADS)
    ]
    return usual


def _usual_kernel(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows of one of the kernels that an engine chooses from.

    It is the kernel of most rows of common shapes (heads of 128, experts without EP). A kernel that is faster on
    shapes that both ran replaces it: engines and their users choose it.
    """
    if "source" not in frame.columns:
        return frame
    common = frame[frame["sets"] == 1] if "sets" in frame.columns else frame[frame["head_dim"] == 128]
    common = common if len(common) else frame
    counts = common["source"].value_counts()
    shape = [column for column in common.columns if column not in ("source", "latency_s")]
    seconds = common.pivot_table(index=shape, columns="source", values="latency_s", aggfunc="median")
    usual = counts.index[0]
    for candidate in counts.index[1:]:
        both = seconds[[usual, candidate]].dropna()
        if len(both) >= LEAST_POINTS and (both[candidate] / both[usual]).median() < 1.0:
            usual = candidate
    kept: pd.DataFrame = frame[frame["source"] == usual]
    return kept


def _by_heads(frame: pd.DataFrame) -> list[tuple[tuple[int, int, float, float], npt.NDArray[np.bool_]]]:
    """(heads, KV heads, mean width of key and value, elements kept per token), and a mask of the rows that have them.

    A latent is kept once: it is the key, and the value without its rotary part.
    """
    value = frame["value_dim"] if "value_dim" in frame.columns else frame["head_dim"]
    keys = np.stack([frame["heads"], frame["kv_heads"], frame["head_dim"], value], axis=1).astype(np.int64)
    unique, index = np.unique(keys, axis=0, return_inverse=True)
    index = index.reshape(-1)
    shapes = []
    for number, (heads, kv_heads, key, width) in enumerate(unique.tolist()):
        if key == MLA_LATENT:
            shape = (heads, kv_heads, key - MLA_ROTARY / 2.0, float(key))
        else:
            shape = (heads, kv_heads, (key + width) / 2.0, float(kv_heads * (key + width)))
        shapes.append((shape, index == number))
    return shapes


def _parts(parts: list[Any], at: I8) -> list[tuple[tuple[int, int, float, float], npt.NDArray[np.bool_]]]:
    return [(shape, inside[at]) for shape, inside in parts if inside[at].any()]


def _with_widths(bounds: dict[str, Bounds], frame: pd.DataFrame) -> dict[str, Bounds]:
    """``bounds`` without the coefficients of head widths that were not measured."""
    known = set(frame["head_dim"])
    return {name: b for name, b in bounds.items() if not name.startswith("rate_") or int(name[5:]) in known}


def with_rates(described: dict[str, Any]) -> dict[str, Any]:
    """Described terms with a rate of 1 at head widths that were not measured."""
    return {"rate_64": 1.0, "rate_256": 1.0} | described


def described(fitted: Fit, source: str, frame: pd.DataFrame, *dimensions: str) -> dict[str, Any]:
    """Fields of the terms: coefficients, source, error, and the range of each dimension in ``frame``."""
    ranges = {name: (float(frame[name].min()), float(frame[name].max())) for name in dimensions}
    rounded = {name: _significant(value) for name, value in fitted.coefficients.items()}
    return rounded | {"source": source, "error": fitted.error, "ranges": ranges}


def _significant(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return type(value)(_significant(item) for item in value)
    return float(f"{value:.4g}") if isinstance(value, float) else value
