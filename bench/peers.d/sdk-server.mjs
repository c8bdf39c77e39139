// The scripted upstream on the TypeScript SDK v1: the same tool, served by the SDK's own Streamable HTTP transport, as in its examples.
//
// EVENT_STORE=1: each session has the SDK's InMemoryEventStore, so that clients can resume. The payloads are those of bench/src/payload.rs;
// acknowledgements and gathering are absent. `GET /runs` returns the number of calls that the tool has begun to answer with events.

import { randomUUID } from 'node:crypto';
import { createServer } from 'node:http';
import { setImmediate as turn, setTimeout as sleep } from 'node:timers/promises';
import { InMemoryEventStore } from '@modelcontextprotocol/sdk/examples/shared/inMemoryEventStore.js';
import { McpServer } from '@modelcontextprotocol/sdk/server/mcp.js';
import { StreamableHTTPServerTransport } from '@modelcontextprotocol/sdk/server/streamableHttp.js';
import { z } from 'zod';

const WITH_STORE = process.env.EVENT_STORE === '1';
const SHAPE = {
    mode: z.enum(['json', 'events', 'idle']).default('json'),
    events: z.number().default(0),
    bytes: z.number().default(0),
    interval_ms: z.number().default(0),
    duration_ms: z.number().default(0)
};

let begun = 0;

function build() {
    const server = new McpServer({ name: 'bench', version: '0' });
    server.registerTool('bench', { inputSchema: SHAPE }, async (script, extra) => {
        if (script.mode === 'json') return text(0, script.bytes);
        if (script.mode === 'idle') {
            await sleep(script.duration_ms, undefined, { signal: extra.signal });
            return text(0, 0);
        }
        begun += 1;
        return text(await events(script, extra), 0);
    });
    return server;
}

const text = (sent, pad) => ({ content: [{ type: 'text', text: `sent ${sent} ${'x'.repeat(pad)}` }] });

async function events(script, extra) {
    const progressToken = extra._meta?.progressToken;
    const end = script.duration_ms === 0 ? Infinity : performance.now() + script.duration_ms;
    let sent = 0;
    let due = performance.now();
    while (script.events === 0 || sent < script.events) {
        // Timers fire late, so each is set from the due time of the previous one; the first event is due at once.
        const wait = due - performance.now();
        await (wait > 0 ? sleep(wait, undefined, { signal: extra.signal }) : turn());
        if (performance.now() >= end) break;
        sent += 1;
        due += script.interval_ms;
        const params = { progressToken, progress: sent, message: `${process.hrtime.bigint()} ` };
        const length = JSON.stringify({ jsonrpc: '2.0', method: 'notifications/progress', params }).length;
        params.message += 'x'.repeat(Math.max(0, script.bytes - length));
        await extra.sendNotification({ method: 'notifications/progress', params });
    }
    return sent;
}

const sessions = new Map();

async function transportOf(request) {
    const known = sessions.get(request.headers['mcp-session-id']);
    if (known) return known;
    const transport = new StreamableHTTPServerTransport({
        sessionIdGenerator: randomUUID,
        eventStore: WITH_STORE ? new InMemoryEventStore() : undefined,
        onsessioninitialized: id => sessions.set(id, transport),
        onsessionclosed: id => sessions.delete(id)
    });
    await build().connect(transport);
    return transport;
}

const server = createServer(async (request, response) => {
    if (request.url === '/runs') {
        response.end(JSON.stringify({ begun }));
        return;
    }
    try {
        await (await transportOf(request)).handleRequest(request, response);
    } catch (error) {
        console.error(error);
        if (!response.headersSent) response.writeHead(500);
        response.end();
    }
});
// A session's connection is idle while others are opened.
server.keepAliveTimeout = 600_000;
server.listen({ port: 0, host: '127.0.0.1', backlog: 16384 }, () => {
    console.log(JSON.stringify({ url: `http://127.0.0.1:${server.address().port}/mcp` }));
});
