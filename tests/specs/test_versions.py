"""Which known version of an engine substitutes for another."""

from __future__ import annotations

import pytest

from hisearch.specs.versions import nearest_version, precedes, release_of, version_key


@pytest.mark.parametrize(
    ("version", "release"),
    [
        ("0.19.0", "0.19.0"),
        ("1.2.0rc6", "1.2.0rc6"),
        ("1.2.0rc6.post1", "1.2.0rc6"),
        ("nightly-dev-20260216-d3bae71e", "nightly-dev"),
        ("nightly-dev", "nightly-dev"),
        ("nightly-5b8c30d62b754b57", "nightly"),
        ("unknown", "unknown"),
        ("0.5.9+serial", "0.5.9"),
        ("nightly-dev-20260216-d3bae71e+serial", "nightly-dev"),
    ],
)
def test_builds_of_a_release_are_its(version: str, release: str) -> None:
    assert release_of(version) == release


def test_a_known_version_stands_for_itself_and_for_others_of_its_release() -> None:
    known = ["1.2.0rc2.post2", "1.2.0rc6.post2", "1.2.0rc6.post3", "nightly-dev"]
    assert nearest_version("1.2.0rc6.post3", known) == "1.2.0rc6.post3"
    assert nearest_version("1.2.0rc6.post1", known) == "1.2.0rc6.post2"
    assert nearest_version("nightly-dev-20260402-d7256eb6", known) == "nightly-dev"
    assert nearest_version("nightly-5b8c30d62b754b57", known) is None
    assert nearest_version("1.3.0rc1", known) is None


def test_candidates_come_before_their_release_and_post_releases_behind() -> None:
    mixed = ["1.10.0", "1.2.0", "1.2.0rc6.post1", "0.5.10", "0.5.6.post2", "1.2.0rc6", "0.5.6", "1.2.0rc2"]
    in_order = ["0.5.6", "0.5.6.post2", "0.5.10", "1.2.0rc2", "1.2.0rc6", "1.2.0rc6.post1", "1.2.0", "1.10.0"]
    assert sorted(mixed, key=version_key) == in_order


@pytest.mark.parametrize("version", ["", "unknown", "nightly-dev-20260216-d3bae71e", "1.2.0rc6.post3", "1.2.0"])
def test_what_is_not_numbered_or_of_the_release_itself_is_not_before_it(version: str) -> None:
    assert not precedes(version, "1.2.0rc6")
