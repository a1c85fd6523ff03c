"""Fail when the project's language gets worse: its words, its sentences, its function names.

Words with a plain replacement, sentences of more than 25 words and function names that are bare
participles are counted in docstrings, comments, messages and documents. A count only falls: when it
does, lower its ceiling here. The check compares the ceilings with those of the previous commit.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from scripts.check_sizes import previous_version, raised, tables

ROOT = Path(__file__).resolve().parent.parent
CODE = ("bridge", "scripts", "tests", "benchmarks", "examples")
DOCUMENTS = ("*.md", "docs/**/*.md", "runtime_image/**/*.md", "benchmarks/**/*.md")
MAX_WORDS = 25

WORDS = (
    r"anew|at work|besides|by now|for good|goes on|go on with|is had|its affair|lasting|leash",
    r"likewise|mend(?:s|ed|ing)?|(?<!user )(?<!\")nobody(?! \(65534\)|\")|outfits?|shel(?:f|ves)",
    r"to be had|told of|what came|whoever",
)
"""Words that a reader has to decode, as regular expressions."""

PARTICIPLE = re.compile(r"_*[a-z]+(?:ed|en|ing)")

CEILINGS = {"words": 0, "long sentences": 155, "participles": 112}


def code_files() -> Iterator[Path]:
    """Yield the project's own Python files."""
    for directory in CODE:
        for path in sorted((ROOT / directory).rglob("*.py")):
            # This file has the words as patterns.
            if "node_modules" not in path.parts and path != Path(__file__).resolve():
                yield path


def docstrings(tree: ast.Module) -> Iterator[str]:
    """Yield the docstrings of a module, its classes and its functions."""
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    for node in ast.walk(tree):
        if isinstance(node, kinds):
            yield ast.get_docstring(node) or ""


def texts(source: str) -> Iterator[str]:
    """Yield the comments and the strings of a module."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING):
            yield token.string


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a docstring or of a document's prose."""
    text = re.sub(r"```.*?```", "\n\n", text, flags=re.DOTALL)
    for paragraph in re.split(r"\n\s*\n|\n\s*(?=[-*|#>] ?|\d+\. |\w[\w, ]*: )", text):
        if paragraph.lstrip().startswith("|"):
            continue
        plain = re.sub(r"`[^`]*`|\]\([^)]*\)", "code", " ".join(paragraph.split()))
        yield from re.split(r"(?<=[.!?:;])\s+", plain)


def count() -> Counter[str]:
    """Return each count, and print what the counts are made of if the command line asks."""
    counts: Counter[str] = Counter()
    words = re.compile(rf"\b(?:{'|'.join(WORDS)})\b", re.IGNORECASE)
    show = "--list" in sys.argv

    def note(kind: str, where: Path, what: str) -> None:
        counts[kind] += 1
        if show:
            print(f"{where.relative_to(ROOT)}: {kind}: {what[:100]}")

    prose: list[tuple[Path, str]] = []
    for path in code_files():
        source = path.read_text(encoding="utf-8")
        tree = ast.parse(source)
        prose.extend((path, text) for text in docstrings(tree))
        for text in texts(source):
            for word in words.findall(text):
                note("words", path, f"{word}: {' '.join(text.split())}")
        for node in ast.walk(tree):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            if PARTICIPLE.fullmatch(node.name) and not node.decorator_list:
                note("participles", path, node.name)
    for pattern in DOCUMENTS:
        for path in sorted(ROOT.glob(pattern)):
            text = path.read_text(encoding="utf-8")
            prose.append((path, text))
            for word in words.findall(text):
                note("words", path, word)
    for path, text in prose:
        for sentence in sentences(text):
            if len(sentence.split()) > MAX_WORDS:
                note("long sentences", path, sentence)
    return counts


def main() -> int:
    """Print the counts; fail if one is above its ceiling, or if a ceiling rose."""
    counts = count()
    status = 0
    for complaint in raised(tables(previous_version(__file__)), (CEILINGS, {})):
        print(complaint)
        status = 1
    for kind, ceiling in CEILINGS.items():
        print(f"{kind:16}{counts[kind]:7,} of {ceiling:,}")
        if counts[kind] > ceiling:
            print(f"{kind}: {counts[kind]:,}; the ceiling is {ceiling:,} (--list shows them)")
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
