"""Platforms that an export is written for, each declared by the file that writes it.

A platform is one module of ``platforms``: its declaration at the top, and ``files(export)``, which returns the text of
each file by its path in the folder. Tables of READMEs, the paths that an export may write and the help of
``hisearch export`` are made from the declarations. To add a platform: add a file. Nothing else lists them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hisearch.base.policies import Policy, read_policies


@dataclass(frozen=True)
class Platform(Policy):
    """A way to start servers.

    Attributes:
        title: what people call it.
        folder: of its files; "" where each engine has one of its own.
        paths: files that it may write, in its folder, besides a README.
        spans_hosts: it starts replicas wider than a host.
        rank: platforms of a lower one are named first.
    """

    title: str = ""
    folder: str = ""
    paths: tuple[str, ...] = ()
    spans_hosts: bool = False
    rank: int = 0


_DECLARED = read_policies("export/platforms", Platform, "PLATFORM")
#: Platforms by name, in the order in which they are written.
PLATFORMS = dict(sorted(_DECLARED.items(), key=lambda item: item[1].rank))
#: Paths of all platforms that have folders of their own.
PLATFORM_PATHS = tuple(
    f"{platform.folder}/{path}"
    for platform in PLATFORMS.values()
    if platform.folder
    for path in ("README.md", *platform.paths)
)


def files_of(name: str) -> Callable[[Any], dict[str, str]]:
    """The function that returns a platform's files: path in the exported folder -> text.

    It raises ExportError where the platform lacks something that the deployment needs.
    """
    files: Callable[[Any], dict[str, str]] = importlib.import_module(_DECLARED.modules[name]).files
    return files
