// A server on the TypeScript SDK v1 without an event store; it cannot resume.
//
// STATELESS=1: no sessions, one server for each request. SINGLE=1: one transport, hence one session, for the life of the process.
// SSE=1: HTTP+SSE at /sse, in place of Streamable HTTP. JSON=1: responses are JSON, never SSE. AUTH=TOKEN: every request needs that bearer token and is refused with 401 otherwise,
// AUTH_DELAY_MS later. POST_ALONE=1: an Express application with `app.post` alone. MASTRA=1: an unknown session is refused as
// @mastra/mcp 0.14.5 refuses it, whose package would bring 440 others. DISCOVER=1: `server/discover` lists the SDK's revisions, all
// older than that method, as servers in Go answer it. `/counters?key=sessions` has the sessions that were opened.

import { randomUUID } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import express from 'express';
import { McpServer } from '@modelcontextprotocol/sdk/server/mcp.js';
import { SSEServerTransport } from '@modelcontextprotocol/sdk/server/sse.js';
import { StdioServerTransport } from '@modelcontextprotocol/sdk/server/stdio.js';
import { StreamableHTTPServerTransport } from '@modelcontextprotocol/sdk/server/streamableHttp.js';
import { SUPPORTED_PROTOCOL_VERSIONS, isInitializeRequest } from '@modelcontextprotocol/sdk/types.js';
import { z } from 'zod';
import { IS_STDIO, counted, listen, progress, progressUntil, run, text } from './common.mjs';

const STATELESS = process.env.STATELESS === '1';
const SINGLE = process.env.SINGLE === '1';
const SSE = process.env.SSE === '1';
const JSON_ANSWERS = process.env.JSON === '1';
const POST_ALONE = process.env.POST_ALONE === '1';
const MASTRA = process.env.MASTRA === '1';
const DISCOVER = process.env.DISCOVER === '1';
const { AUTH, AUTH_DELAY_MS = '0' } = process.env;

const SERVER_INFO = { name: 'typescript-v1', version: '1.0.0' };
const key = z.string().default('');

function build() {
    const server = new McpServer(SERVER_INFO, { capabilities: { logging: {} } });

    const timed = { steps: z.number(), interval_ms: z.number(), key };
    server.registerTool('long', { inputSchema: timed }, (args, extra) =>
        run(args.key, extra.signal, async () => {
            const token = extra._meta?.progressToken;
            await progress(args.steps, args.interval_ms, token, extra.signal, extra.sendNotification);
            return text(`done ${args.steps}`);
        })
    );

    const gated = { gate: z.string(), interval_ms: z.number(), key };
    server.registerTool('until_open', { inputSchema: gated }, (args, extra) =>
        run(args.key, extra.signal, async () => {
            const token = extra._meta?.progressToken;
            const notify = extra.sendNotification;
            return text(`done ${await progressUntil(args.gate, args.interval_ms, token, extra.signal, notify)}`);
        })
    );

    server.registerTool('silent', { inputSchema: { interval_ms: z.number(), key } }, (args, extra) =>
        run(args.key, extra.signal, async () => {
            await progress(1, args.interval_ms, undefined, extra.signal);
            return text('done');
        })
    );

    server.registerTool('quick', { inputSchema: { key } }, (args, extra) =>
        run(args.key, extra.signal, async () => text('quick'))
    );

    // Sends a request to the client `delay_ms` after one progress notification, on the stream of this call.
    const asking = { kind: z.enum(['sampling', 'elicitation', 'roots']), delay_ms: z.number().default(0), key };
    server.registerTool('ask', { inputSchema: asking }, (args, extra) =>
        run(args.key, extra.signal, async () => {
            await progress(1, 0, extra._meta?.progressToken, extra.signal, extra.sendNotification);
            await sleep(args.delay_ms, undefined, { signal: extra.signal });
            return text(`answered ${await ask(server.server, args.kind, extra.requestId)}`);
        })
    );

    // Two requests, one after the other or both at once.
    const many = { at_once: z.boolean().default(false), key };
    server.registerTool('survey', { inputSchema: many }, (args, extra) =>
        run(args.key, extra.signal, async () => {
            await progress(1, 0, extra._meta?.progressToken, extra.signal, extra.sendNotification);
            const kinds = ['sampling', 'elicitation'];
            const one = kind => ask(server.server, kind, extra.requestId);
            const words = args.at_once ? await Promise.all(kinds.map(one)) : [];
            for (const kind of kinds.slice(words.length)) words.push(await one(kind));
            return text(`answered ${words.join(' ')}`);
        })
    );

    // Log messages that belong to no call, sent on the session's standalone stream unless the client has asked for a higher level.
    const announced = { ...timed, level: z.enum(['info', 'error']).default('info') };
    server.registerTool('announce', { inputSchema: announced }, (args, extra) =>
        run(args.key, extra.signal, async () => {
            for (let n = 1; n <= args.steps; n += 1) {
                await sleep(args.interval_ms);
                await server.server.sendLoggingMessage({ level: args.level, data: n }, extra.sessionId);
            }
            return text(`announced ${args.steps}`);
        })
    );
    return server;
}

async function ask(server, kind, relatedRequestId) {
    if (kind === 'sampling') {
        const messages = [{ role: 'user', content: { type: 'text', text: 'a word?' } }];
        return (await server.createMessage({ messages, maxTokens: 16 }, { relatedRequestId })).content.text;
    }
    if (kind === 'roots') {
        return (await server.listRoots({}, { relatedRequestId })).roots[0].uri;
    }
    const requestedSchema = { type: 'object', properties: { word: { type: 'string' } }, required: ['word'] };
    return (await server.elicitInput({ message: 'a word?', requestedSchema }, { relatedRequestId })).content.word;
}

const sessions = new Map();
let single;

async function transportOf(request) {
    const known = single ?? sessions.get(request.headers['mcp-session-id']);
    if (known) return known;
    const transport = new StreamableHTTPServerTransport({
        sessionIdGenerator: STATELESS ? undefined : randomUUID,
        enableJsonResponse: JSON_ANSWERS,
        onsessioninitialized: id => {
            sessions.set(id, transport);
            counted('sessions').started += 1;
        },
        onsessionclosed: id => sessions.delete(id)
    });
    if (SINGLE) single = transport;
    await build().connect(transport);
    return transport;
}

async function handleSse(request, response) {
    const url = new URL(request.url, 'http://localhost');
    const known = sessions.get(url.searchParams.get('sessionId'));
    if (request.method === 'GET' && url.pathname === '/sse') {
        const transport = new SSEServerTransport('/messages', response);
        sessions.set(transport.sessionId, transport);
        response.on('close', () => sessions.delete(transport.sessionId));
        await build().connect(transport);
    } else if (known && request.method === 'POST' && url.pathname === '/messages') {
        await known.handlePostMessage(request, response);
    } else {
        response.writeHead(404).end('Session not found');
    }
}

async function bodyOf(request) {
    const pieces = [];
    for await (const piece of request) pieces.push(piece);
    return JSON.parse(Buffer.concat(pieces).toString());
}

/** What @mastra/mcp 0.14.5 does with a request in no session that it knows. */
async function handleAsMastra(request, response) {
    const body = request.method === 'POST' ? await bodyOf(request) : undefined;
    if (isInitializeRequest(body)) {
        await (await transportOf(request)).handleRequest(request, response, body);
        return;
    }
    const message = body
        ? 'Bad Request: No valid session ID provided for non-initialize request'
        : `Bad Request: ${request.method} request requires a valid session ID`;
    response.writeHead(400, { 'Content-Type': 'application/json' });
    response.end(JSON.stringify({ jsonrpc: '2.0', error: { code: -32000, message }, id: body?.id ?? null }));
}

async function handle(request, response) {
    if (!request.url.startsWith('/mcp')) {
        response.writeHead(404).end();
        return;
    }
    if (AUTH && request.headers.authorization !== `Bearer ${AUTH}`) {
        await sleep(Number(AUTH_DELAY_MS));
        response.writeHead(401, { 'www-authenticate': 'Bearer error="invalid_token"' }).end();
        return;
    }
    if (DISCOVER && request.headers['mcp-method'] === 'server/discover') {
        const { id } = await bodyOf(request);
        const result = {
            resultType: 'complete',
            supportedVersions: SUPPORTED_PROTOCOL_VERSIONS,
            capabilities: { tools: {} },
            ttlMs: 0,
            cacheScope: 'private',
            _meta: { 'io.modelcontextprotocol/serverInfo': SERVER_INFO }
        };
        response.writeHead(200, { 'content-type': 'application/json' }).end(JSON.stringify({ jsonrpc: '2.0', id, result }));
        return;
    }
    const session = request.headers['mcp-session-id'];
    if (MASTRA && !sessions.has(session)) {
        await handleAsMastra(request, response);
        return;
    }
    if (session && !SINGLE && !sessions.has(session)) {
        response.writeHead(404, { 'content-type': 'application/json' });
        response.end('{"jsonrpc":"2.0","error":{"code":-32001,"message":"Session not found"},"id":null}');
        return;
    }
    if (STATELESS && request.method !== 'POST') {
        response.writeHead(405).end();
        return;
    }
    await (await transportOf(request)).handleRequest(request, response);
}

const app = express();
app.post('/mcp', handle);

if (IS_STDIO) await build().connect(new StdioServerTransport());
else if (SSE) listen(handleSse);
else listen(POST_ALONE ? app : handle);
