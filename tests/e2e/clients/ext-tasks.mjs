// Tool calls through ext-tasks on the stock TypeScript SDK v2, at 2026-07-28. Its raw requests go through the SDK's own transport.

import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { createTaskSessionFromClient, resultFromTaskOutcome } from '@modelcontextprotocol/ext-tasks/client';
import { answers, flags, main, say, sayResult } from './common.mjs';

const clientInfo = { name: 'e2e-ext-tasks', version: '1.0.0' };
const capabilities = { elicitation: { form: {} }, extensions: { 'io.modelcontextprotocol/tasks': {} } };
const client = new Client(clientInfo, { capabilities, versionNegotiation: { mode: { pin: '2026-07-28' } } });
const transport = new StreamableHTTPClientTransport(flags.url);

const pending = new Map();
let last = 0;

/** Sends one request of ext-tasks below the SDK's client, which refuses their results. */
function rawDispatch(request, { context, signal } = {}) {
    const id = `raw-${(last += 1)}`;
    return new Promise((resolve, reject) => {
        pending.set(id, resolve);
        const onRequestStreamEnd = () => reject(new Error('the response has ended'));
        const options = { headers: context?.headers, requestSignal: signal, onRequestStreamEnd };
        transport.send({ ...request, jsonrpc: '2.0', id }, options).catch(reject);
    }).finally(() => pending.delete(id));
}

/** Takes the responses to raw requests, and leaves all other messages to the SDK. */
function takeResponses() {
    const receive = transport.onmessage;
    transport.onmessage = (message, ...rest) => {
        const resolve = pending.get(message.id);
        if (!resolve) {
            receive(message, ...rest);
            return;
        }
        const { result, error } = message;
        resolve(error ? { kind: 'error', error } : { kind: 'result', result });
    };
}

let session;

async function connect() {
    await client.connect(transport);
    takeResponses();
    session = createTaskSessionFromClient(client, {
        endpointId: String(flags.url),
        rawDispatch,
        v2RequestFraming: { protocolVersion: '2026-07-28', clientInfo, clientCapabilities: capabilities },
        onInputRequest: request => answers.elicitation(request)
    });
    return client.getNegotiatedProtocolVersion();
}

async function call({ name, arguments: args }, cancels = false) {
    const execution = await session.callTool(name, args);
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
