"""Which rules an engine's release decides by (see ``hisearch.base.engine_rules``)."""

from __future__ import annotations

from hisearch.base.engine_rules import MODELLED, RULES
from hisearch.specs.versions import precedes


def rules_version(engine: str, version: str) -> str:
    """The release whose rules a simulation of ``version`` follows; "" for engines without dated rules.

    "" and nightly builds are the newest modelled release. An older release than the oldest modelled one, and a newer
    one than the newest, are the nearest. Releases between two modelled ones follow the rules dated up to them.
    """
    if engine not in MODELLED:
        return ""
    oldest, newest = MODELLED[engine][0], MODELLED[engine][-1]
    if not version[:1].isdigit() or precedes(newest, version):
        return newest
    return oldest if precedes(version, oldest) else version


def rules_in_force(engine: str, version: str) -> dict[str, bool]:
    """Whether each rule of ``engine`` holds in release ``version``, by name."""
    follows = rules_version(engine, version)
    return {rule.name: not precedes(follows, rule.since) for rule in RULES.get(engine, ())}


def rules_of(engine: str, version: str = "") -> frozenset[str]:
    """Names of the rules that hold in release ``version``; of the newest modelled one where it is ""."""
    return frozenset(name for name, holds in rules_in_force(engine, version).items() if holds)


def rules_note(engine: str, version: str) -> str | None:
    """What a reader should know of a ``version`` that was not recorded; None where it was, or none is named."""
    if engine not in MODELLED or not version[:1].isdigit() or version in MODELLED[engine]:
        return None
    follows = rules_version(engine, version)
    recorded = " and ".join(MODELLED[engine])
    if follows != version:
        return f"{engine} {version} is simulated by the rules of {follows}, the nearest modelled release"
    return f"{engine} {version} is simulated by the rules dated up to it; recorded were {recorded}"
