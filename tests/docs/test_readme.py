"""The README's commands run, with small files under the names that it uses and a small budget."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from hisearch.api.stored_run import load_run
from tests.cli.conftest import Hisearch, hisearch
from tests.docs.pages import ROOT, blocks, commands
from tests.verify.documents import measure, write_guidellm

__all__ = ["hisearch"]

README = ROOT / "README.md"
RUN = Path("runs/my-chat-20261121T101500Z")
#: What keeps a verb short, where the README's own words do not.
SHORT = {
    "run": ("--set", "spec.budget.simulations=8", "-q"),
    "simulate": ("--limit", "200", "-q"),
    "compare": ("--limit", "200", "-q"),
    "verify": ("-q",),
}
#: A recommendation, a measurement within the stated error; and one beyond it, nothing that meets the SLO.
EXPECTED = {0, 98, 99}


@pytest.fixture
def here(hisearch: Hisearch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what the README's commands name."""
    monkeypatch.chdir(tmp_path)
    for name in ("studies", "slos"):
        Path(name).symlink_to(ROOT / name)
    assert hisearch("trace", "generate", "chat-multiturn", "-o", "my-trace.jsonl.gz", "--requests", "80").code == 0
    (study,) = [block.text for block in blocks(README, "yaml") if "kind: Study" in block.text]
    Path("my-study.yaml").write_text(study.replace("simulations: 400", "simulations: 8"))
    for name in ("a.yaml", "b.yaml"):
        shutil.copy(ROOT / "studies/deployments/qwen3-32b-h100-tp2.yaml", name)
    rows = [
        {"timestamp": 500 * at, "input_length": 1200, "output_length": 20, "hash_ids": [0, at, at + 1]}
        for at in range(1, 40)
    ]
    Path("conversation_trace.jsonl.gz").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert hisearch("run", "my-study.yaml", "--out", RUN, "-q").code in EXPECTED
    result = load_run(RUN)
    assert result.recommendation is not None
    write_guidellm(Path("guidellm.json"), measure(result)[2])
    return tmp_path


def test_every_command_of_the_readme_runs(hisearch: Hisearch, here: Path) -> None:
    shown = [arguments for _, arguments in commands(README)]
    assert len(shown) >= 12
    for arguments in shown:
        if arguments[0] == "dashboard":  # serves until it is interrupted: tests/cli/test_dashboard.py
            continue
        short = ("-q",) if "--resume" in arguments else SHORT.get(arguments[0], ())
        ran = hisearch(*arguments, *short)
        assert ran.code in EXPECTED, f"hisearch {' '.join(arguments)}: {ran.err}"
