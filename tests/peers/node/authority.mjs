// oidc-provider as an authorization server, with a person who agrees to everything, and an MCP
// server behind it: authority.mjs AUTHORITY_PORT SERVER_PORT. Says "ready" once both listen;
// ends with its stdin.
import http from "node:http";
import { McpServer } from "@modelcontextprotocol/sdk/server/mcp.js";
import { StreamableHTTPServerTransport } from "@modelcontextprotocol/sdk/server/streamableHttp.js";
import Provider from "oidc-provider";

const [authorityPort, serverPort] = process.argv.slice(2).map(Number);
const issuer = `http://127.0.0.1:${authorityPort}`;
const origin = `http://127.0.0.1:${serverPort}`;
const resource = `${origin}/mcp`;

const provider = new Provider(issuer, {
    features: {
        devInteractions: { enabled: false },
        registration: { enabled: true },
        revocation: { enabled: true },
        resourceIndicators: {
            enabled: true,
            getResourceServerInfo: (context, indicator) => {
                if (indicator !== resource) throw new Error(`no such resource: ${indicator}`);
                return { scope: "tools", audience: resource, accessTokenFormat: "opaque", accessTokenTTL: 600 };
            },
        },
    },
    findAccount: (context, accountId) => ({ accountId, claims: () => ({ sub: accountId }) }),
    interactions: { url: (context, interaction) => `/interaction/${interaction.uid}` },
    scopes: ["openid", "offline_access", "tools"],
    cookies: { keys: ["not a secret"] },
});
provider.on("registration_create.error", (context, error) => console.error(error.error_description));
const answer = provider.callback();

async function agree(request, response) {
    const { prompt, params, session, grantId } = await provider.interactionDetails(request, response);
    if (prompt.name === "login") {
        await provider.interactionFinished(request, response, { login: { accountId: "somebody" } });
        return;
    }
    const asked = { accountId: session.accountId, clientId: params.client_id };
    const grant = grantId ? await provider.Grant.find(grantId) : new provider.Grant(asked);
    grant.addOIDCScope("openid offline_access tools");
    grant.addResourceScope(resource, "tools");
    await provider.interactionFinished(request, response, { consent: { grantId: await grant.save() } });
}

const authority = http.createServer((request, response) =>
    request.url.startsWith("/interaction/") ? agree(request, response) : answer(request, response),
);

async function serve(request, response) {
    const metadata = `${origin}/.well-known/oauth-protected-resource/mcp`;
    if (request.url.startsWith("/.well-known/oauth-protected-resource")) {
        response.setHeader("content-type", "application/json");
        response.end(JSON.stringify({ resource, authorization_servers: [issuer], scopes_supported: ["tools"] }));
        return;
    }
    const token = await provider.AccessToken.find((request.headers.authorization ?? "").replace("Bearer ", ""));
    if (!token || token.aud !== resource || !token.scope?.split(" ").includes("tools")) {
        response.writeHead(401, { "www-authenticate": `Bearer resource_metadata="${metadata}", scope="tools"` });
        response.end();
        return;
    }
    const server = new McpServer({ name: "peer", version: "1" });
    server.registerTool("who", { description: "Say who calls" }, () => ({
        content: [{ type: "text", text: token.accountId }],
    }));
    const transport = new StreamableHTTPServerTransport({ sessionIdGenerator: undefined });
    await server.connect(transport);
    await transport.handleRequest(request, response);
}

const server = http.createServer(serve);
authority.listen(authorityPort, "127.0.0.1", () => server.listen(serverPort, "127.0.0.1", () => console.log("ready")));
process.stdin.resume().on("end", () => process.exit());
