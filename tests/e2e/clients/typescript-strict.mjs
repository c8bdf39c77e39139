// Tool calls through the stock TypeScript SDK v1 in the version that the variable SDK names. As some hosts do, it takes any error that the SDK
// reports outside a call for the loss of the server.

import { deadline, flags, leave, main } from './common.mjs';

const sdk = process.env.SDK ?? '@modelcontextprotocol/sdk';
const { Client } = await import(`${sdk}/client/index.js`);
const { StreamableHTTPClientTransport } = await import(`${sdk}/client/streamableHttp.js`);

const client = new Client({ name: flags.name ?? 'e2e-typescript-strict', version: '1.0.0' }, { capabilities: {} });
const transport = new StreamableHTTPClientTransport(flags.url);
let hasEnded = false;
client.onerror = error => {
    // A cut is no error of the response.
    if (!hasEnded && !`${error}`.includes('SSE stream disconnected')) leave({ event: 'error', message: `reported: ${error}` });
};

await main(
    async () => {
        await client.connect(transport);
        return transport.protocolVersion;
    },
    async (params, onprogress) => {
        const result = await client.callTool(params, undefined, { ...deadline, onprogress });
        await client.listTools();
        return result;
    },
    {}
);
hasEnded = true;
