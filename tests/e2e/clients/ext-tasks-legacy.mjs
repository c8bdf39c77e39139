// Tool calls as tasks of 2025-11-25 through ext-tasks on the stock TypeScript SDK v2.

import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { createTaskSessionFromClient, resultFromTaskOutcome } from '@modelcontextprotocol/ext-tasks/client';
import { answers, flags, main, say, sayResult } from './common.mjs';

const client = new Client({ name: 'e2e-ext-tasks-legacy', version: '1.0.0' }, { capabilities: { elicitation: { form: {} } } });
const transport = new StreamableHTTPClientTransport(flags.url);
let session;

async function connect() {
    await client.connect(transport);
    session = createTaskSessionFromClient(client, {
        endpointId: String(flags.url),
        onInputRequest: request => answers.elicitation(request)
    });
    return client.getNegotiatedProtocolVersion();
}

async function call({ name, arguments: args }, cancels = false) {
    const { tools } = await client.listTools();
    const taskSupport = tools.find(tool => tool.name === name)?.execution?.taskSupport;
    const execution = await session.callTool(name, args, { declaration: { name, taskSupport }, task: { preference: 'prefer' } });
    if (execution.handle) say({ event: 'task', id: execution.handle.taskId });
    if (cancels) await execution.cancel();
    const { outcome } = await execution.settle();
    return resultFromTaskOutcome(outcome);
}

await main(connect, params => call(params), {
    async at_once(calls) {
        const running = calls.map(({ tool, args }) => call({ name: tool, arguments: args }));
        for (const result of await Promise.all(running)) sayResult(result);
    },
    cancel: ({ tool, args }) => call({ name: tool, arguments: args }, true)
});
