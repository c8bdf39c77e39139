// A slow MCP server on stdio, on the TypeScript SDK, at 2026-07-28 and older revisions. It has no tasks.

import { setTimeout as sleep } from 'node:timers/promises';
import { acceptedContent, inputRequired, McpServer } from '@modelcontextprotocol/server';
import { serveStdio } from '@modelcontextprotocol/server/stdio';
import { z } from 'zod';

const text = words => ({ content: [{ type: 'text', text: words }] });

/** Works for `seconds`, and tells its progress once a second. */
async function work(seconds, what, { signal, notify, _meta }) {
    const progressToken = _meta?.progressToken;
    for (let n = 1; n <= seconds; n += 1) {
        await sleep(1000, undefined, { signal });
        const params = { progressToken, progress: n, total: seconds, message: what };
        if (progressToken !== undefined) await notify({ method: 'notifications/progress', params });
    }
}

function build() {
    const server = new McpServer({ name: 'slow', version: '1.0.0' });
    const seconds = z.number().int().min(1).max(3600).default(30);

    const description = 'Builds a program. Takes some time.';
    server.registerTool('build', { description, inputSchema: z.object({ seconds }) }, async (args, ctx) => {
        await work(args.seconds, 'building', ctx.mcpReq);
        return text(`built in ${args.seconds} s`);
    });

    const asks = 'Prepares a release, asks the user whether to publish it, and publishes it. Takes some time.';
    server.registerTool('release', { description: asks, inputSchema: z.object({ seconds }) }, async (args, ctx) => {
        const answer = acceptedContent(ctx.mcpReq.inputResponses, 'publish');
        if (answer) return text(answer.publish ? 'published' : 'not published');
        await work(args.seconds, 'preparing', ctx.mcpReq);
        const requestedSchema = { type: 'object', properties: { publish: { type: 'boolean' } }, required: ['publish'] };
        const question = inputRequired.elicit({ message: 'Publish the release?', requestedSchema });
        return inputRequired({ inputRequests: { publish: question } });
    });
    return server;
}

serveStdio(build);
