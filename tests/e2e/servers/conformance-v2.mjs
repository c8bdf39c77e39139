// The features that the conformance suite tests at 2026-07-28, on the TypeScript SDK v2, as far as a proxy affects them: tools,
// subscriptions, headers, but no extensions. With LEGACY=reject it refuses clients of older revisions.

import { toNodeHandler } from '@modelcontextprotocol/node';
import { completable, createMcpHandler, fromJsonSchema, McpServer, ResourceTemplate } from '@modelcontextprotocol/server';
import { z } from 'zod';
import { listen } from './common.mjs';
import {
    addPrompts,
    addResources,
    addTool,
    addTools,
    refuseForeign,
    SCHEMA,
    SCHEMA_TOOL,
    text
} from './conformance-common.mjs';
import { addEarlier } from './conformance-earlier.mjs';

function build() {
    const changes = { listChanged: true };
    const capabilities = { logging: {}, tools: changes, prompts: changes, resources: { ...changes, subscribe: true } };
    const server = new McpServer({ name: 'conformance-v2', version: '1.0.0' }, { capabilities });
    addTools(
        server,
        (extra, notification) => extra.mcpReq.notify(notification),
        extra => extra.mcpReq._meta?.progressToken
    );
    addTool(server, 'test_logging_tool', async (_, extra) => {
        await extra.mcpReq.log('info', 'For who asked.');
        return text('Logged.');
    });
    addTool(server, 'test_trigger_tool_change', () => {
        handler.notify.toolsChanged();
        return text('Told.');
    });
    addTool(server, 'test_trigger_prompt_change', () => {
        handler.notify.promptsChanged();
        return text('Told.');
    });
    addTool(server, SCHEMA_TOOL, () => text('Any arguments will do.'), fromJsonSchema(SCHEMA));
    addEarlier(server);
    addResources(server, ResourceTemplate);
    addPrompts(server, completable, args => z.object(args));
    return server;
}

const handler = createMcpHandler(build, { legacy: process.env.LEGACY ?? 'stateless' });
const handle = toNodeHandler(handler);

listen((request, response) => refuseForeign(request, response) || handle(request, response));
