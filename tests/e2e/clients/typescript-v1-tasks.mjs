// Tool calls as tasks of 2025-11-25 through the stock TypeScript SDK v1: `callToolStream` makes one of each call whose tool may be one.

import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import { CallToolResultSchema, ElicitRequestSchema } from '@modelcontextprotocol/sdk/types.js';
import { answers, deadline, flags, main, say, sayResult } from './common.mjs';

const client = new Client({ name: 'e2e-typescript-v1-tasks', version: '1.0.0' }, { capabilities: { elicitation: {} } });
client.setRequestHandler(ElicitRequestSchema, answers.elicitation);
const transport = new StreamableHTTPClientTransport(flags.url);
const { tasks } = client.experimental;

/** `cancels`: cancels the task as soon as there is one, and then asks for its result. */
async function call(params, onprogress, cancels = false) {
    for await (const { type, task, result, error } of tasks.callToolStream(params, undefined, { ...deadline, onprogress })) {
        if (type === 'taskCreated') say({ event: 'task', id: task.taskId });
        if (type === 'taskStatus') say({ event: 'status', status: task.status });
        if (type === 'taskCreated' && cancels) {
            await tasks.cancelTask(task.taskId);
            await tasks.getTaskResult(task.taskId, CallToolResultSchema, { timeout: 5000 });
        }
        if (type === 'error') throw error;
        if (type === 'result') return result;
    }
}

await main(
    async () => {
        await client.connect(transport);
        await client.listTools();
        return transport.protocolVersion;
    },
    (params, onprogress) => call(params, onprogress),
    {
        async at_once(calls) {
            const running = calls.map(({ tool, args }) => call({ name: tool, arguments: args }));
            for (const result of await Promise.all(running)) sayResult(result);
        },
        cancel: ({ tool, args }) => call({ name: tool, arguments: args }, undefined, true),
        list: () => client.listTools()
    }
);
