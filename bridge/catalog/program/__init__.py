"""Reads a program's text before it runs. Pure: no module here executes the program.

A program is parsed once (`parsing`), its names are resolved once (`survey`, `symbols`), and rules
judge the result:

- `parsing`: text to a syntax tree, or the reason why there is none; advice on syntax errors.
- `survey`: one walk over the tree: scopes, bindings, and the context of each node.
- `symbols`: what an expression refers to: a server, a tool, a helper, a module's member, a text.
- `servers`: the servers that a program names, and which of their tools it can reach.
- `guard` with `guard_rules`: denies native code, processes, sockets, hidden code, secret files.
- `checks`: the preflight's verdict, from its own rules on names, imports and skills and from
  `calls` (tools, helpers, arguments) and `awaits` (`await` missing or misplaced).
- `certainty`: whether a mistake is certain to end the program; only such mistakes stop a run.
- `foreseen`: the calls that a program makes, with `arguments`: the values it passes.
- `report`: findings as short messages; `tables`: helpers, builtins and well-known names, as data.
"""
