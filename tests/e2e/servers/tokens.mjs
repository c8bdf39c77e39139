// A server whose access tokens it can end at any time, with the authorization server that renews them. Without an SDK: the SDKs check a token before
// a call, and this one answers 401 late.

import { createServer } from 'node:http';

// The present access token. A refresh token that is good gives a new one.
let serial = 1;
let isEnded = false;
const counters = { refused: [], refreshed: 0 };

const send = (response, status, body, headers = {}) => {
    response.writeHead(status, { 'content-type': 'application/json', ...headers });
    response.end(JSON.stringify(body));
};

async function bodyOf(request) {
    const pieces = [];
    for await (const piece of request) pieces.push(piece);
    return Buffer.concat(pieces).toString();
}

const sleep = ms => new Promise(done => setTimeout(done, ms));

async function call(message, request, response) {
    const { name, arguments: given } = message.params;
    // The first token ends while the call of `slow` runs.
    if (name === 'slow' && serial === 1) {
        isEnded = true;
        await sleep(given.ms);
    }
    if (isEnded || request.headers.authorization !== `Bearer token-${serial}`) {
        counters.refused.push(name);
        return send(response, 401, { error: 'expired' }, { 'www-authenticate': 'Bearer error="invalid_token"' });
    }
    send(response, 200, { jsonrpc: '2.0', id: message.id, result: { content: [{ type: 'text', text: name }] } });
}

const routes = {
    'POST /mcp': async (request, response) => {
        const message = JSON.parse(await bodyOf(request));
        if (message.method === 'tools/call') return call(message, request, response);
        if (!('id' in message)) return response.writeHead(202).end();
        const result = { protocolVersion: '2025-11-25', capabilities: { tools: {} }, serverInfo: { name: 'tokens', version: '1' } };
        send(response, 200, { jsonrpc: '2.0', id: message.id, result });
    },
    'GET /.well-known/oauth-authorization-server': (request, response) => {
        // The proxy's own address, as its client knows it.
        const origin = `http://${request.headers['x-forwarded-host'] ?? request.headers.host}`;
        send(response, 200, {
            issuer: origin,
            authorization_endpoint: `${origin}/authorize`,
            token_endpoint: `${origin}/token`,
            response_types_supported: ['code'],
            code_challenge_methods_supported: ['S256'],
            token_endpoint_auth_methods_supported: ['none']
        });
    },
    'POST /token': async (request, response) => {
        const asked = new URLSearchParams(await bodyOf(request));
        if (asked.get('grant_type') !== 'refresh_token') return send(response, 400, { error: 'unsupported_grant_type' });
        counters.refreshed += 1;
        serial += 1;
        isEnded = false;
        send(response, 200, { access_token: `token-${serial}`, token_type: 'Bearer', refresh_token: 'again' });
    },
    'GET /counters': (request, response) => send(response, 200, counters)
};

const server = createServer((request, response) => {
    const route = routes[`${request.method} ${request.url}`];
    if (!route) return send(response, request.method === 'GET' && request.url === '/mcp' ? 405 : 404, {});
    return route(request, response);
});
server.listen(0, '127.0.0.1', () => console.log(JSON.stringify({ port: server.address().port })));
