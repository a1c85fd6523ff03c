"""Reads a program's text before it runs. Pure: no module here executes the program.

A program is parsed once (`parsing`), its names are resolved once (`survey`, `symbols`), and rules
judge the result:

- `parsing`: text to a syntax tree, or the reason why there is none.
- `repairs` with `f_strings`: the list of repairs for a text that does not parse.
- `survey`: one walk over the tree: scopes, bindings, the context of each node, and whether a
  mistake there is certain to end the program; only such mistakes stop a run.
- `symbols`: what an expression refers to: a server, a tool, a helper, a module's member, a text; or
  a name where one of these is meant and none has it.
- `arguments`: the calls of tools and helpers, with the values that the text shows.
- `names`: the table of all names by which programs reach servers, tools and helpers.
- `server_references`: the servers that a program names, and which of their tools it can reach.
- `expected_calls`: the calls that a program may make.
- `guard` with `guard_rules`: denies native code, processes, sockets, hidden code, secret files.
- `checks`: the preflight's verdict, from its rules on names, tools, helpers and arguments, and from
  `awaits` (`await` missing or misplaced); `edits` fixes what is certain.
- `report`: collects the findings of the guard and the preflight; `advice` words them.
- `tables`: helpers, builtins and well-known names, as data.
"""
