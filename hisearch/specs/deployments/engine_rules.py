"""Which rules an engine's release decides by (see ``hisearch.base.engine_rules``)."""

from __future__ import annotations

from hisearch.base.engine_rules import MODELLED, RULES, UNRECORDED
from hisearch.specs.versions import precedes

#: Releases whose rules are known, oldest first.
KNOWN = MODELLED | UNRECORDED


def rules_version(engine: str, version: str) -> str:
    """The release whose rules a simulation of ``version`` follows.

    "" and nightly builds are the newest known release. An older release than the oldest known one, and a newer one than
    the newest, are the nearest. Releases between two known ones follow the rules dated up to them.
    """
    oldest, newest = KNOWN[engine][0], KNOWN[engine][-1]
    if not version[:1].isdigit() or precedes(newest, version):
        return newest
    return oldest if precedes(version, oldest) else version


def rules_in_force(engine: str, version: str) -> dict[str, bool]:
    """Whether each rule of ``engine`` holds in release ``version``, by name."""
    follows = rules_version(engine, version)
    return {rule.name: not precedes(follows, rule.since) for rule in RULES.get(engine, ())}


def rules_of(engine: str, version: str = "") -> frozenset[str]:
    """Names of the rules that hold in release ``version``; of the newest known one where it is ""."""
    return frozenset(name for name, holds in rules_in_force(engine, version).items() if holds)


def rules_note(engine: str, version: str) -> str | None:
    """What a reader should know of a ``version`` that is none of the known ones; None where it is, or none is named."""
    if not version[:1].isdigit() or version in KNOWN[engine]:
        return None
    follows = rules_version(engine, version)
    if engine in UNRECORDED:
        read = " and ".join(UNRECORDED[engine])
        return f"{engine} {version} is simulated by the rules of {follows}, as read in the source; read were {read}"
    recorded = " and ".join(MODELLED[engine])
    if follows != version:
        return f"{engine} {version} is simulated by the rules of {follows}, the nearest modelled release"
    return f"{engine} {version} is simulated by the rules dated up to it; recorded were {recorded}"
