"""Shell blocks marked ``sh`` run as they stand, page by page, in an empty folder.

A block that takes long, or needs what a test has not, says so behind the language: ``sh slow: why``. Those, and blocks
of other shell languages, which have names of the reader's own, run with small budgets in ``test_shown_commands``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, ROOT, Snippet, blocks

RUNNABLE = [page for page in PAGES if any(not block.remark for block in blocks(page, "sh"))]
SLOW = [block for page in PAGES for block in blocks(page, "sh") if block.remark]


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A search path that begins with a ``hisearch`` of this checkout."""
    program = tmp_path / "bin" / "hisearch"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec "{sys.executable}" -m hisearch "$@"\n')
    program.chmod(0o755)
    return f"{program.parent}{os.pathsep}{os.environ['PATH']}"


@pytest.mark.slow
@pytest.mark.parametrize("page", RUNNABLE, ids=lambda page: page.name)
def test_the_commands_of_a_page_run(page: Path, path: str, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    for block in blocks(page, "sh"):
        if block.remark:
            continue
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block.text],
            cwd=folder,
            env=os.environ | {"PATH": path},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, f"{block}: {done.stderr[-2000:]}"


@pytest.mark.parametrize("block", SLOW, ids=str)
def test_a_block_that_does_not_run_as_it_stands_says_why(block: Snippet) -> None:
    mark, _, reason = block.remark.partition(":")
    assert mark == "slow"
    assert len(reason.strip()) > 10


def test_the_start_runs_something_as_it_stands() -> None:
    assert ROOT / "docs" / "start.md" in RUNNABLE
