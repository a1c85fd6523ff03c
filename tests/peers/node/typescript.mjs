// The clients of the TypeScript SDKs: typescript.mjs 1|2|2-auto TASK; see playing.py for the task.
import { existsSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";

const [kind, text] = process.argv.slice(2);
const task = JSON.parse(text);
const older = kind === "1";
const { Client } = await import(older ? "@modelcontextprotocol/sdk/client/index.js" : "@modelcontextprotocol/client");
const { StdioClientTransport } = await import(
    older ? "@modelcontextprotocol/sdk/client/stdio.js" : "@modelcontextprotocol/client/stdio");
const { StreamableHTTPClientTransport } = await import(
    older ? "@modelcontextprotocol/sdk/client/streamableHttp.js" : "@modelcontextprotocol/client");

const options = kind === "2-auto" ? { versionNegotiation: { mode: "auto" } } : {};
const client = new Client({ name: "peer", version: "1" }, options);
const [command, ...args] = task.command ?? [];
const transport = task.url
    ? new StreamableHTTPClientTransport(new URL(task.url))
    : new StdioClientTransport({ command, args, env: task.env, cwd: task.cwd });
await client.connect(transport);

async function call(code, rest = {}) {
    const params = { name: "run_python", arguments: { code } };
    const result = older ? await client.callTool(params, undefined, rest) : await client.callTool(params, rest);
    const texts = result.content.filter((block) => block.type === "text");
    return {
        failed: Boolean(result.isError),
        kinds: result.content.map((block) => block.type),
        text: texts.map((block) => block.text).join(""),
        record: result._meta?.["mcp-code-bridge/result"] ?? result.structuredContent,
    };
}

const { programs } = task;
const seen = { tools: (await client.listTools()).tools.map((tool) => tool.name) };
for (const name of ["value", "error", "picture"]) seen[name] = await call(programs[name]);
const abort = new AbortController();
const slow = call(programs.slow, { signal: abort.signal }).catch((error) => error);
while (!existsSync(task.started)) await sleep(20);
abort.abort("enough");
await slow;
seen.after = await call(programs.value);
await client.close();
console.log(JSON.stringify(seen));
process.exit(0);
