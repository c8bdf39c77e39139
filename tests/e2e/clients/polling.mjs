// Tool calls as tasks of 2025-11-25 with the habits of VS Code, on the TypeScript SDK v1's transport: `task: {}` whenever server and tool allow it; a
// poll each `pollInterval` of the handle; its `ttl` is a hard deadline; questions are expected on the standalone stream, never by `tasks/result`; a
// poll's -32602 means cancelled, any other failure of a poll is passed over; and status notifications are followed.

import { setTimeout as sleep } from 'node:timers/promises';
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import {
    CallToolResultSchema,
    CreateTaskResultSchema,
    ElicitRequestSchema,
    GetTaskResultSchema,
    TaskStatusNotificationSchema
} from '@modelcontextprotocol/sdk/types.js';
import { answers, flags, main, say, sayResult } from './common.mjs';

const INVALID_PARAMS = -32602;
const INTERVAL_MS = 2000;

const client = new Client({ name: 'e2e-polling', version: '1.0.0' }, { capabilities: { elicitation: {} } });
client.setRequestHandler(ElicitRequestSchema, answers.elicitation);
const transport = new StreamableHTTPClientTransport(flags.url);

// Wakes the loop of a task with the state that a notification told.
const followers = new Map();
client.setNotificationHandler(TaskStatusNotificationSchema, ({ params }) => followers.get(params.taskId)?.(params));

let support = new Map();

async function list() {
    const { tools } = await client.listTools();
    support = new Map(tools.map(({ name, execution }) => [name, execution?.taskSupport ?? 'forbidden']));
}

async function call(params) {
    const allows = client.getServerCapabilities().tasks?.requests?.tools?.call !== undefined;
    if (!allows || support.get(params.name) === 'forbidden') return client.callTool(params);
    const { task } = await client.request({ method: 'tools/call', params: { ...params, task: {} } }, CreateTaskResultSchema);
    say({ event: 'task', id: task.taskId });
    return settled(task);
}

async function settled({ taskId, ttl, pollInterval }) {
    const until = ttl === null ? Infinity : Date.now() + ttl;
    for (;;) {
        const state = await next(taskId, pollInterval ?? INTERVAL_MS);
        if (Date.now() > until) throw new Error('timed out');
        if (state) say({ event: 'status', status: state.status });
        switch (state?.status) {
            case 'completed':
                try {
                    return await client.request({ method: 'tasks/result', params: { taskId } }, CallToolResultSchema);
                } catch (error) {
                    // A connection that was lost; the next poll leads here again.
                    if (!(error instanceof TypeError)) throw error;
                    say({ event: 'lost', message: String(error) });
                }
                break;
            case 'failed':
                throw new Error(state.statusMessage ?? 'failed');
            case 'cancelled':
                throw new Error('cancelled');
        }
    }
}

/** The state at the next poll, or as a notification tells it before; nothing if the poll is lost. */
async function next(taskId, interval) {
    const told = new Promise(resolve => followers.set(taskId, resolve));
    const state = await Promise.race([told, sleep(interval)]);
    followers.delete(taskId);
    if (state && state.status !== 'input_required') return state;
    try {
        return await client.request({ method: 'tasks/get', params: { taskId } }, GetTaskResultSchema);
    } catch (error) {
        if (error.code === INVALID_PARAMS) return { status: 'cancelled' };
        say({ event: 'lost', message: String(error) });
    }
}

await main(
    async () => {
        await client.connect(transport);
        await list();
        return transport.protocolVersion;
    },
    call,
    {
        async at_once(calls) {
            const running = calls.map(({ tool, args }) => call({ name: tool, arguments: args }));
            for (const result of await Promise.all(running)) sayResult(result);
        },
        list
    }
);
