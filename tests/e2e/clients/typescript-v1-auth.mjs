// A slow call and a quick one through the stock TypeScript SDK v1 with an auth provider that can refresh its token. Prints the outcome of each as a
// JSON line: --url URL --ms MILLISECONDS.

import { parseArgs } from 'node:util';

import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';

const { values } = parseArgs({ options: { url: { type: 'string' }, ms: { type: 'string' } } });

let tokens = { access_token: 'token-1', token_type: 'Bearer', refresh_token: 'first' };
const authProvider = {
    redirectUrl: 'http://127.0.0.1/unused',
    clientMetadata: { redirect_uris: ['http://127.0.0.1/unused'] },
    clientInformation: () => ({ client_id: 'e2e' }),
    tokens: () => tokens,
    saveTokens: saved => {
        tokens = saved;
    },
    redirectToAuthorization: () => {
        throw new Error('a user would be asked');
    },
    saveCodeVerifier: () => {},
    codeVerifier: () => 'unused'
};

const client = new Client({ name: 'e2e-typescript-v1-auth', version: '1.0.0' });
await client.connect(new StreamableHTTPClientTransport(new URL(values.url), { authProvider }));
for (const name of ['slow', 'quick']) {
    const line = { tool: name };
    try {
        const result = await client.callTool({ name, arguments: { ms: Number(values.ms) } });
        line.text = result.content[0].text;
    } catch (error) {
        line.error = { code: error.code, message: error.message, data: error.data };
    }
    console.log(JSON.stringify({ ...line, token: tokens.access_token }));
}
await client.close();
process.exit(0);
