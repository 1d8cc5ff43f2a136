"""A decision that an engine or a router changed from one release to the next."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Rule:
    """A decision that changed.

    Attributes:
        name: field of the kernels' record of settings.
        since: first release that decides so.
        before: what releases before it do. after: what it and later ones do.
        source: where the engine does it.
    """

    name: str
    since: str
    before: str
    after: str
    source: str
