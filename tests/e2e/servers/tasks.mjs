// A plain server on the TypeScript SDK v2, without tasks: the tools of the conformance suite's `tasks-*` scenarios, `measure`, whose result
// is structured and of any size, and `until_open`, which ends when a test says so. The other slow ones are silent for `SILENT_MS` at least
// before they answer or ask.

import { setTimeout as sleep } from 'node:timers/promises';
import { toNodeHandler } from '@modelcontextprotocol/node';
import { acceptedContent, createMcpHandler, inputRequired, McpServer, ProtocolError, ProtocolErrorCode } from '@modelcontextprotocol/server';
import { z } from 'zod';
import { listen, progressUntil, run, text } from './common.mjs';

const SILENT_MS = 1500;
const key = z.string().default('');
const ask = (message, property, type) =>
    inputRequired.elicit({
        message,
        requestedSchema: { type: 'object', properties: { [property]: { type } }, required: [property] }
    });

function build() {
    const server = new McpServer({ name: 'tasks', version: '1.0.0' });
    const tool = (name, shape, work) =>
        server.registerTool(name, { inputSchema: z.object({ ...shape, key }) }, (args, ctx) =>
            run(args.key, ctx.mcpReq.signal, () => work(args, ctx.mcpReq))
        );

    tool('greet', { name: z.string() }, args => text(`Hello, ${args.name}!`));
    tool('slow_compute', { seconds: z.number(), label: z.string().default('') }, async (args, request) => {
        const token = request._meta?.progressToken;
        for (let n = 1; n <= args.seconds; n += 1) {
            await sleep(1000, undefined, { signal: request.signal });
            const params = { progressToken: token, progress: n, total: args.seconds, message: args.label };
            if (token !== undefined) await request.notify({ method: 'notifications/progress', params });
        }
        return text(`${args.label} after ${args.seconds} s`);
    });
    tool('until_open', { gate: z.string() }, async (args, request) => {
        const notify = message => request.notify(message);
        return text(`done ${await progressUntil(args.gate, 100, request._meta?.progressToken, request.signal, notify)}`);
    });
    const measured = z.object({ size: z.number() });
    const size = z.number().default(5);
    server.registerTool('measure', { inputSchema: z.object({ size, key }), outputSchema: measured }, (args, ctx) =>
        run(args.key, ctx.mcpReq.signal, async () => {
            await sleep(SILENT_MS);
            return { ...text('measured'.padEnd(args.size, '.')), structuredContent: { size: args.size } };
        })
    );
    tool('failing_job', {}, async () => {
        await sleep(SILENT_MS);
        return { ...text('The job has failed.'), isError: true };
    });
    tool('confirm_delete', { filename: z.string().default('') }, async (args, request) => {
        await sleep(SILENT_MS);
        const answer = acceptedContent(request.inputResponses, 'confirm');
        if (!answer) return inputRequired({ inputRequests: { confirm: ask(`Delete ${args.filename}?`, 'confirm', 'boolean') } });
        return text(answer.confirm ? 'Deleted.' : 'Kept.');
    });
    tool('multi_input', {}, async (_, request) => {
        await sleep(SILENT_MS);
        const [name, age] = ['name', 'age'].map(what => acceptedContent(request.inputResponses, what));
        if (!name || !age) {
            const questions = { name: ask('Your name?', 'name', 'string'), age: ask('Your age?', 'age', 'number') };
            return inputRequired({ inputRequests: questions });
        }
        return text(`${name.name}, ${age.age}`);
    });
    tool('test_tool_with_task', {}, async (_, request) => {
        const answer = acceptedContent(request.inputResponses, 'user_name');
        if (!answer) return inputRequired({ inputRequests: { user_name: ask('Your name?', 'name', 'string') } });
        await sleep(SILENT_MS);
        return text(`Hello, ${answer.name}!`);
    });
    // The SDK makes a result with `isError` of whatever a tool throws, so this one stands before the tools.
    tool('protocol_error_job', {}, () => text(''));
    const call = server.server._requestHandlers.get('tools/call');
    server.server._requestHandlers.set('tools/call', async (request, ...rest) => {
        if (request.params.name !== 'protocol_error_job') return call(request, ...rest);
        return run(request.params.arguments?.key, undefined, async () => {
            await sleep(SILENT_MS);
            throw new ProtocolError(ProtocolErrorCode.InternalError, 'The job has panicked.');
        });
    });
    return server;
}

const handle = toNodeHandler(createMcpHandler(build, { legacy: process.env.LEGACY ?? 'stateless' }));
listen(handle);
