// The features that the conformance suite tests at 2025-11-25, on the TypeScript SDK v1 with sessions and without an event store:
// it passes all checks but those of resumption.

import { randomUUID } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import { McpServer, ResourceTemplate } from '@modelcontextprotocol/sdk/server/mcp.js';
import { completable } from '@modelcontextprotocol/sdk/server/completable.js';
import { StreamableHTTPServerTransport } from '@modelcontextprotocol/sdk/server/streamableHttp.js';
import {
    ElicitResultSchema,
    ListToolsRequestSchema,
    SubscribeRequestSchema,
    UnsubscribeRequestSchema
} from '@modelcontextprotocol/sdk/types.js';
import { z } from 'zod';
import { listen } from './common.mjs';
import {
    addPrompts,
    addResources,
    addTool,
    addTools,
    FORMS,
    refuse,
    refuseForeign,
    SCHEMA,
    SCHEMA_TOOL,
    text,
    USER
} from './conformance-common.mjs';
import { addLater } from './conformance-later.mjs';

function build() {
    const capabilities = { logging: {}, resources: { subscribe: true } };
    const server = new McpServer({ name: 'conformance-v1', version: '1.0.0' }, { capabilities });
    addTools(
        server,
        (extra, notification) => extra.sendNotification(notification),
        extra => extra._meta?.progressToken
    );
    addTool(server, 'test_tool_with_logging', async (_, extra) => {
        for (const data of ['begun', 'halfway', 'done']) {
            await extra.sendNotification({ method: 'notifications/message', params: { level: 'info', data } });
            await sleep(50);
        }
        return text('Logged.');
    });
    addAskingTools(server);
    addSchemaTool(server);
    addResources(server, ResourceTemplate);
    server.server.setRequestHandler(SubscribeRequestSchema, async () => ({}));
    server.server.setRequestHandler(UnsubscribeRequestSchema, async () => ({}));
    addPrompts(server, completable, args => args);
    addLater(server);
    return server;
}

/** Tools that send requests to the client on the stream of their call. */
function addAskingTools(server) {
    const sample = async ({ prompt }, extra) => {
        const params = { messages: [{ role: 'user', content: text(prompt) }], maxTokens: 100 };
        const { content } = await server.server.createMessage(params, { relatedRequestId: extra.requestId });
        return text(`LLM response: ${content.text}`);
    };
    addTool(server, 'test_sampling', sample, z.object({ prompt: z.string() }));

    const elicit = async (extra, message, properties, required = []) => {
        const params = { message, requestedSchema: { type: 'object', properties, required } };
        const answer = await extra.sendRequest({ method: 'elicitation/create', params }, ElicitResultSchema);
        return text(`Answered: action=${answer.action}, content=${JSON.stringify(answer.content)}`);
    };
    const ask = ({ message }, extra) => elicit(extra, message, USER, Object.keys(USER));
    addTool(server, 'test_elicitation', ask, z.object({ message: z.string() }));
    for (const [name, { message, properties }] of Object.entries(FORMS)) {
        addTool(server, name, (_, extra) => elicit(extra, message, properties));
    }
}

/** The SDK accepts schemas of zod only: this one is put into the list directly. */
function addSchemaTool(server) {
    addTool(server, SCHEMA_TOOL, () => text('Any arguments will do.'));
    const list = server.server._requestHandlers.get('tools/list');
    server.server.setRequestHandler(ListToolsRequestSchema, async (request, extra) => {
        const { tools } = await list(request, extra);
        return { tools: tools.map(tool => (tool.name === SCHEMA_TOOL ? { ...tool, inputSchema: SCHEMA } : tool)) };
    });
}

const sessions = new Map();

async function transportOf(session) {
    if (session) return sessions.get(session);
    const transport = new StreamableHTTPServerTransport({
        sessionIdGenerator: randomUUID,
        onsessioninitialized: id => sessions.set(id, transport),
        onsessionclosed: id => sessions.delete(id)
    });
    await build().connect(transport);
    return transport;
}

listen(async (request, response) => {
    if (refuseForeign(request, response)) return;
    const transport = await transportOf(request.headers['mcp-session-id']);
    if (transport) await transport.handleRequest(request, response);
    else refuse(response, 404, 'Session not found');
});
