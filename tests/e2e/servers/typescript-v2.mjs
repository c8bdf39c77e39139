// A server on the TypeScript SDK v2: 2026-07-28, and older revisions without sessions. It cannot resume.

import { createMcpHandler, McpServer } from '@modelcontextprotocol/server';
import { toNodeHandler } from '@modelcontextprotocol/node';
import { z } from 'zod';
import { listen, progress, progressUntil, run, text } from './common.mjs';

const key = z.string().default('');

function build() {
    const server = new McpServer({ name: 'typescript-v2', version: '1.0.0' });

    const timed = z.object({ steps: z.number(), interval_ms: z.number(), key });
    server.registerTool('long', { inputSchema: timed }, (args, ctx) =>
        run(args.key, ctx.mcpReq.signal, async () => {
            const token = ctx.mcpReq._meta?.progressToken;
            await progress(args.steps, args.interval_ms, token, ctx.mcpReq.signal, ctx.mcpReq.notify);
            return text(`done ${args.steps}`);
        })
    );

    const gated = z.object({ gate: z.string(), interval_ms: z.number(), key });
    server.registerTool('until_open', { inputSchema: gated }, (args, ctx) =>
        run(args.key, ctx.mcpReq.signal, async () => {
            const { signal, notify, _meta } = ctx.mcpReq;
            const steps = await progressUntil(args.gate, args.interval_ms, _meta?.progressToken, signal, notify);
            return text(`done ${steps}`);
        })
    );

    server.registerTool('quick', { inputSchema: z.object({ key }) }, (args, ctx) =>
        run(args.key, ctx.mcpReq.signal, async () => text('quick'))
    );
    return server;
}

listen(toNodeHandler(createMcpHandler(build)));
