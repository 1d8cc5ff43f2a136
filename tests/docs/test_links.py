"""Links between pages lead somewhere."""

import pytest

from tests.docs.pages import PAGES, Snippet, anchors, links

LINKS = [link for page in PAGES for link in links(page)]


def test_links_are_found() -> None:
    assert len(LINKS) > 20


@pytest.mark.parametrize("link", LINKS, ids=lambda link: f"{link}-{link.text}")
def test_a_link_leads_to_a_file_and_a_heading(link: Snippet) -> None:
    name, _, fragment = link.text.partition("#")
    target = (link.page.parent / name).resolve() if name else link.page
    assert target.exists(), f"{link}: no {link.text}"
    if fragment and target.suffix == ".md":
        assert fragment in anchors(target), f"{link}: {target.name} has no heading for #{fragment}"
