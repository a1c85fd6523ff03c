"""The preflight: checks before a run whether a program fits the tools it calls. Pure.

A mistake is certain if it fails, or lacks the intended effect, in every possible run: an `except`,
a branch or dependence on data makes it uncertain. Only certain mistakes stop a run; all others are
notes.
"""

from __future__ import annotations

import ast
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import takewhile
from types import CoroutineType
from typing import Any

from bridge.catalog.entries import ServerEntry, call_signature
from bridge.catalog.program import advice
from bridge.catalog.program.advice import quote
from bridge.catalog.program.guard import Report, Verdict
from bridge.catalog.program.parsing import AWAIT, Edit
from bridge.catalog.program.references import CallReader, CallText, helper_parameters
from bridge.catalog.program.survey import Context, Survey
from bridge.catalog.program.symbols import (
    BY_NAME,
    DATA_BUILTINS,
    DATA_MEMBERS,
    SHOWING,
    Kind,
    Symbol,
    SymbolResolver,
)
from bridge.guest.protocol.helpers import OWN_GLOBALS
from bridge.guest.schema.binding import Parameters
from bridge.model import Finding, Severity


def check_program(
    survey: Survey,
    servers: Sequence[ServerEntry],
    aliases: Mapping[str, str],
    more_names: bool = False,
) -> Verdict:
    """Return the preflight's verdict on a program; `more_names` if a session has others."""
    return _Preflight(survey, servers, frozenset(aliases.values()), more_names).verdict()


def find_lost_value(survey: Survey) -> tuple[Finding, ...]:
    """Return a note if the last line of a last loop drops its value."""
    last = survey.tree.body[-1] if survey.tree.body else None
    loops = False
    while isinstance(last, ast.For | ast.AsyncFor | ast.While | ast.If):
        loops = loops or not isinstance(last, ast.If)
        last = last.body[-1]
    report = Report()
    value = last.value if isinstance(last, ast.Assign | ast.AugAssign | ast.Expr) else None
    shows = isinstance(value, ast.Call) and getattr(value.func, "id", "") in ("print", "display")
    if last and value and not shows and loops:
        message = "what this line makes is not shown; print it, or end with its name"
        report.add(last, "lost-value", "note", message)
    return report.verdict().findings


_INTROSPECTIVE = frozenset(
    """
    dir getattr hasattr help inspect list_tools list_tools_sync query_tool_docs
    query_tool_docs_sync describe_server search_tool_docs search_tool_docs_sync TOOLS TOOL_MAP
    """.split()  # noqa: SIM905 - as words they can be read
)
"""A program with one of these names can check which tools exist."""


_SHOWN = "is shown"
_TAKEN = "is used as"


_IDENTITY = frozenset({ast.Is, ast.IsNot, ast.In, ast.NotIn})
_USES: tuple[tuple[tuple[type[ast.AST], ...], str, Callable[[Any], list[ast.expr]]], ...] = (
    ((ast.Subscript,), "is indexed", lambda n: [n.value] if isinstance(n.ctx, ast.Load) else []),
    ((ast.For,), "is iterated over", lambda n: [n.iter]),
    (
        (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp),
        "is iterated over",
        lambda n: [] if n.generators[0].is_async else [n.generators[0].iter],
    ),
    ((ast.Starred,), "is unpacked", lambda n: [n.value]),
    ((ast.BinOp,), "is computed with", lambda n: [n.left, n.right]),
    (
        (ast.Compare,),
        f"{_TAKEN} a value",
        lambda n: [] if _IDENTITY & set(map(type, n.ops)) else [n.left, *n.comparators],
    ),
    ((ast.If, ast.While, ast.IfExp), f"{_TAKEN} true", lambda n: [n.test]),
    ((ast.FormattedValue,), _SHOWN, lambda n: [n.value]),
)
"""Kinds of nodes, words for the use, and the expressions that they use as data."""


class _Preflight:
    """Checks one program. `_RULES` says which nodes each rule checks."""

    def __init__(
        self,
        survey: Survey,
        servers: Sequence[ServerEntry],
        aliases: Collection[str],
        session: bool,
    ) -> None:
        self._survey = survey
        self._symbols = SymbolResolver(survey, {one.alias: one for one in servers if one.known})
        self._aliases = aliases
        self._in_session = session
        self._report = Report()
        self._reader = CallReader(survey, self._symbols)
        # Only hostile schemas take longer; the guest checks all values again before each call.
        self._seconds_left = 0.2
        self._called: dict[str, tuple[int, int]] = {}  # Where each server is called first.
        names = [node.id for node, _ in survey.each(ast.Name)]
        names += [node.attr for node, _ in survey.each(ast.Attribute)]
        self._introspects = not _INTROSPECTIVE.isdisjoint(names)
        self._under_await = dict(self._chains())
        values = [node.value for node, _ in survey.each(ast.Await)]
        self._awaits = {id(value) for value in values}
        self._awaited_names = {value.id for value in values if isinstance(value, ast.Name)}

    def verdict(self) -> Verdict:
        for rule, *kinds in _RULES:
            for node, context in self._survey.each(*kinds):
                rule(self, node, context)
        for value, context, use in self._uses():
            if isinstance(value, ast.Name | ast.Call):
                self._check_use(value, context, use)
        if not self._in_session:
            # In a session, earlier programs define most such names; Python reports the others.
            self._check_names()
            self._check_uncalled()
        return self._report.verdict()

    def _check_names(self) -> None:
        """Report names that nothing binds; `references` reports those with `mcp_`."""
        survey = self._survey
        known = OWN_GLOBALS | survey.given.keys()
        last = survey.tree.body[-1] if survey.tree.body else None
        answer = getattr(getattr(last, "value", None), "func", None)
        seen: set[str] = set()
        for node, context in survey.free:
            name = node.id
            if context.dead or name in known or name in seen or name.startswith(("__", "mcp_")):
                continue
            severity = "note" if survey.stars else survey.raises(context, "NameError")
            if severity == "deny":
                # Report each name once, but again if the first report was not certain.
                seen.add(name)
            message = partial(advice.undefined_name, node, survey, self._aliases)
            is_answer = name == "final_answer" and node is answer
            edits = (Edit("answer", node),) if is_answer else ()
            self._report.add(node, "undefined-name", severity, message, edits)

    def _check_uncalled(self) -> None:
        """Report a `main`, or any function of a program of definitions, that nothing calls."""
        body, functions = self._survey.tree.body, (ast.FunctionDef, ast.AsyncFunctionDef)
        parts = (*functions, ast.ClassDef, ast.Import, ast.ImportFrom)
        idle = all(isinstance(node, parts) for node in body)
        for node in body:
            if not isinstance(node, functions) or node.name in self._survey.read_names:
                continue
            if node.name == "main" or idle:
                call, given = "await " if isinstance(node, ast.AsyncFunctionDef) else "", node.args
                needs = len(given.posonlyargs + given.args) > len(given.defaults)
                shown = f"{call}{node.name}({'...' if needs or None in given.kw_defaults else ''})"
                message = (
                    f"{quote(node.name)} is defined and never called; end the program with "
                    f"`{shown}`"
                )
                self._report.add(node, "not-called", "note", message)

    def _check_load(self, node: ast.Attribute | ast.Subscript, context: Context) -> None:
        if isinstance(node.ctx, ast.Load):
            raised = "AttributeError" if isinstance(node, ast.Attribute) else "MissingKeyError"
            self._name(node, context, self._symbols.of(node, context), raised)

    def _import_from(self, node: ast.ImportFrom, context: Context) -> None:
        for item in node.names if node.module and not node.level else ():
            if item.name != "*":
                symbol = self._symbols.resolve_import(f"{node.module}.{item.name}")
                self._name(node, context, symbol, "ImportError")

    def _name(
        self, node: ast.expr | ast.stmt, context: Context, symbol: Symbol | None, raised: str
    ) -> None:
        if symbol is None or symbol.kind not in (Kind.NO_TOOL, Kind.NO_HELPER):
            return
        name, server = symbol.name, symbol.server
        severity = self._survey.raises(context, raised)
        if server is None:
            self._report.add(node, "unknown-helper", severity, partial(advice.no_helper, name))
            return
        looked_for = name in self._survey.words and raised != "MissingKeyError"
        if looked_for or self._introspects or self._may_appear(server, node):
            # The program checks whether the tool exists, or adds the tool.
            severity = "note"
        self._report.add(node, "unknown-tool", severity, partial(advice.no_tool, server, name))

    def _may_appear(self, server: ServerEntry, node: ast.expr | ast.stmt) -> bool:
        called = self._called.get(server.name)
        return server.changing and called is not None and called < (node.lineno, node.col_offset)

    def _call(self, node: ast.Call, context: Context) -> None:
        later = id(node) not in self._awaits
        symbol = self._symbols.of(node.func, context)
        if symbol is None:
            return
        if symbol.dotted == "asyncio.gather" and node.args:
            self._gather(node, context)
        if symbol.kind == Kind.SERVER and symbol.server is not None:
            message = (
                f"{quote(symbol.name)} is a server and cannot be called; call one of its tools: "
                f"`await {symbol.name}.<tool>(...)`. Tools: "
                f"{advice.list_tools(entry.alias for entry in symbol.server.tools)}"
            )
            severity = self._survey.raises(context, "TypeError")
            self._report.add(node, "not-a-tool", severity, message)
        elif symbol.kind == Kind.TOOL and symbol.server is not None and symbol.tool is not None:
            self._called.setdefault(symbol.server.name, (node.lineno, node.col_offset))
            severity = self._survey.raises(context, "ArgumentsError", later=later)
            parameters = self._reader.parameters(symbol.tool)
            signature = partial(call_signature, symbol.server.alias, symbol.tool)
            text = self._reader.text(node, context)
            self._bind(node, text, parameters, severity, symbol.name, signature)
        elif symbol.kind == Kind.HELPER and symbol.helper is not None:
            later = later and symbol.helper.asynchronous
            severity = self._survey.raises(context, "TypeError", later=later)
            signature = partial(getattr, symbol.helper, "signature")
            text, parameters = self._reader.text(node, context), helper_parameters(symbol.helper)
            self._bind(node, text, parameters, severity, symbol.name, signature)
            if symbol.helper.name in BY_NAME:
                self._by_name(node, context, symbol, later=later)

    def _by_name(self, node: ast.Call, context: Context, symbol: Symbol, *, later: bool) -> None:
        call = self._reader.helper(node, context, symbol)
        if call is None or call.server is None or call.tool is None or not call.server.known:
            return
        raised = "ArgumentsError" if call.entry else "MCPError"
        severity = self._survey.raises(context, raised, later=later)
        if symbol.name.endswith("_raw") or (self._introspects and not call.entry):
            # The call may return the error, or the program checks which tools exist.
            severity = "note"
        if call.entry is None:
            severity = "note" if self._may_appear(call.server, node) else severity
            message = partial(advice.no_tool, call.server, call.tool, by_name=True)
            self._report.add(node, "unknown-tool", severity, message)
        self._called.setdefault(call.server.name, (node.lineno, node.col_offset))
        if call.entry is not None and call.given is not None:
            label = f"{call.server.name}.{call.entry.tool.name}"
            parameters = self._reader.parameters(call.entry)
            signature = partial(call_signature, call.server.alias, call.entry)
            self._bind(node, call.given, parameters, severity, label, signature)

    def _bind(
        self,
        node: ast.Call,
        given: CallText,
        parameters: Parameters,
        severity: Severity,
        label: str,
        signature: Callable[[], str],
    ) -> None:
        if self._seconds_left <= 0:
            return
        started = time.perf_counter()
        _, wrong = parameters.bind_all(given.args, given.kwargs)
        self._seconds_left -= time.perf_counter() - started
        keywords = {keyword.arg: keyword for keyword in node.keywords}
        for name in parameters.synonyms.keys() & given.kwargs.keys():
            own = parameters.synonyms[name].name
            message = f"{quote(label)} gets {quote(name)} as {quote(own)}"
            message += ", whose description calls it an alias."
            self._report.add(keywords.get(name, node), "alias", "note", message)
        # One name may be that of a server and its tool.
        optional = label.rpartition(".")[2] in BY_NAME or given.may_be_all(parameters)
        for one in wrong:
            if one.rule != "missing-argument" or not optional:
                words = partial(advice.wrong_argument, label, one, signature)
                self._report.add(keywords.get(one.name, node), one.rule, severity, words)

    def _expression(self, node: ast.Expr, context: Context) -> None:
        if not context.last:
            # The guest awaits the program's last expression.
            self._check_dropped_call(node, node.value, context)

    def _check_dropped_call(self, node: ast.stmt, value: ast.expr, context: Context) -> None:
        symbol = self._symbols.of(value, context)
        if symbol is not None and symbol.kind == Kind.COROUTINE:
            # A forgotten `asyncio.sleep(1)` loses no result.
            lost = symbol.tool or symbol.function or symbol.helper
            severity = self._survey.happens(context) if lost else "note"
            problem = "is called without `await`, so nothing happens"
            self._report_missing_await(value, severity, symbol, problem, context)
        elif symbol is not None and symbol.kind == Kind.TOOL:
            message = f"{quote(symbol.name)} is only named; call it: `await {symbol.name}(...)`"
            self._report.add(node, "not-called", "note", message)

    def _check_assign(self, node: ast.Assign, context: Context) -> None:
        target = node.targets[0]
        symbol = self._symbols.of(node.value, context)
        if symbol is None or symbol.kind != Kind.COROUTINE or len(node.targets) != 1:
            return
        if isinstance(target, ast.Tuple | ast.List):
            severity = self._survey.raises(context, "TypeError")
            self._report_missing_await(
                node.value, severity, symbol, "is unpacked without `await`", context
            )
        elif isinstance(target, ast.Name):
            # In a session, a later program may await a global.
            survey, scope = self._survey, context.scope
            kept = scope.kind == "class" or (self._in_session and scope is survey.root)
            if not (kept or target.id in survey.shared or target.id in survey.read_names):
                self._check_dropped_call(node, node.value, context)

    def _check_use(
        self, node: ast.Name | ast.Call, context: Context, use: str, *also: Edit
    ) -> None:
        symbol = self._symbols.of(node, context)
        if symbol is None or symbol.kind not in (Kind.COROUTINE, Kind.FUTURE):
            return
        named = node.id if isinstance(node, ast.Name) else ""
        future = symbol.kind == Kind.FUTURE
        if future and use.startswith(_TAKEN):
            # Tasks are hashable values: comparing them is fine.
            return
        if named and use.startswith(_SHOWN) and (future or named in self._awaited_names):
            # The program shows it, and awaits it elsewhere: that may be intended.
            return
        if use.startswith((_SHOWN, _TAKEN)):
            later = named in self._handed_on or (self._in_session and named)
            severity = "note" if later else self._survey.happens(context)
        else:
            severity = self._survey.raises(context, "TypeError")
        self._report_missing_await(node, severity, symbol, f"{use} without `await`", context, *also)

    def _report_missing_await(
        self,
        node: ast.expr,
        severity: Severity,
        symbol: Symbol,
        problem: str,
        context: Context,
        *also: Edit,
    ) -> None:
        call = f"{symbol.name}(...)"
        edits = self._await_edits(node, context, also)
        message = f"{quote(call)} {problem}; write `await {call}`"
        if id(node) in self._under_await:
            above = Edit("plain", self._under_await[id(node)])
            edits = (*edits, above) if edits and isinstance(node, ast.Call) else ()
            message = (
                f"`await` waits for what comes after the dot or the bracket, not for "
                f"{quote(call)}; put parentheses around it: `(await {call})`"
            )
        elif isinstance(node, ast.Name):
            use = problem.removesuffix(" without `await`")
            message = (
                f"{quote(node.id)} {use}, but it is {quote(call)} without its value; write "
                f"`{node.id} = await {call}`"
            )
        elif symbol.kind == Kind.FUTURE:
            message += " before its values are used"
        self._report.add(node, "missing-await", severity, message, edits)

    def _await_edits(
        self, node: ast.expr, context: Context, also: Sequence[Edit] = ()
    ) -> tuple[Edit, ...]:
        if isinstance(node, ast.Name):
            bound = self._survey.bound(node.id, context)
            value, context = bound[0] if len(bound) == 1 else (None, context)
            awaited = node.id in self._handed_on or node.id in self._awaited_names
            if awaited or not isinstance(value, ast.Call):
                return ()
            node = value
        if not context.scope.asynchronous or _in_generator(context):
            return ()
        return (Edit(AWAIT, node), *also) if isinstance(node, ast.Call) else ()

    @cached_property
    def _handed_on(self) -> frozenset[str]:
        """Names with a use that may await them, as in `gather(x)`, `[x]` and `return x`."""
        as_data = {id(value) for value, _, _ in self._uses()}
        return frozenset(
            node.id
            for node, _ in self._survey.each(ast.Name)
            if isinstance(node.ctx, ast.Load) and id(node) not in as_data
        )

    def _uses(self) -> Iterator[tuple[ast.expr, Context, str]]:
        for kinds, use, values in _USES:
            for node, context in self._survey.each(*kinds):
                for value in values(node):
                    if isinstance(value, ast.Call) or use != f"{_TAKEN} true":
                        yield value, context, use
        for node, context in self._survey.each(ast.Attribute):
            symbol = self._symbols.of(node.value, context)
            if symbol and symbol.kind == Kind.COROUTINE and not hasattr(CoroutineType, node.attr):
                yield node.value, context, f"is asked for {quote(node.attr)}"
        for node, context in self._survey.each(ast.Call):
            yield from self._data_arguments(node, context)

    def _data_arguments(
        self, node: ast.Call, context: Context
    ) -> Iterator[tuple[ast.expr, Context, str]]:
        function, use = node.func, ""
        for keyword in node.keywords:
            if keyword.arg is None:
                yield keyword.value, context, "is unpacked"
        if self._symbols.is_builtin(function, SHOWING):
            use = _SHOWN
        elif self._symbols.is_builtin(function, DATA_BUILTINS):
            use = f"is given to {quote(getattr(function, 'id', ''))}"
        elif isinstance(function, ast.Attribute):
            symbol = self._symbols.of(function, context)
            if symbol is not None and symbol.dotted in DATA_MEMBERS:
                use = f"is given to {quote(symbol.dotted)}"
            elif function.attr == "join" and isinstance(function.value, ast.Constant):
                use = "is joined"
        if use:
            for argument in node.args:
                yield argument, context, use

    def _chains(self) -> Iterator[tuple[int, ast.Await]]:
        """Yield ids of `x` in `await x.y` and `await x[y]`: the `await` is not for `x` itself."""
        for node, _ in self._survey.each(ast.Await):
            inner = node.value
            while True:
                if isinstance(inner, ast.Attribute | ast.Subscript):
                    inner = inner.value
                elif isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute):
                    inner = inner.func.value
                else:
                    break
                yield id(inner), node

    def _await(self, node: ast.Await, context: Context) -> None:
        if not context.scope.asynchronous:
            if not _in_generator(context):
                self._outside(node, context, "await")
            return
        value = node.value
        symbol = self._symbols.of(value, context)
        rule, edits = "not-awaitable", tuple[Edit, ...]()
        if symbol is not None and symbol.kind == Kind.TOOL:
            rule = "not-called"
            call = f"`await {symbol.name}(...)`"
            message = f"{quote(symbol.name)} is awaited but not called: {call}"
        elif isinstance(value, ast.ListComp | ast.List | ast.GeneratorExp | ast.Tuple):
            message = (
                "several calls are awaited with `await asyncio.gather(*[...])`; a list itself "
                "cannot be awaited"
            )
        elif isinstance(value, ast.Call) and (
            self._symbols.is_builtin(value.func, SHOWING)
            or not DATA_MEMBERS.isdisjoint(self._symbols.dotted_names(value.func, context))
        ):
            name = quote(f"{ast.unparse(value.func)}(...)")
            message, edits = f"{name} is not awaited; leave out `await`", (Edit("bare", node),)
        else:
            return
        self._report.add(node, rule, self._survey.raises(context, "TypeError"), message, edits)

    def _outside(self, node: ast.AST, context: Context, what: str) -> None:
        scope = context.scope.function()
        edits: tuple[Edit, ...] = ()
        if scope.kind == "class":
            where = "in a class's body; move it into an `async def`, or above the class"
        elif isinstance(scope.node, ast.FunctionDef):
            name = scope.node.name
            where = (
                f"in {quote(name)}, which is no async function; write `async def {name}(...)` and "
                f"`await {name}(...)` where it is called"
            )
            edits = self._conversions.get(scope.node, ())
            # The first mistake in a function brings the edits of all its calls.
            self._conversions[scope.node] = edits[:1]
        else:
            where = "in a `lambda`, which cannot await; write an `async def` instead"
        self._report.add(node, "await-outside-async", "deny", f"`{what}` {where}", edits)

    @cached_property
    def _conversions(self) -> dict[ast.AST, tuple[Edit, ...]]:
        """By function, the edits that make it asynchronous and await its calls.

        There are none if a call is not awaited at once, or made where `await` is not allowed.
        """
        survey, handed_on = self._survey, {None, *self._handed_on}
        calls = {id(node.func): (node, context) for node, context in survey.every(ast.Call)}
        as_data = {id(value) for value, _, _ in self._uses()}
        as_data |= {id(node.value) for node, _ in survey.every(ast.Expr, ast.Await)}
        for node, _ in survey.every(ast.Assign):
            if getattr(node.targets[0], "id", None) not in handed_on:
                as_data.add(id(node.value))
        awaits = defaultdict[str, list[Edit]](list)
        unclear = {node.attr for node, _ in survey.every(ast.Attribute)}
        for node, context in survey.every(ast.Name):
            call, context = calls.get(id(node), (None, context))
            edits = self._await_edits(call, context) if id(call) in as_data else ()
            if not edits:
                unclear.add(node.id)
            elif id(call) not in self._awaits:
                awaits[node.id] += edits
        named = Counter(getattr(scope.node, "name", "") for scope in survey.functions)
        unclear |= {name for name, count in named.items() if count > 1}
        return {
            scope.node: (Edit("asynchronous", scope.node), *awaits[scope.node.name])
            for scope in survey.functions
            if isinstance(scope.node, ast.FunctionDef)
            and not (scope.generator or scope.node.decorator_list or scope.node.name in unclear)
        }

    def _gather(self, node: ast.Call, context: Context) -> None:
        first, severity = node.args[0], self._survey.raises(context, "TypeError")
        if isinstance(first, ast.List | ast.ListComp | ast.GeneratorExp):
            message = "`asyncio.gather` takes the calls one by one: put `*` before the list"
            edits = () if isinstance(first, ast.GeneratorExp) else (Edit("star", first),)
            self._report.add(first, "gather-list", severity, message, edits)
        for one in node.args:
            call = self._symbols.of(one.value, context) if isinstance(one, ast.Await) else None
            if call is not None and call.kind == Kind.COROUTINE and call.tool is not None:
                message = "`asyncio.gather` takes calls without `await`"
                self._report.add(one, "not-awaitable", severity, message, (Edit("bare", one),))

    def _block(self, node: ast.AsyncFor | ast.AsyncWith, context: Context) -> None:
        loop = isinstance(node, ast.AsyncFor)
        if not context.scope.asynchronous:
            self._outside(node, context, "async for" if loop else "async with")
        elif isinstance(node, ast.AsyncFor) and isinstance(node.iter, ast.Call):
            self._check_use(node.iter, context, "is iterated over", Edit("plain", node))

    def _return(self, node: ast.Return, context: Context) -> None:
        if context.scope.function().kind != "function":
            message = (
                "`return` outside a function; end the program with the value as its last "
                "expression instead, or `print` it"
            )
            edits = (Edit("value", node),) if context.last else ()
            self._report.add(node, "syntax", "deny", message, edits)


_RULES: tuple[tuple[Any, ...], ...] = (
    (_Preflight._call, ast.Call),
    (_Preflight._check_load, ast.Attribute, ast.Subscript),
    (_Preflight._import_from, ast.ImportFrom),
    (_Preflight._expression, ast.Expr),
    (_Preflight._check_assign, ast.Assign),
    (_Preflight._await, ast.Await),
    (_Preflight._block, ast.AsyncFor, ast.AsyncWith),
    (_Preflight._return, ast.Return),
)


def _in_generator(context: Context) -> bool:
    inner = takewhile(lambda scope: scope.kind == "comprehension", context.scope.chain())
    return any(scope.generator for scope in inner)
