"""Engine versions as measurements name them, and matching a version to a known one of its release."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable

#: Suffixes that distinguish builds of one release: a label after a plus, the number of a post-release, the day and
#: commit of a nightly build.
_BUILD = re.compile(r"\+.*$|(?<=\d)\.post\d+$|(?<=^nightly)-(?!dev).*$|(?<=^nightly-dev)-.*$")

#: First release of TensorRT-LLM whose default is PyTorch, not a compiled TensorRT engine (NVIDIA/TensorRT-LLM, pull
#: request 5312).
PYTORCH_SINCE = "1.0.0rc0"


def release_of(version: str) -> str:
    """``version`` without its build suffix.

    1.2.0rc6.post1 is of 1.2.0rc6, nightly-dev-20260216-d3bae71e of nightly-dev, 0.5.9+serial of 0.5.9.
    """
    return _BUILD.sub("", version)


@functools.cache
def version_key(version: str) -> tuple[tuple[int, str], ...]:
    """Sort key of versions: numbers by value; a release candidate before its release, a post-release after it."""
    parts = re.findall(r"\d+|[a-z]+", version)
    return (*((int(part), "") if part.isdigit() else (-int(part != "post"), part) for part in parts), (0, ""))


@functools.cache
def precedes(version: str, other: str) -> bool:
    """Whether a numbered ``version`` is of a release before ``other``; False for nightly builds and ""."""
    return version[:1].isdigit() and version_key(release_of(version)) < version_key(other)


def nearest_version(version: str, known: Iterable[str]) -> str | None:
    """``version`` itself if it is ``known``, else the first one that is of the same release; None if there is none."""
    names = list(known)
    if version in names:
        return version
    release = release_of(version)
    return next((name for name in names if release_of(name) == release), None)


def compiles_engine(engine: str, version: str) -> bool:
    """Whether an engine's release runs a compiled TensorRT engine by default."""
    return engine == "trtllm" and precedes(version, PYTORCH_SINCE)
