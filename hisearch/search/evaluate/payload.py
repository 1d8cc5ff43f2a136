"""The pickled evaluator for other processes: packed once, sent once to each, and unpacked there once."""

from __future__ import annotations

import hashlib
import pickle
import platform
import threading
import uuid
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from hisearch.search.model.job import Evaluate, Job, evaluate_safely

#: Packages that affect figures, or whether a pickle can be read, besides hisearch's own sources.
_PACKAGES = ("numpy", "numba", "llvmlite", "scipy", "pydantic")


@dataclass(frozen=True)
class Payload:
    """A pickled evaluator.

    key: unique to the run. content: the pickled evaluator. facts: of the program that packed it, see ``program_facts``.
    """

    key: str
    content: bytes
    facts: dict[str, str]

    @classmethod
    def of(cls, evaluate: Evaluate) -> Payload:
        """Pack ``evaluate``."""
        # Pickle stores a bound method as its object and the method's name.
        return cls(uuid.uuid4().hex, pickle.dumps(evaluate, protocol=5), program_facts())


class ProgramMismatchError(ValueError):
    """Another process runs other versions, which may yield other figures."""


@cache
def program_facts() -> dict[str, str]:
    """Versions of everything that may change a figure, and a digest of hisearch's sources."""
    root = Path(__file__).parents[2]
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    versions = {name: version(name) for name in _PACKAGES}
    python = ".".join(platform.python_version_tuple()[:2])
    return {"hisearch": version("hisearch"), "sources": digest.hexdigest()[:12], "python": python} | versions


def mismatches(ours: dict[str, str], theirs: dict[str, str]) -> list[str]:
    """``numpy 2.4.6 here, 2.3.0 there``, for every difference."""
    names = dict.fromkeys([*ours, *theirs])
    return [
        f"{name} {ours.get(name, 'missing')} here, {theirs.get(name, 'missing')} there"
        for name in names
        if ours.get(name) != theirs.get(name)
    ]


_payloads: dict[str, Payload] = {}
_evaluators: dict[str, Evaluate] = {}
_lock = threading.Lock()


def unpack_in_process(payload: Payload) -> None:
    """In a worker: keep a payload until it is first used; it replaces one with the same key."""
    with _lock:
        _payloads[payload.key] = payload


def forget_in_process(key: str) -> None:
    """In a worker: drop a payload and its unpacked evaluator."""
    with _lock:
        _payloads.pop(key, None)
        _evaluators.pop(key, None)


def evaluate_shipped(key: str, job: Job) -> dict[str, Any]:
    """In a worker: run a job with the payload's evaluator; return plain data that is read back exactly.

    Raises:
        ProgramMismatchError: this process runs other versions than the one that packed the payload.
    """
    return evaluate_safely(_evaluator(key), job).to_json()


def _evaluator(key: str) -> Evaluate:
    with _lock:
        if key not in _evaluators:
            payload = _payloads[key]
            if differing := mismatches(payload.facts, program_facts()):
                raise ProgramMismatchError(f"a worker runs other versions: {'; '.join(differing)}")
            _evaluators[key] = pickle.loads(payload.content)
        return _evaluators[key]
