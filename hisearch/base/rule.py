"""A decision that an engine or a router changed from one release to the next."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Rule:
    """A decision that changed.

    Attributes:
        name: what it is called; a field of the kernels' record of settings.
        since: first release that decides so; with ``later_than`` the first one known to.
        before: what releases before it do. after: what it and later ones do.
        source: where the engine does it.
        in_kernels: kernels ask for it. Others decide what kernels are given, and have no field there.
        later_than: last release known to decide as before, where which one changed it is not known; else "".
    """

    name: str
    since: str
    before: str
    after: str
    source: str
    in_kernels: bool = True
    later_than: str = ""
