// A server of the TypeScript SDK 2 over stdio that speaks the newest protocol version alone.
import { writeFileSync } from "node:fs";
import { McpServer } from "@modelcontextprotocol/server";
import { serveStdio } from "@modelcontextprotocol/server/stdio";
import { z } from "zod";

function make() {
    const server = new McpServer({ name: "peer", version: "1" });
    const numbers = { inputSchema: z.object({ a: z.number(), b: z.number() }), outputSchema: z.object({ sum: z.number() }) };
    server.registerTool("add", { description: "Add two numbers", ...numbers }, async ({ a, b }) => {
        const sum = { sum: a + b };
        return { content: [{ type: "text", text: JSON.stringify(sum) }], structuredContent: sum };
    });
    server.registerTool("fail", { description: "Fail" }, async () => {
        throw new Error("it broke");
    });
    const shown = { description: "Return a PNG as a picture", inputSchema: z.object({ data: z.string() }) };
    server.registerTool("picture", shown, async ({ data }) => ({ content: [{ type: "image", mimeType: "image/png", data }] }));
    const files = z.object({ started: z.string(), cancelled: z.string() });
    server.registerTool("slow", { description: "Wait until it is cancelled", inputSchema: files }, (task, context) =>
        new Promise((_, reject) => {
            context.mcpReq.signal.addEventListener("abort", () => {
                writeFileSync(task.cancelled, "yes");
                reject(new Error("cancelled"));
            });
            writeFileSync(task.started, "yes");
        }),
    );
    return server;
}

serveStdio(make, { legacy: "reject" });
