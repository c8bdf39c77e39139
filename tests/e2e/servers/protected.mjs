// A server on the TypeScript SDK v1 whose calls need an access token, with the authorization server that issues them. It cannot resume.
//
// AUDIENCE=URL: the resource that tokens are for, the server's own URL by default. NAMES=forwarded: the server names itself by
// X-Forwarded-Host and X-Forwarded-Proto, and else by its own URL. TOKEN_SECS: the life of an access token. ISSUER=URL, ISSUER_PORT:
// name and port of the authorization server behind a proxy. GET_AFTER_MS: a GET stream has its head so much later. `GET /counters` without a key has what both have refused and issued.

import { randomUUID } from 'node:crypto';
import { createServer } from 'node:http';
import { setTimeout as sleep } from 'node:timers/promises';
import express from 'express';
import { InvalidTokenError } from '@modelcontextprotocol/sdk/server/auth/errors.js';
import { requireBearerAuth } from '@modelcontextprotocol/sdk/server/auth/middleware/bearerAuth.js';
import { getOAuthProtectedResourceMetadataUrl, mcpAuthMetadataRouter } from '@modelcontextprotocol/sdk/server/auth/router.js';
import { McpServer } from '@modelcontextprotocol/sdk/server/mcp.js';
import { StreamableHTTPServerTransport } from '@modelcontextprotocol/sdk/server/streamableHttp.js';
import { z } from 'zod';
import { LEEWAY_SECS, startIssuer } from './authorization.mjs';
import { counted, progress, run, text } from './common.mjs';

const { PORT = '0', AUDIENCE, NAMES, TOKEN_SECS = '3600', ISSUER, ISSUER_PORT = '0', GET_AFTER_MS = '0' } = process.env;

const app = express();
const server = createServer(app);
await new Promise(done => server.listen(Number(PORT), '127.0.0.1', done));
const own = `http://127.0.0.1:${server.address().port}/mcp`;
const authorization = await startIssuer({
    resource: AUDIENCE ?? own,
    tokenSecs: Number(TOKEN_SECS),
    publicUrl: ISSUER,
    port: Number(ISSUER_PORT)
});
const refused = { 401: 0, 403: 0 };

/** The server's URL as it knows it. */
function nameFor(request) {
    const host = NAMES === 'forwarded' && request.headers['x-forwarded-host'];
    return new URL(host ? `${request.headers['x-forwarded-proto']}://${host}/mcp` : own);
}

const verifier = {
    async verifyAccessToken(token) {
        try {
            const claims = await authorization.verify(token);
            return { token, clientId: claims.client_id, scopes: claims.scope.split(' '), expiresAt: claims.exp + LEEWAY_SECS };
        } catch (error) {
            throw new InvalidTokenError(error.message);
        }
    }
};

/** Refuses callers without these scopes, as the SDK does. */
function needs(...requiredScopes) {
    return (request, response, next) => {
        const resourceMetadataUrl = getOAuthProtectedResourceMetadataUrl(nameFor(request));
        return requireBearerAuth({ verifier, requiredScopes, resourceMetadataUrl })(request, response, next);
    };
}

const oauthMetadata = {
    issuer: authorization.issuer,
    authorization_endpoint: `${authorization.issuer}/auth`,
    token_endpoint: `${authorization.issuer}/token`,
    response_types_supported: ['code']
};

function build() {
    const mcp = new McpServer({ name: 'protected', version: '1.0.0' });
    const key = z.string().default('');
    mcp.registerTool('long', { inputSchema: { steps: z.number(), interval_ms: z.number(), key } }, (args, extra) =>
        run(args.key, extra.signal, async () => {
            await progress(args.steps, args.interval_ms, extra._meta?.progressToken, extra.signal, extra.sendNotification);
            return text(`done ${args.steps}`);
        })
    );
    for (const name of ['quick', 'admin']) {
        mcp.registerTool(name, { inputSchema: { key } }, (args, extra) => run(args.key, extra.signal, async () => text(name)));
    }
    return mcp;
}

const sessions = new Map();

async function transportOf(id) {
    if (sessions.has(id)) return sessions.get(id);
    const transport = new StreamableHTTPServerTransport({
        sessionIdGenerator: randomUUID,
        onsessioninitialized: id => sessions.set(id, transport),
        onsessionclosed: id => sessions.delete(id)
    });
    await build().connect(transport);
    return transport;
}

app.get('/counters', ({ query }, response) => {
    response.json(query.key ? counted(query.key) : { ...authorization.counted, answered: refused });
});
app.use((request, response, next) => {
    const about = { oauthMetadata, resourceServerUrl: nameFor(request), scopesSupported: ['tools'] };
    return mcpAuthMetadataRouter(about)(request, response, next);
});
app.use((_, response, next) => {
    response.on('finish', () => {
        if (response.statusCode in refused) refused[response.statusCode] += 1;
    });
    next();
});
const allow = { all: needs('tools'), admin: needs('tools', 'admin') };
app.use('/mcp', express.json(), (request, response, next) => {
    const isAdmin = request.body?.params?.name === 'admin';
    return allow[isAdmin ? 'admin' : 'all'](request, response, next);
});
app.all('/mcp', async (request, response) => {
    if (request.method === 'GET') await sleep(Number(GET_AFTER_MS));
    const id = request.headers['mcp-session-id'];
    if (id && !sessions.has(id)) {
        const error = { code: -32001, message: 'Session not found' };
        return response.status(404).json({ jsonrpc: '2.0', error, id: null });
    }
    return (await transportOf(id)).handleRequest(request, response, request.body);
});

console.log(JSON.stringify({ port: server.address().port, issuer: authorization.issuer }));
