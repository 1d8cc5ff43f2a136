"""How the deployments of published runs were made up, where a run's row does not say, or not rightly.

A row of prefill and decode apart names the split of a worker of each kind, at times how many there were, never the
limits of their batches. Those decide: where fewer requests may decode at once than are in flight, the others wait for a
place, and that wait is most of the time to first token. ``recipes.yaml`` holds what the campaign's recipes state.
"""

from __future__ import annotations

import functools
from pathlib import Path

import yaml
from pydantic import Field

from hisearch.latency.sharding import Parallelism
from hisearch.specs.base import Count, EngineName, Fraction, NonNegativeInt, Strict
from hisearch.validate.silicon.rows import SiliconRow, split_of

FILE = Path(__file__).with_name("recipes.yaml")


class Runs(Strict):
    """The runs of a recipe: as rows name them."""

    engine: EngineName
    version: str
    system: str
    precision: str
    lengths: tuple[Count, Count] = Field(description="Nominal tokens in and out.")
    concurrency: list[Count]

    def include(self, row: SiliconRow) -> bool:
        """Whether ``row`` may be one of them."""
        own = (self.engine, self.version, self.system, self.precision, self.lengths)
        theirs = (row.backend, row.version, row.system, row.precision, (row.input_tokens, row.output_tokens))
        return own == theirs and row.concurrency in self.concurrency


class RecipeSide(Strict):
    """The prefill or the decode workers of a recipe; see the head of ``recipes.yaml``.

    batch: most requests that a scheduler runs. step_tokens: most tokens of its steps, of an SGLang prompt's chunks.
    prefill_tokens: most of SGLang's prefill steps.
    """

    workers: Count
    tensor: Count
    groups: Count
    expert: Count
    batch: Count
    memory_fraction: Fraction
    step_tokens: NonNegativeInt = 0
    prefill_tokens: NonNegativeInt = 0

    @property
    def split(self) -> Parallelism:
        """Of a worker."""
        return Parallelism(self.tensor, self.groups, self.expert)


class Recipe(Strict):
    """A published deployment."""

    name: str
    runs: Runs
    prefill: RecipeSide
    decode: RecipeSide


class Recipes(Strict):
    """The file. drafted: runs of recipes with draft tokens."""

    recipes: list[Recipe]
    drafted: list[Runs]


def recipe_of(row: SiliconRow) -> Recipe | None:
    """The recipe that ``row`` was run by; None where none is known, or more than one it may have been.

    A row that says how many workers it had is told apart by them and by how decode workers were split, and taken to
    have no draft tokens: no column names them. The split of its prefill workers is not asked: rows of one run state
    two. Any other may have been any recipe of its concurrency, with draft tokens too.
    """
    known = _read()
    candidates = [recipe for recipe in known.recipes if recipe.runs.include(row)]
    stated = tuple(row.cells.get(f"{role}_workers", "") for role in ("prefill", "decode"))
    if all(stated):
        workers = tuple(int(float(text)) for text in stated)
        split = _decode_split(row)
        candidates = [
            recipe
            for recipe in candidates
            if (recipe.prefill.workers, recipe.decode.workers) == workers and recipe.decode.split == split
        ]
    elif any(runs.include(row) for runs in known.drafted):
        return None
    return candidates[0] if len(candidates) == 1 else None


def _decode_split(row: SiliconRow) -> Parallelism:
    names = ("tp", "attention_dp", "moe_tp", "moe_ep", "pp")
    degrees = (max(int(float(row.cells.get(f"decode_{name}", "") or 1)), 1) for name in names)
    return split_of(*degrees, stated_dp=True)


@functools.cache
def _read() -> Recipes:
    return Recipes.model_validate(yaml.safe_load(FILE.read_text(encoding="utf-8")))
