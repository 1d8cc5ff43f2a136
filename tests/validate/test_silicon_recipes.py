"""Which published recipe a disaggregated row was run by, and the handling of rows that match none."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hisearch.latency.sharding import Parallelism
from hisearch.validate.silicon.disaggregated import AMBIGUOUS, UNTOLD, UnknownDeployment, conditions_of_side, sides_of
from hisearch.validate.silicon.pricing import NotPriced, Pricer
from hisearch.validate.silicon.recipes import Recipe, Runs, _read, candidates, recipe_of
from hisearch.validate.silicon.rows import SiliconRow, read_rows

#: A run on GB200 that states no workers: a prefill worker of 4, a decode worker of 32 attention groups.
UNSTATED = {
    "backend": "trtllm", "backend_version": "0.8.1.post2", "model": "deepseek-ai/DeepSeek-R1", "system": "gb200",
    "mode": "disagg", "precision": "fp4", "gemm_dtype": "nvfp4", "moe_dtype": "nvfp4", "input_tokens": "1024",
    "output_tokens": "1024", "concurrency": "666", "prefill_tp": "4", "prefill_attention_dp": "1", "decode_tp": "32",
    "decode_attention_dp": "1", "decode_moe_tp": "8", "decode_moe_ep": "4", "prefill_workers": "",
    "decode_workers": "", "measured_ttft_ms": "3670", "measured_tpot_ms": "12.64",
}  # fmt: skip
#: A run of the first months: both kinds state the accelerators of the whole deployment.
DEPLOYMENT = {
    **UNSTATED, "backend_version": "", "concurrency": "512", "prefill_tp": "36", "decode_tp": "36",
    "decode_moe_tp": "36", "decode_moe_ep": "1",
}  # fmt: skip
KNOWN = [(group.runs, recipe) for group in _read().deployments for recipe in group.all()]


def row_of(folder: Path, **cells: str) -> SiliconRow:
    path = folder / "rows.csv"
    path.write_text(",".join(cells) + "\n" + ",".join(cells.values()) + "\n", encoding="utf-8")
    return read_rows(path)[1][0]


class TestUnstatedWorkers:
    def test_the_ranks_of_a_worker_of_each_kind_tell_the_recipe(self, tmp_path: Path) -> None:
        prefill, decode = sides_of(row_of(tmp_path, **UNSTATED))
        assert (prefill.workers, prefill.split) == (1, Parallelism(1, 4, 4))
        assert (decode.workers, decode.split) == (1, Parallelism(1, 32, 32))
        assert conditions_of_side(decode).engine.max_running_requests == 16

    def test_the_accelerators_of_the_whole_deployment_tell_the_recipe(self, tmp_path: Path) -> None:
        """36 are 4 and 32; the recipe of 4 and 16 that ran at the same concurrency has 20."""
        assert sides_of(row_of(tmp_path, **DEPLOYMENT))[1].split.attention_data == 32
        fewer = {"prefill_tp": "20", "decode_tp": "20"}
        assert sides_of(row_of(tmp_path, **{**DEPLOYMENT, **fewer}))[1].split.attention_data == 16

    def test_one_engine_wider_than_any_counts_the_whole_deployment(self, tmp_path: Path) -> None:
        blanks = {key: "" for key in DEPLOYMENT if key.startswith(("prefill", "decode"))}
        cells = {**DEPLOYMENT, **blanks, "mode": "agg", "tp": "36", "attention_dp": "1", "moe_tp": "36", "moe_ep": "1"}
        row = row_of(tmp_path, **cells)
        assert row.mode == "disagg"
        assert sides_of(row)[1].split.attention_data == 32
        assert row_of(tmp_path, **{**cells, "tp": "16", "moe_tp": "16"}).mode == "agg"
        counted_twice = row_of(tmp_path, **{**cells, "tp": "64", "moe_tp": "8", "moe_ep": "8"})
        assert (counted_twice.mode, counted_twice.parallelism) == ("agg", Parallelism(8, 1, 8))

    def test_columns_of_one_say_nothing(self, tmp_path: Path) -> None:
        defaults = {"prefill_tp": "1", "decode_tp": "1", "decode_moe_tp": "1", "decode_moe_ep": "1"}
        assert {recipe.decode.groups for recipe in candidates(row_of(tmp_path, **{**DEPLOYMENT, **defaults}))} == {
            16,
            32,
        }

    def test_drafted_tokens_of_the_recipe_are_simulated(self, tmp_path: Path) -> None:
        drafting = row_of(tmp_path, **{**UNSTATED, "concurrency": "180"})
        assert [side.drafts for side in sides_of(drafting)] == [0, 3]

    @pytest.mark.parametrize(
        ("cells", "reason"),
        [
            ({"concurrency": "24", "decode_tp": "8"}, AMBIGUOUS),
            ({"system": "b200_sxm"}, UNTOLD),
            ({"decode_tp": "12"}, UNTOLD),
            ({"model": "zhipuai/GLM-5"}, UNTOLD),
        ],
    )
    def test_what_cannot_be_inferred_is_skipped_with_a_reason(
        self, tmp_path: Path, cells: dict[str, str], reason: str
    ) -> None:
        row = row_of(tmp_path, **{**UNSTATED, **cells})
        with pytest.raises(UnknownDeployment, match=reason):
            sides_of(row)
        with pytest.raises(NotPriced, match=reason):
            Pricer("roofline").price(row)

    def test_a_row_that_states_its_workers_is_never_skipped_for_them(self, tmp_path: Path) -> None:
        stated = {"prefill_workers": "3", "decode_workers": "2", "decode_tp": "8", "concurrency": "77"}
        row = row_of(tmp_path, **{**UNSTATED, **stated, "decode_moe_tp": "1", "decode_moe_ep": "8"})
        assert recipe_of(row) is None
        assert [side.workers for side in sides_of(row)] == [3, 2]


class TestStatedWorkers:
    def test_tensor_parallelism_may_stand_for_attention_groups(self, tmp_path: Path) -> None:
        cells = {
            "backend": "vllm", "backend_version": "0.18.0", "model": "moonshotai/Kimi-K2.5", "concurrency": "256",
            "prefill_workers": "1", "decode_workers": "1", "decode_tp": "16", "decode_moe_tp": "1",
            "decode_moe_ep": "16",
        }  # fmt: skip
        assert sides_of(row_of(tmp_path, **{**UNSTATED, **cells}))[1].split == Parallelism(1, 16, 16, all_to_all=True)

    def test_a_script_sets_another_split_of_as_many_ranks_than_the_columns_state(self, tmp_path: Path) -> None:
        cells = {
            "backend": "sglang", "backend_version": "0.5.5.post2", "concurrency": "8", "prefill_workers": "1",
            "decode_workers": "2", "decode_tp": "1", "decode_attention_dp": "4", "decode_moe_tp": "4",
            "decode_moe_ep": "1",
        }  # fmt: skip
        decode = sides_of(row_of(tmp_path, **{**UNSTATED, **cells}))[1]
        assert decode.split == Parallelism(4, 1, 1)
        assert conditions_of_side(decode).engine.memory_fraction == 0.95

    @pytest.mark.parametrize(("concurrency", "largest"), [("4096", 768), ("8", None)])
    def test_graphs_of_a_recipe_are_the_engines(self, tmp_path: Path, concurrency: str, largest: int | None) -> None:
        ranks, workers = ("32", "2") if largest else ("1", "1")
        cells = {
            "backend": "sglang", "backend_version": "0.5.8.post1", "precision": "fp8", "concurrency": concurrency,
            "prefill_workers": workers, "decode_workers": "1", "decode_tp": "1" if largest else "4",
            "decode_attention_dp": ranks, "decode_moe_tp": "1", "decode_moe_ep": ranks,
        }  # fmt: skip
        engine = conditions_of_side(sides_of(row_of(tmp_path, **{**UNSTATED, **cells}))[1]).engine
        assert engine.max_cudagraph_capture_size == largest

    def test_a_concurrency_that_no_list_has_is_matched_by_workers_alone(self, tmp_path: Path) -> None:
        cells = {"output_tokens": "8192", "concurrency": "7", "prefill_workers": "1", "decode_workers": "7"}
        recipe = recipe_of(row_of(tmp_path, **{**UNSTATED, **cells, "decode_tp": "8", "decode_moe_ep": "8"}))
        assert recipe is not None
        assert (recipe.decode.batch, recipe.drafts) == (1, 0)


@given(st.sampled_from(KNOWN), st.booleans(), st.data())
def test_every_recipe_is_among_those_that_its_own_row_may_have_run(
    tmp_path_factory: pytest.TempPathFactory, known: tuple[Runs, Recipe], stated: bool, data: st.DataObject
) -> None:
    runs, recipe = known
    cells = {
        **UNSTATED, "backend": runs.engine, "backend_version": runs.versions[0], "system": runs.system,
        "model": runs.model, "precision": runs.precision, "input_tokens": str(runs.lengths[0]),
        "output_tokens": str(runs.lengths[1]), "concurrency": str(data.draw(st.sampled_from(recipe.concurrency))),
    }  # fmt: skip
    if cells["backend_version"] == "unknown":
        cells["backend_version"] = ""
    for role, side in (("prefill", recipe.prefill), ("decode", recipe.decode)):
        cells |= {
            f"{role}_tp": str(side.tensor), f"{role}_attention_dp": str(side.groups), f"{role}_moe_tp": "1",
            f"{role}_moe_ep": str(side.expert), f"{role}_workers": str(side.workers) if stated else "",
        }  # fmt: skip
    row = row_of(tmp_path_factory.mktemp("rows"), **cells)
    assert row.states_workers is stated
    matches = candidates(row)
    if stated and recipe.drafts != 0:
        return
    drafted = any(rule.include(row) for rule in _read().drafted) and not stated
    deployments = [(candidate.drafts, candidate.prefill, candidate.decode) for candidate in matches]
    assert drafted or (recipe.drafts, recipe.prefill, recipe.decode) in deployments


def test_recipes_name_what_their_deployments_have() -> None:
    assert len(KNOWN) > 400
    for runs, recipe in KNOWN:
        assert recipe.concurrency == tuple(sorted(set(recipe.concurrency)))
        assert recipe.accelerators >= recipe.prefill.ranks + recipe.decode.ranks
        assert runs.model == runs.model.lower()
