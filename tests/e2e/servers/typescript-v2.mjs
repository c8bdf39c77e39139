// A server on the TypeScript SDK v2: 2026-07-28, and older revisions, over HTTP without sessions. It cannot resume.
//
// LEGACY=reject: 2026-07-28 alone.
// SESSIONS=1: older revisions alone, with sessions; an unknown one is refused as by the SDK.

import { randomUUID } from 'node:crypto';
import { acceptedContent, createMcpHandler, inputRequired, McpServer } from '@modelcontextprotocol/server';
import { serveStdio } from '@modelcontextprotocol/server/stdio';
import { NodeStreamableHTTPServerTransport, toNodeHandler } from '@modelcontextprotocol/node';
import { z } from 'zod';
import { IS_STDIO, listen, progress, progressUntil, run, text } from './common.mjs';

const key = z.string().default('');

// Handler of all requests, over HTTP without sessions.
let handler;

function questionOf(kind) {
    if (kind === 'roots') return inputRequired.listRoots();
    if (kind === 'sampling') {
        const messages = [{ role: 'user', content: { type: 'text', text: 'a word?' } }];
        return inputRequired.createMessage({ messages, maxTokens: 16 });
    }
    const requestedSchema = { type: 'object', properties: { word: { type: 'string' } }, required: ['word'] };
    return inputRequired.elicit({ message: 'a word?', requestedSchema });
}

function answerOf(kind, responses) {
    if (kind === 'elicitation') return acceptedContent(responses, 'question')?.word;
    const answer = responses?.question;
    return kind === 'roots' ? answer?.roots?.[0]?.uri : answer?.content?.text;
}

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
    const asked = z.object({ kind: z.enum(['elicitation', 'sampling', 'roots']).default('elicitation'), key });
    server.registerTool('input', { inputSchema: asked }, (args, ctx) =>
        run(args.key, ctx.mcpReq.signal, async () => {
            const answer = answerOf(args.kind, ctx.mcpReq.inputResponses);
            if (answer) return text(`answered ${answer}`);
            return inputRequired({ inputRequests: { question: questionOf(args.kind) } });
        })
    );

    server.registerTool('change', {}, () => {
        server.sendToolListChanged();
        // Over HTTP each request has a server of its own, and the subscriptions are the handler's.
        handler?.notify.toolsChanged();
        return text('changed');
    });
    return server;
}

const sessions = new Map();

async function handleSession(request, response) {
    const session = request.headers['mcp-session-id'];
    let transport = sessions.get(session);
    if (session && !transport) {
        response.writeHead(404, { 'content-type': 'application/json' });
        response.end('{"jsonrpc":"2.0","error":{"code":-32001,"message":"Session not found"},"id":null}');
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
else if (process.env.SESSIONS === '1') listen(handleSession);
else {
    handler = createMcpHandler(build, { legacy: process.env.LEGACY ?? 'stateless' });
    listen(toNodeHandler(handler));
}
