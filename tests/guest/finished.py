"""What a guest's run sent, and tables of programs with what their runs send."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from bridge.guest.protocol.wire import Call, Cancel, Done, Exited, File, GuestFrame


@dataclass
class Finished:
    """The frames, and how the run ended."""

    stdout: str = ""
    stderr: str = ""
    skipped: dict[str, int] = field(default_factory=dict)
    frames: list[GuestFrame] = field(default_factory=list)
    diagnostics: str = ""
    status: int | None = None

    def _of(self, kind: type[Any]) -> list[Any]:
        return [frame for frame in self.frames if isinstance(frame, kind)]

    @property
    def calls(self) -> list[Call]:
        return self._of(Call)

    @property
    def cancels(self) -> list[Cancel]:
        return self._of(Cancel)

    @property
    def done(self) -> Done | None:
        frames = self._of(Done)
        assert len(frames) <= 1, frames
        return frames[0] if frames else None

    @property
    def exited(self) -> Exited | None:
        return next(iter(self._of(Exited)), None)

    @property
    def outcome(self) -> Done:
        assert self.done is not None, (self.exited, self.stderr, self.diagnostics)
        return self.done

    @property
    def value(self) -> Any:
        assert self.outcome.outcome == "ok", self.outcome.error
        assert self.outcome.has_result, self.outcome
        return self.outcome.result

    @property
    def exit(self) -> Exited:
        assert self.exited is not None, self.diagnostics
        return self.exited

    @property
    def files(self) -> list[str]:
        return [frame.name for frame in self._of(File)]

    @property
    def types(self) -> list[str]:
        return [type(frame).__name__ for frame in self.frames]

    def __getattr__(self, name: str) -> Any:
        if name in Exited.__annotations__:
            return getattr(self.exit, name)
        return getattr(self.outcome, name)


@dataclass(frozen=True)
class Case:
    """A program, and the attributes of its `Finished` run."""

    code: str
    expected: Mapping[str, Any]

    def check(self, guest: Any, *answer: Any) -> Finished:
        fields = {name: self.expected[name] for name in self.expected if name in RUN_FIELDS}
        finished: Finished = guest.run(self.code, *answer, **fields)
        fails = "error" in self.expected
        defaults = {"stdout": "", "stderr": "", "code": int(fails), "status": 0}
        defaults |= {} if "done" in self.expected or fails else {"error": ""}
        for name, wanted in {**defaults, **self.expected}.items():
            if name not in RUN_FIELDS:
                seen = getattr(finished, name)
                if isinstance(wanted, tuple):
                    assert all(part in seen for part in wanted), (name, seen)
                else:
                    assert seen == wanted, (name, seen)
        return finished


RUN_FIELDS = ("limits", "argv", "name")


def programs(text: str) -> pytest.MarkDecorator:
    """Parametrize a test with each program below a line `## name: attribute=value, ...`.

    A tuple names parts of the attribute. Without a value, nothing is printed and nothing fails.
    """
    cases = []
    for section in text.split("\n## ")[1:]:
        head, _, code = section.partition("\n")
        name, _, options = head.partition(": ")
        call = ast.parse(f"dict({options})", mode="eval").body
        assert isinstance(call, ast.Call)
        expected = {str(each.arg): ast.literal_eval(each.value) for each in call.keywords}
        cases.append(pytest.param(Case(code, expected), id=name))
    return pytest.mark.parametrize("case", cases)
