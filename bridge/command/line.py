"""A command line as stages of words, by the shell's rules of quoting and none of its powers. Pure.

Owns the parsing. Quotes, backslashes and an unquoted `|` mean what they mean in POSIX `sh`. All
else that a shell would act on is refused, with what to do instead, rather than passed on as text:
whoever wrote it meant it to happen. In single quotes everything is plain text; in double quotes all
but what a shell would expand there too.
"""

from __future__ import annotations

from bridge.errors import InvalidRequestError

MAX_LINE_CHARACTERS = 64 * 1024
"""Of a command line before parsing; see also `confine.MAX_COMMAND_BYTES`."""

_QUOTE = "If it is meant as plain text, put it in single quotes."

_REFUSED = {
    ";": ("parts commands", "Make one call for each command."),
    "&": ("parts commands or sends one to the background", "Make one call for each command."),
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

_BLANK = " \t"
_ESCAPED_IN_DOUBLE = '$`"\\\n'
_EXPANDED_IN_DOUBLE = "`$"


def parse_line(text: str) -> tuple[tuple[str, ...], ...]:
    """Return the stages of a command line, each as its words.

    Raises:
        InvalidRequestError: It asks for what only a shell does, or its quotes do not match.
    """
    if len(text) > MAX_LINE_CHARACTERS:
        message = f"The command line has {len(text):,} characters; at most "
        raise InvalidRequestError(f"{message}{MAX_LINE_CHARACTERS:,} are taken.")
    return _Parser(text.strip(" \t\r\n")).parse()


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0
        self._stages: list[tuple[str, ...]] = []
        self._words: list[str] = []
        # None between words: an empty word can be written as ''.
        self._word: str | None = None

    def parse(self) -> tuple[tuple[str, ...], ...]:
        while self._position < len(self._text):
            self._step(self._text[self._position])
        self._end_stage(last=True)
        return tuple(self._stages)

    def _step(self, character: str) -> None:
        self._position += 1
        if character in _BLANK:
            self._end_word()
        elif character == "|":
            self._bar()
        elif character == "'":
            end = self._text.find("'", self._position)
            if end < 0:
                raise _unclosed("single")
            self._add(self._text[self._position : end])
            self._position = end + 1
        elif character == '"':
            self._double()
        elif character == "\\":
            self._backslash()
        elif character in _REFUSED:
            raise _refused(character)
        elif character == "#" and self._word is None:
            message = "An unquoted # starts a comment in a shell, and there is no shell here. "
            raise InvalidRequestError(message + _QUOTE)
        else:
            self._add(character)

    def _bar(self) -> None:
        following = self._text[self._position : self._position + 1]
        if following == "|":
            message = "There is no shell here, so || does nothing. Make one call for each command."
            raise InvalidRequestError(message)
        if following == "&":
            message = "There is no shell here, so |& does nothing. Each stage's stderr is returned."
            raise InvalidRequestError(message)
        self._end_stage(last=False)

    def _backslash(self) -> None:
        if self._position >= len(self._text):
            message = "The command line ends in a backslash with nothing behind it."
            raise InvalidRequestError(message)
        character = self._text[self._position]
        self._position += 1
        if character != "\n":  # with a line break it continues the line
            self._add(character)

    def _double(self) -> None:
        found: list[str] = []
        while self._position < len(self._text):
            character = self._text[self._position]
            self._position += 1
            if character == '"':
                self._add("".join(found))
                return
            following = self._text[self._position : self._position + 1]
            if character == "\\" and following and following in _ESCAPED_IN_DOUBLE:
                self._position += 1
                found.append("" if following == "\n" else following)
            elif character in _EXPANDED_IN_DOUBLE and _expands(character, following):
                raise _refused(character, quoted=True)
            else:
                found.append(character)
        raise _unclosed("double")

    def _add(self, text: str) -> None:
        self._word = (self._word or "") + text

    def _end_word(self) -> None:
        if self._word is not None:
            self._words.append(self._word)
            self._word = None

    def _end_stage(self, *, last: bool) -> None:
        self._end_word()
        if not self._words:
            if last and not self._stages:
                message = "The command line is empty."
            else:
                message = "There is no command on one side of a |."
            raise InvalidRequestError(message)
        self._stages.append(tuple(self._words))
        self._words = []


def _expands(character: str, following: str) -> bool:
    """Whether a shell would act on it within double quotes."""
    return character == "`" or following.isalnum() or following in tuple("_{(@*#?$!-")


def _refused(character: str, *, quoted: bool = False) -> InvalidRequestError:
    meaning, instead = _REFUSED[character]
    name = _NAMES.get(character, character)
    where = " within double quotes" if quoted else ""
    message = f"{name}{where} {meaning} in a shell, and there is no shell here. {instead} {_QUOTE}"
    return InvalidRequestError(message)


def _unclosed(kind: str) -> InvalidRequestError:
    return InvalidRequestError(f"A {kind} quote is opened and never closed.")
