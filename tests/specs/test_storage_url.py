from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hisearch.specs.documents.resolve import load_study
from hisearch.specs.errors import SpecError
from hisearch.specs.storage_url import checked_storage_url, mask_passwords, refuse_secrets, without_secrets

#: Passwords as addresses must hold them: what is reserved is percent-encoded.
PASSWORDS = st.text("abcXYZ019-._~!$&'()*+,;=%:@", min_size=6, max_size=20).map(lambda text: f"PW{text}")


@given(PASSWORDS)
def test_no_password_is_shown(password: str) -> None:
    url = f"postgresql://user:{password}@host:5432/db?sslmode=require"
    assert without_secrets(url) == "postgresql://user@host:5432/db?sslmode=require"
    assert password not in mask_passwords(f"could not connect to {url} (--set spec.storage={url})")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://host/db", "postgresql://host/db"),
        ("postgresql://u@host/db", "postgresql://u@host/db"),
        ("postgresql://u:@host/db", "postgresql://u@host/db"),
        ("postgresql://host/db?password=x&user=u", "postgresql://host/db"),
        ("postgresql://u@host/db?sslpassword=x&sslmode=require#x", "postgresql://u@host/db?sslmode=require"),
    ],
)
def test_what_is_shown_of_an_address(url: str, shown: str) -> None:
    assert without_secrets(url) == shown
    if url != shown:
        with pytest.raises(ValueError, match="PGPASSWORD"):
            refuse_secrets(url)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("sqlite:///hush.db", r"got sqlite://…"),
        ("mysql://u:hush@h/db", r"got mysql://…"),
        ("hush", "without a scheme"),
        ("postgresql://u:hush@h", "without a database"),
        ("postgresql://u:hush@h:port/db", "cannot be read"),
    ],
)
def test_other_addresses_are_refused_and_not_repeated(url: str, said: str) -> None:
    with pytest.raises(ValueError, match=said) as refused:
        checked_storage_url(url)
    assert "hush" not in str(refused.value)


def test_a_password_in_a_study_is_refused_by_its_key_and_not_repeated(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"spec\.storage: an address with a password") as refused:
        load_study("quickstart", ["spec.storage=postgresql://u:hush@h/db"])
    assert "hush" not in str(refused.value)
    kept = load_study("quickstart", ["spec.storage=postgresql://u@h/db"])
    assert kept.study.storage == "postgresql://u@h/db"
    (tmp_path / "kept.yaml").write_text(kept.to_yaml())
    assert load_study(tmp_path / "kept.yaml").study.storage == "postgresql://u@h/db"
