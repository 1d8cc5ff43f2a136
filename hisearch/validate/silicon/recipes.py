"""Deployments of published runs whose rows do not state them, or state them wrongly.

A disaggregated row names the split of a worker of each kind, sometimes the number of workers, never the limits of their
batches. The limits matter: if fewer requests may decode at once than are in flight, the others wait for a place, and
that wait is most of the time to first token. ``recipes.yaml`` holds the contents of the campaign's recipes.
"""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import NamedTuple

import yaml
from pydantic import Field

from hisearch.latency.sharding import Parallelism
from hisearch.specs.base import Count, EngineName, Fraction, NonNegativeInt, Strict
from hisearch.validate.silicon.rows import SiliconRow, split_of

FILE = Path(__file__).with_name("recipes.yaml")
ROLES = ("prefill", "decode")


class Runs(Strict):
    """The runs of recipes, by the values in their rows.

    model: substring of the model's name, in lower case.
    """

    engine: EngineName
    versions: list[str]
    model: str
    system: str
    precision: str
    lengths: tuple[Count, Count] = Field(description="Nominal tokens in and out.")

    def include(self, row: SiliconRow) -> bool:
        """Whether ``row`` may be one of them."""
        values = (self.engine, self.system, self.precision, self.lengths)
        row_values = (row.backend, row.system, row.precision, (row.input_tokens, row.output_tokens))
        return values == row_values and row.version in self.versions and self.model in row.model.lower()


class DraftedRuns(Runs):
    """Runs that may have had draft tokens, by their concurrency."""

    concurrency: list[Count]

    def include(self, row: SiliconRow) -> bool:
        """Whether ``row`` may be one of them."""
        return super().include(row) and row.concurrency in self.concurrency


class Shape(Strict):
    """A worker of a recipe; see the head of ``recipes.yaml``.

    batch: most requests that a scheduler runs. step_tokens: most tokens of its steps, of an SGLang prompt's chunks.
    prefill_tokens: most of SGLang's prefill steps. pool_tokens: most KV of a scheduler. graph_tokens: of the largest
    CUDA graph. all_to_all: attention groups send their tokens to the ranks of the experts, if set. Absent values are
    the engine's defaults.
    """

    tensor: Count
    groups: Count
    expert: Count
    batch: Count | None = None
    memory_fraction: Fraction | None = None
    step_tokens: NonNegativeInt = 0
    prefill_tokens: NonNegativeInt = 0
    pool_tokens: Count | None = None
    graph_tokens: Count | None = None
    all_to_all: bool = False

    @property
    def split(self) -> Parallelism:
        """Of a worker."""
        return Parallelism(self.tensor, self.groups, self.expert, all_to_all=self.all_to_all)

    @property
    def ranks(self) -> int:
        """Accelerators of a worker."""
        return self.tensor * self.groups


class RecipeSide(Shape):
    """The prefill or the decode workers of a recipe."""

    workers: Count


class Recipe(NamedTuple):
    """A published deployment.

    concurrency: at which it ran. drafts: tokens drafted in a step, None if it drafts an unknown number.
    """

    name: str
    concurrency: tuple[int, ...]
    drafts: int | None
    prefill: RecipeSide
    decode: RecipeSide

    @property
    def accelerators(self) -> int:
        """Of all workers."""
        return sum(side.workers * side.ranks for side in (self.prefill, self.decode))


class Entry(Strict):
    """A recipe in the file, without its prefill workers' shape."""

    name: str
    concurrency: list[Count]
    drafts: NonNegativeInt | None = 0
    prefill_workers: Count
    decode: RecipeSide


class Deployments(Strict):
    """Recipes of the same runs and shape of prefill worker."""

    runs: Runs
    prefill: Shape
    recipes: list[Entry]

    def all(self) -> list[Recipe]:
        """As whole deployments."""
        shape = self.prefill.model_dump()
        return [
            Recipe(
                entry.name,
                tuple(entry.concurrency),
                entry.drafts,
                RecipeSide(workers=entry.prefill_workers, **shape),
                entry.decode,
            )
            for entry in self.recipes
        ]


class Recipes(Strict):
    """The file. drafted: runs of recipes with draft tokens that it does not have."""

    deployments: list[Deployments]
    drafted: list[DraftedRuns]


def recipe_of(row: SiliconRow) -> Recipe | None:
    """The recipe of ``row``; None if unknown or ambiguous."""
    matches = candidates(row)
    return matches[0] if len(matches) == 1 and matches[0].drafts is not None else None


def candidates(row: SiliconRow) -> list[Recipe]:
    """Possible recipes of ``row``, those of the same deployment once.

    A row that states its number of workers is matched by it and by the split of decode workers. It is taken to have no
    draft tokens, because no column names them. The split of its prefill workers is ignored: rows of one run state two
    of them. Any other row may also have draft tokens. It is matched by its concurrency and by the accelerators that its
    columns count (``_of_its_workers``, ``_of_as_many``). Lists of the campaign change: if no recipe of a row names its
    concurrency, and its columns determine the whole deployment, all its recipes remain possible.
    """
    published = _read()
    matches = [recipe for group in published.deployments if group.runs.include(row) for recipe in group.all()]
    determined = row.states_workers
    if determined:
        workers = tuple(row.count(f"{role}_workers") for role in ROLES)
        matches = [recipe for recipe in matches if (recipe.prefill.workers, recipe.decode.workers) == workers]
        matches = _of_its_split([recipe for recipe in matches if recipe.drafts == 0], row)
    elif any(runs.include(row) for runs in published.drafted):
        return []
    elif not (of_workers := _of_its_workers(matches, row)):
        matches, determined = _of_as_many(matches, row), True
    else:
        matches = of_workers
    listed = [recipe for recipe in matches if row.concurrency in recipe.concurrency]
    return _distinct(matches if determined and not listed else listed)


def _of_its_split(recipes: list[Recipe], row: SiliconRow) -> list[Recipe]:
    """Recipes whose decode workers have the row's split.

    Without any, those with its split of attention: some rows state tensor parallelism for experts that had their own
    ranks. Without any, those with as many attention groups as the row has ranks of one: some rows state tp for both.
    Without any, those whose decode workers have as many ranks: where a script sets the split, the campaign's
    configuration states another.
    """
    split = decode_split(row)
    matches = [recipe for recipe in recipes if recipe.decode.split[:2] == split[:2]]
    if not matches and split.attention_data == 1:
        matches = [recipe for recipe in recipes if recipe.decode.split[:2] == (1, split.tensor)]
    if not matches:
        matches = [recipe for recipe in recipes if recipe.decode.ranks == split.tensor * split.attention_data]
    return [recipe for recipe in matches if recipe.decode.split[:3] == split[:3]] or matches


def _of_its_workers(recipes: list[Recipe], row: SiliconRow) -> list[Recipe]:
    """Recipes whose workers have as many ranks as tp (and attention_dp) of a row without stated workers.

    The expert columns of such rows do not state the split that ran (tp 32, moe_tp 8, moe_ep 4). If all columns are 1
    and no worker has one rank, they are ignored.
    """
    counted = _ranks(row)
    if counted == (1, 1):
        listed = [recipe for recipe in recipes if row.concurrency in recipe.concurrency]
        return [recipe for recipe in listed if (recipe.prefill.ranks, recipe.decode.ranks) == counted] or listed
    return [recipe for recipe in recipes if (recipe.prefill.ranks, recipe.decode.ranks) == counted]


def _of_as_many(recipes: list[Recipe], row: SiliconRow) -> list[Recipe]:
    """Recipes whose accelerators, over all workers, equal tp of both kinds: 36 for one of 4 and four of 8."""
    prefill, decode = _ranks(row)
    return [recipe for recipe in recipes if recipe.accelerators == prefill == decode]


def _ranks(row: SiliconRow) -> tuple[int, int]:
    """Ranks for prefill and for decode by the row's columns."""
    names = ("tp", "attention_dp")
    prefill, decode = (math.prod(row.count(f"{role}_{name}", 1) for name in names) for role in ROLES)
    return prefill, decode


def _distinct(recipes: list[Recipe]) -> list[Recipe]:
    """One recipe of each deployment, whatever its name and concurrency."""
    return list({(recipe.drafts, recipe.prefill, recipe.decode): recipe for recipe in recipes}.values())


def decode_split(row: SiliconRow) -> Parallelism:
    """Split of the row's decode workers, from its columns."""
    names = ("tp", "attention_dp", "moe_tp", "moe_ep", "pp")
    return split_of(*(max(row.count(f"decode_{name}", 1), 1) for name in names), stated_dp=True)


@functools.cache
def _read() -> Recipes:
    return Recipes.model_validate(yaml.safe_load(FILE.read_text(encoding="utf-8")))
