"""Plotly figures for notebooks."""

from __future__ import annotations

from typing import Any

import pytest

from hisearch.report.figures import study as figures
from hisearch.report.figures.points import Axis
from hisearch.report.figures.study import _rows, figure_parallel, figure_pareto, figure_progress, figure_projection
from hisearch.score.quantities import quantity


def test_pareto_draws_every_point_once_with_titles_and_hover(build_input: Any) -> None:
    data = build_input()
    figure = figure_pareto(data)
    assert {trace.type for trace in figure.data} == {"scatter3d"}
    assert sum(len(trace.x) for trace in figure.data) == len(data.trials)
    assert [trace.name for trace in figure.data][-1] == "Recommended"
    assert figure.layout.scene.xaxis.title.text == "TTFT p99 (s)"
    assert figure.layout.scene.zaxis.title.text == "Cost (USD/hour)"
    number = data.recommendation.trial.number
    assert f"Trial {number}, stage" in figure.data[-1].text[0]


def test_two_objectives_are_drawn_in_the_plane(build_input: Any) -> None:
    figure = figure_pareto(build_input(objectives=("tpot_p99", "usd_per_hour")))
    assert {trace.type for trace in figure.data} == {"scatter"}


def test_projection_shades_what_the_slo_allows(build_input: Any) -> None:
    data = build_input(objectives=("ttft_p99", "tpot_p99", "usd_per_hour"))
    both = figure_projection(data, "ttft_p99", "tpot_p99")
    rectangle = both.layout.shapes[0]
    assert (rectangle.type, rectangle.x1, rectangle.y1) == ("rect", 2.0, 50.0)
    assert [a.text for a in both.layout.annotations] == ["SLO 2 s", "SLO 50 ms"]
    allowed = figure_projection(data, "ttft_p99", "usd_per_hour").layout.shapes[0]
    assert allowed.x1 == 2.0
    assert allowed.y1 > max(trial.metrics["usd_per_hour"] for trial in data.trials)
    assert not figure_projection(build_input(), "goodput", "usd_per_hour").layout.shapes


def test_ticks_of_a_logarithmic_axis_are_whole_figures_in_dollars_where_it_is_a_price() -> None:
    price = Axis("usd_per_hour", quantity("usd_per_hour"), True, None, (6.0, 260.0))
    layout = figures._axis_layout(price)
    assert (layout["type"], layout["dtick"], layout["tickformat"]) == ("log", "D2", "$,.3~r")
    ttft = Axis("ttft_p99", quantity("ttft_p99"), True, None, (0.05, 80.0))
    assert figures._axis_layout(ttft)["tickformat"] == ",.3~r"


def test_projection_of_something_else_is_refused(build_input: Any) -> None:
    with pytest.raises(
        ValueError, match="e2e_p50 is not an objective of this study that has values: ttft_p99, goodput"
    ):
        figure_projection(build_input(), "ttft_p99", "e2e_p50")


def test_nearest_miss_is_marked_as_such(build_input: Any) -> None:
    figure = figure_pareto(build_input(feasible=False))
    assert [trace.name for trace in figure.data] == [
        "Misses the SLO",
        "Misses the SLO, unbeaten, stage 1 (execution)",
        "Misses the SLO, unbeaten, stage 2 (routing)",
        "Misses the SLO, unbeaten, stage 3 (cache tiers)",
        "Nearest miss",
    ]


def test_markup_in_names_stays_text(build_input: Any, build_trial: Any) -> None:
    import random

    data = build_input(30)
    hostile = build_trial(30, 1, random.Random(1), accelerator="<b>x</b>")
    data = build_input(30, trials=(*data.trials, hostile))
    texts = [text for trace in figure_pareto(data).data for text in trace.text]
    assert any("&lt;b&gt;x&lt;/b&gt;" in text for text in texts)
    assert not any("<b>x" in text for text in texts)
    accelerators = figure_parallel(data).data[0].dimensions[0]
    assert "&lt;b&gt;x&lt;/b&gt;" in accelerators.ticktext


def test_progress_has_titles_with_units(build_input: Any) -> None:
    progress = figure_progress(build_input())
    assert progress.layout.yaxis.title.text == "Hypervolume (% of the latest)"
    assert len(progress.data[0].x) == 300


def test_labels_of_stages_that_begin_near_each_other_stand_in_rows() -> None:
    assert _rows([0, 100, 380, 390, 398], [0, 400]) == [0, 0, 0, 1, 2]
    assert _rows([0, 0, 80], [0, 400]) == [0, 1, 0]
    assert _rows([], []) == []


def test_points_and_lines_name_their_trials(build_input: Any) -> None:
    """What links the figures: a mark or a line is known by its trial wherever it is drawn."""
    data = build_input(60)
    numbers = {number for trace in figure_pareto(data).data for number in trace.customdata}
    assert numbers == {trial.number for trial in data.trials}
    lines = figure_parallel(data).data[0]
    assert len(lines.meta) == len(lines.dimensions[0]["values"])
    assert set(lines.meta) == numbers
