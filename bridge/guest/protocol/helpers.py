"""The functions of `mcp.runtime`, shared by the guest and the host's check of programs."""

from __future__ import annotations

LINES = """
async call_tool(server, tool, arguments=, ...)
async call_tool_raw(server, tool, arguments=, ...)
async complete(server, ref, argument, value=, ...)
async get_prompt(server, name, arguments=)
async list_prompts(server=)
async list_resource_templates(server=)
async list_resources(server=)
async list_servers()
async list_tools(server)
async query_tool_docs(server, tool=, detail=)
async read_output(run_id, stream=, *, offset=, length=, lines=, find=, limit=)
async read_resource(server, uri=, ...)
async search_tool_docs(query, *, limit=, detail=)
async watch_resource(server, uri, timeout=)
capability_summary()
delete_memory(key)
delete_skill(name)
describe_server(name)
discovered_servers(detailed=)
get_memory_info(key)
list_loaded_server_metadata()
list_memories()
list_servers_sync()
list_skills()
list_tools_sync(server=)
load_memory(key, default=)
load_skill(name)
memory_exists(key)
progress(done, total=, message=)
query_tool_docs_sync(server, tool=, detail=)
save_memory(key, value, metadata=)
save_skill(function, description=, name=)
save_tool(function, description=, name=)
search_tool_docs_sync(query, *, limit=, detail=)
update_memory(key, update_fn)
"""
"""Each function with its parameters; `=` marks one with a default, `...` further names."""

_names = [line.partition("(")[0] for line in LINES.split("\n") if line]

HELPERS = tuple(name.rpartition(" ")[2] for name in _names)

PLAIN = frozenset(name for name in _names if " " not in name)
"""Those that are no async functions; the guest removes an `await` before them."""

GLOBAL_HELPERS = frozenset(name for name in PLAIN if "memor" in name or name == "save_tool")

OWN_GLOBALS = GLOBAL_HELPERS | {
    "Blob", "LOADED_MCP_SERVERS", "MCPError", "mcp", "mcp_servers", "runtime",
}  # fmt: skip
"""The globals of each program, next to those of its servers."""

OF_SERVERS = (
    "call_tool", "call_tool_raw", "get_prompt", "list_prompts", "list_resource_templates",
    "list_resources", "read_resource",
)  # fmt: skip
"""Those that server objects have too, without the server, unless a tool is called so."""
