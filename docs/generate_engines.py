"""Writes docs/engines.md: which releases of the engines are modelled, and what changed between them.

Usage::

    python docs/generate_engines.py            # prints it
    python docs/generate_engines.py --write    # writes docs/engines.md
    python docs/generate_engines.py --check    # exits with 1 where docs/engines.md differs
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import hisearch
from hisearch.base.engine_rules import MODELLED, RULES, SETTINGS_SINCE, UNRECORDED
from hisearch.base.rule import Rule
from hisearch.export.engines.releases import CHANGES, READ
from hisearch.specs.base import ENGINE_TITLES
from hisearch.specs.versions import version_key

TARGET = Path(__file__).resolve().parent / "engines.md"
PACKAGE = Path(hisearch.__file__).parent

INTRODUCTION = """\
# Releases of the engines

<!-- Written by docs/generate_engines.py from hisearch/base/engine_rules.py and hisearch/export/engines/releases.py;
`make docs` writes it again. -->

An engine changes its decisions from release to release. `engine: {name: vllm, version: 0.33.0}` in a deployment or a
space says which release runs; where it is absent, the newest known one does.

| engine | known releases | what holds them | older and newer ones |
| --- | --- | --- | --- |
| vLLM | %(vllm)s | recordings | the nearest known release, which is said |
| SGLang | %(sglang)s | recordings | likewise |
| TensorRT-LLM | %(trtllm)s | its source, read | likewise |

*Recordings* of the release's own scheduler are reproduced to the last step. TensorRT-LLM's needs a GPU: its rules were
read in its source and pull requests, and no recording confirms them. Dates may be one candidate off. A release between
two known ones follows the rules dated up to it, unrecorded; results say so. Dates were read in the sources of vLLM
0.19.1 and 0.20.0 to 0.33.0, and of SGLang 0.5.9 to 0.5.23; those of `resumes_as_new`, `unpins_loaded`,
`outlives_own_preemption` and `relaxes_groups` come from pull requests alone.

## What changed

A rule is `sim.config.RULE` in a kernel, and the same name in the restatement in plain Python. To add one, add it to
`hisearch/base/engine_rules.py`, and its branch to both. *Read in*: modules of `hisearch/` that ask for it. *After X, by
Y*: X decides as before and Y anew; which release between them changed it is not known.
"""

COMMANDS = """\
## What changed on the command line

An export runs the release that `engine.version` names: image tags, packages and flags are its. Flags were read out of
the argument parsers of vLLM %(vllm)s, SGLang %(sglang)s and TensorRT-LLM %(trtllm)s. A release between two of these
gets the flags of the one before, with the changes dated up to it. An older or newer one is replaced by the nearest. The
README of an export says either.
"""

PROCESS = """\
## How a release becomes a modelled one

1. `python -m hisearch.record vllm --random 40 --seed 1 --out recordings` runs the release's own scheduler, without GPU
   or weights ([options](cli.md#python--m-hisearchrecord-vllm--sglang)).
2. `hisearch validate scheduler recordings/*.json.gz` compares every step, and explains the first difference.
   `--versions` tells how far off each modelled release is. `--with windows` and `--with states` (vLLM, and SGLang
   0.5.23) add sliding windows and linear attention, `--with drafts` speculative decoding, `--with offload` and
   `--with lmcache` connectors ([figures](accuracy-details.md)).
3. A difference becomes a rule: named, dated by the release that brought it, with its place in the engine's source.
4. `docs/generate_engine_flags.py FOLDER --write` reads its flags out of its wheel. What exports have to say otherwise
   goes into `hisearch/export/engines/releases.py`.
5. `make test-engines` repeats this for all modelled releases, and for sglang-router, with fresh random cases. It
   reduces a difference to the shortest trace that shows it. Each engine's own parser reads exported command lines
   ([tests/engines](../tests/engines/README.md)).
"""


@cache
def sources() -> dict[str, str]:
    """Text of every module that may ask for a rule, by its path in the package."""
    paths = (path for path in sorted(PACKAGE.rglob("*.py")) if path.parent.name != "base")
    return {path.relative_to(PACKAGE).as_posix(): path.read_text(encoding="utf-8") for path in paths}


def read_in(rule: Rule) -> list[str]:
    """Modules that ask for a rule: kernels as a setting, others by its name among those in force.

    Raises:
        ValueError: none does.
    """
    asks = re.compile(rf"""\bconfig\.{rule.name}\b|\["{rule.name}"\]|"{rule.name}" in rules_of""")
    modules = [path for path, source in sources().items() if asks.search(source)]
    if not modules:
        raise ValueError(f"no module reads rule {rule.name}")
    return modules


def sections() -> Iterator[str]:
    """A table of rules for each engine, and of the settings that came later."""
    for engine, rules in RULES.items():
        yield f"### {ENGINE_TITLES[engine]}\n"
        yield "| since | rule | before | from then on | source | read in |\n| --- | --- | --- | --- | --- | --- |"
        for rule in sorted(rules, key=lambda rule: version_key(rule.since)):
            since = f"after {rule.later_than}, by {rule.since}" if rule.later_than else rule.since
            modules = ", ".join(f"`{path}`" for path in read_in(rule))
            yield f"| {since} | `{rule.name}` | {rule.before} | {rule.after} | `{rule.source}` | {modules} |"
        later = SETTINGS_SINCE[engine]
        if later:
            listed = ", ".join(f"`{key}` ({since})" for key, since in later.items())
            yield f"\nRefused before the release that has them: {listed}."
        yield ""


def command_sections() -> Iterator[str]:
    """A table of changed command lines for each engine."""
    for engine, changes in CHANGES.items():
        if changes:
            yield f"### {ENGINE_TITLES[engine]}'s command line\n"
            yield "| since | before | from then on | source |\n| --- | --- | --- | --- |"
            yield from (f"| {c.since} | {c.before} | {c.after} | `{c.source}` |" for c in changes)
            yield ""


def text() -> str:
    """The page."""
    releases = {engine: " and ".join(versions) for engine, versions in (MODELLED | UNRECORDED).items()}
    read = {engine: " and ".join(versions) for engine, versions in READ.items()}
    rules, commands = "\n".join(sections()), "\n".join(command_sections())
    return f"{INTRODUCTION % releases}\n{rules}\n{COMMANDS % read}\n{commands}\n{PROCESS}"


def main(arguments: list[str]) -> int:
    """Print, write or check the page."""
    page = text()
    if "--write" in arguments:
        TARGET.write_text(page, encoding="utf-8")
    elif "--check" in arguments:
        if not TARGET.is_file() or TARGET.read_text(encoding="utf-8") != page:
            print("docs/engines.md is not what the rules say: python docs/generate_engines.py --write")
            return 1
    else:
        print(page, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
