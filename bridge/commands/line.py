"""Splits a command line into stages of words, by the quoting rules of POSIX `sh`. Pure.

It refuses every other character that a shell would act on, with an alternative, because the author
expects its effect.
"""

from __future__ import annotations

import re

from bridge.errors import InvalidRequestError

_QUOTE = "If it is meant as plain text, put it in single quotes."

_REFUSED = {
    ";": ("separates commands", "Make one call for each command."),
    "&": ("separates commands or runs one in the background", "Make one call for each command."),
    "<": ("reads from a file", "Pass the text as `stdin`, or name the file as an argument."),
    ">": ("writes to a file", "Output is returned; to keep it, use an option of the command."),
    "(": ("starts a subshell", "Make one call for each command."),
    ")": ("ends a subshell", "Make one call for each command."),
    "`": ("substitutes a command's output", "Run that command first, then use what it printed."),
    "$": ("expands a variable or a command", "Write the value itself."),
    "*": ("matches file names", "Name each file."),
    "?": ("matches file names", "Name each file."),
    "[": ("matches file names", "Name each file."),
    "{": ("expands to several words", "Write each word."),
    "}": ("expands to several words", "Write each word."),
    "\n": ("starts another command", "Make one call for each command."),
    "\r": ("is a line break", "Write the command on one line."),
}

_NAMES = {"\n": "A line break", "\r": "A carriage return"}

_NO_EFFECT = {
    "||": "There is no shell here, so || does nothing. Make one call for each command.",
    "|&": "There is no shell here, so |& does nothing. Each stage's stderr is returned.",
}

# These characters remain alone if their token has no end.
_UNFINISHED = {
    "'": "A single quote is opened and never closed.",
    '"': "A double quote is opened and never closed.",
    "\\": "The command line ends in a backslash with nothing after it.",
}

_TOKEN = re.compile(
    r"(?P<blank>[ \t]+|\\\n)|(?P<bar>\|[|&]?)|'(?P<single>[^']*)'"
    r'|"(?P<double>(?:[^"\\]|\\.)*)"|\\(?P<escaped>.)|(?P<text>[\w./:=,@%+-]+)|(?P<plain>.)',
    re.DOTALL,
)
_IN_DOUBLE = re.compile(r'\\(?P<escaped>[$`"\\\n])|(?P<expanded>`|\$(?=[\w{(@*#?$!-]))')


def parse_line(text: str) -> tuple[tuple[str, ...], ...]:
    line = text.strip(" \t\r\n")
    if not line:
        raise InvalidRequestError("The command line is empty.")
    stages: list[list[str]] = [[]]
    within_word = False
    for token in _TOKEN.finditer(line):
        if token[0] == "\\\n":
            continue  # the line continues
        if token["bar"]:
            if token[0] in _NO_EFFECT:
                raise InvalidRequestError(_NO_EFFECT[token[0]])
            stages.append([])
        elif not token["blank"]:
            if not within_word:
                stages[-1].append("")
            stages[-1][-1] += _resolve_token(token, begins=not within_word)
        within_word = not (token["bar"] or token["blank"])
    if not all(stages):
        raise InvalidRequestError("There is no command on one side of a |.")
    return tuple(map(tuple, stages))


def _resolve_token(token: re.Match[str], *, begins: bool) -> str:
    kind = str(token.lastgroup)
    text = token[kind]
    if kind == "double":
        return _IN_DOUBLE.sub(_unescape, text)
    if kind != "plain":
        return text
    if text in _UNFINISHED:
        raise InvalidRequestError(_UNFINISHED[text])
    if text in _REFUSED:
        raise _shell_error(text)
    if text == "#" and begins:
        message = "An unquoted # starts a comment in a shell, and there is no shell here. "
        raise InvalidRequestError(message + _QUOTE)
    return text


def _unescape(match: re.Match[str]) -> str:
    if match["expanded"]:
        raise _shell_error(match["expanded"], " within double quotes")
    return match["escaped"].removeprefix("\n")


def _shell_error(character: str, where: str = "") -> InvalidRequestError:
    meaning, instead = _REFUSED[character]
    name = _NAMES.get(character, character)
    message = f"{name}{where} {meaning} in a shell, and there is no shell here. {instead} {_QUOTE}"
    return InvalidRequestError(message)
