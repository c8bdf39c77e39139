// A server on the TypeScript SDK v2: 2026-07-28, and older revisions, over HTTP without sessions. It cannot resume.
//
// SESSIONS=1: older revisions alone, with sessions; an unknown one is refused with an empty 404.

import { randomUUID } from 'node:crypto';
import { acceptedContent, createMcpHandler, inputRequired, McpServer } from '@modelcontextprotocol/server';
import { serveStdio } from '@modelcontextprotocol/server/stdio';
import { NodeStreamableHTTPServerTransport, toNodeHandler } from '@modelcontextprotocol/node';
import { z } from 'zod';
import { IS_STDIO, listen, progress, progressUntil, run, text } from './common.mjs';

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

    server.registerTool('silent', { inputSchema: z.object({ interval_ms: z.number(), key }) }, (args, ctx) =>
        run(args.key, ctx.mcpReq.signal, async () => {
            await progress(1, args.interval_ms, undefined, ctx.mcpReq.signal);
            return text('done');
        })
    );

    server.registerTool('quick', { inputSchema: z.object({ key }) }, (args, ctx) =>
        run(args.key, ctx.mcpReq.signal, async () => text('quick'))
    );

    // The question is a result; the answer comes with another call.
    server.registerTool('input', { inputSchema: z.object({ key }) }, (args, ctx) =>
        run(args.key, ctx.mcpReq.signal, async () => {
            const answer = acceptedContent(ctx.mcpReq.inputResponses, 'question');
            if (answer) return text(`answered ${answer.word}`);
            const requestedSchema = { type: 'object', properties: { word: { type: 'string' } }, required: ['word'] };
            return inputRequired({
                inputRequests: { question: inputRequired.elicit({ message: 'a word?', requestedSchema }) }
            });
        })
    );

    server.registerTool('change', {}, () => {
        server.sendToolListChanged();
        return text('changed');
    });
    return server;
}

const sessions = new Map();

async function handleSession(request, response) {
    const session = request.headers['mcp-session-id'];
    let transport = sessions.get(session);
    if (session && !transport) {
        response.writeHead(404).end();
        return;
    }
    if (!transport) {
        transport = new NodeStreamableHTTPServerTransport({
            sessionIdGenerator: randomUUID,
            onsessioninitialized: id => sessions.set(id, transport),
            onsessionclosed: id => sessions.delete(id)
        });
        await build().connect(transport);
    }
    await transport.handleRequest(request, response);
}

if (IS_STDIO) serveStdio(build);
else listen(process.env.SESSIONS === '1' ? handleSession : toNodeHandler(createMcpHandler(build, { legacy: process.env.LEGACY ?? 'stateless' })));
