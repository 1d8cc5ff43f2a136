"""The project's Markdown pages, parsed."""

import re
import shlex
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]

_FENCE = re.compile(r"^```(\w*)([^\n`]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SHELL = ("console", "bash", "sh", "shell")


@dataclass(frozen=True)
class Snippet:
    """A piece of a page: where it begins, its text, and what the fence says after the language."""

    page: Path
    line: int
    text: str
    remark: str = ""

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path, *languages: str) -> list[Snippet]:
    """Fenced blocks of a language; the line is the one after the fence."""
    text = page.read_text(encoding="utf-8")
    return [
        Snippet(page, text.count("\n", 0, match.start(3)) + 1, match[3], match[2].strip())
        for match in _FENCE.finditer(text)
        if match[1] in languages
    ]


def prose(page: Path) -> str:
    """The page without its fenced blocks; lines keep their numbers."""
    return _FENCE.sub(lambda match: "\n" * match[0].count("\n"), page.read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    """Fragments that headings can be reached by, as GitHub makes them; of equal headings the second ends in -1."""
    slugs: set[str] = set()
    seen: Counter[str] = Counter()
    for title in re.findall(r"^#+ +(.+?) *$", prose(page), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title)
        fragment = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        slugs.add(f"{fragment}-{seen[fragment]}" if seen[fragment] else fragment)
        seen[fragment] += 1
    return slugs


def links(page: Path) -> list[Snippet]:
    """Targets of links and images that lead to files."""
    text = prose(page)
    return [
        Snippet(page, text.count("\n", 0, match.start()) + 1, match[1])
        for match in re.finditer(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", lambda code: " " * len(code[0]), text))
        if not re.match(r"[a-z]+:", match[1])
    ]


def commands(page: Path) -> list[tuple[Snippet, list[str]]]:
    """``hisearch`` command lines of shell blocks, as arguments without the program's name."""
    return [(place, words[1:]) for place, words in _lines(page) if words[0] == "hisearch"]


def programs(page: Path) -> list[tuple[Snippet, str]]:
    """Program names of command lines in shell blocks. If some lines begin with a prompt, the others are output."""
    return [(place, words[0]) for place, words in _lines(page)]


def _lines(page: Path) -> list[tuple[Snippet, list[str]]]:
    """Commands of shell blocks, word by word; their line is the block's."""
    return [
        (Snippet(page, block.line, line, block.remark), words)
        for block in blocks(page, *_SHELL)
        for line in block.text.replace("\\\n", "  ").splitlines()
        if line.startswith("$ ") or "\n$ " not in f"\n{block.text}"
        for words in _simple_commands(line.removeprefix("$ "))
        if words
    ]


def mentions(page: Path) -> list[tuple[Snippet, list[str]]]:
    """``hisearch …`` in running text, as arguments without the program's name; they may hold placeholders."""
    text = prose(page)
    return [
        (Snippet(page, text.count("\n", 0, match.start()) + 1, match[0]), match[1].split())
        for match in re.finditer(r"`hisearch ([^`]+)`", text)
    ]


def _simple_commands(line: str) -> list[list[str]]:
    """Words of each command between pipes and redirections, comments and variable settings left out."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|;&<>")
    lexer.whitespace_split = True
    parts: list[list[str]] = [[]]
    for word in lexer:
        if set(word) <= set("|;&<>"):
            parts.append([])
        elif parts[-1] or not re.fullmatch(r"[A-Z_]+=.*", word):
            parts[-1].append(word)
    return parts
