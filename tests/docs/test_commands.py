"""Commands that the pages show are commands that the program has."""

from contextlib import suppress
from functools import cache
from typing import Any

import pytest
import typer
from typer.main import get_command

from hisearch.cli.main import app
from tests.docs.pages import PAGES, Snippet, commands, mentions

SHOWN = [command for page in PAGES for command in commands(page)]
MENTIONED = [mention for page in PAGES for mention in mentions(page)]


@cache
def program() -> Any:
    """The command with its verbs, made once."""
    return get_command(app)


def parse(arguments: list[str]) -> None:
    """Parse as the program would, without running it."""
    command = program()
    context = None
    name = "hisearch"
    while True:
        context = command.make_context(name, list(arguments), parent=context)
        if not hasattr(command, "resolve_command"):
            return
        name, command, arguments = command.resolve_command(context, [*context._protected_args, *context.args])


def check_mention(words: list[str]) -> None:
    """Verbs and options exist; other words may be placeholders."""
    command = program()
    for word in words:
        if hasattr(command, "commands") and not word.startswith("-"):
            if word.strip("…") and "|" not in word:
                assert word in command.commands, f"no verb {word}"
                command = command.commands[word]
            else:
                assert all(part in command.commands for part in word.strip("…").split("|") if part), f"no verb {word}"
                return
        elif word.startswith("-"):
            option = word.strip("[],.…").partition("=")[0]
            known = {name for parameter in command.params for name in parameter.opts}
            assert option in known | {"-h", "--help"}, f"no option {option}"


def test_commands_are_found() -> None:
    assert len(SHOWN) >= 5
    assert len(MENTIONED) >= 5


@pytest.mark.parametrize(("place", "arguments"), SHOWN, ids=lambda value: str(value))
def test_a_shown_command_parses(place: Snippet, arguments: list[str]) -> None:
    with suppress(typer.Exit):  # --help and --version
        parse(arguments)


@pytest.mark.parametrize(("place", "words"), MENTIONED, ids=lambda value: str(value))
def test_a_mentioned_command_exists(place: Snippet, words: list[str]) -> None:
    check_mention(words)


@pytest.mark.parametrize(
    "line", ["frob", "run study.yaml --frob", "trace frob", "doctor a b", "export", "list --json=1"]
)
def test_a_wrong_command_is_noticed(line: str) -> None:
    with pytest.raises(Exception, match=r"(?i)no such|missing|unexpected|does not take"):
        parse(line.split())


@pytest.mark.parametrize("line", ["frob FILE", "run FILE --frob", "trace stats|frob", "--frob"])
def test_a_wrong_mention_is_noticed(line: str) -> None:
    with pytest.raises(AssertionError):
        check_mention(line.split())
