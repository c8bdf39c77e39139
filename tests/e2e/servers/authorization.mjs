// An authorization server on the stock oidc-provider: dynamic registration, PKCE, JWT access tokens for one resource, refresh tokens
// that are used once. Its pages ask nobody: whoever follows the redirects with a cookie jar is signed in and has consented.

import { generateKeyPairSync } from 'node:crypto';
import { createServer } from 'node:http';
import { createLocalJWKSet, jwtVerify } from 'jose';
import Provider, { errors } from 'oidc-provider';

// The difference of clocks that the server allows for. `exp` has whole seconds, and would come before the end that clients are told.
export const LEEWAY_SECS = 1;

const SCOPES = ['tools', 'admin'];
// Without offline_access: rmcp adds that to each refresh, also if it was not granted. Clients get refresh tokens anyway.
const ALL_SCOPES = ['openid', ...SCOPES];

/**
 * Starts an issuer whose tokens are for `resource`, named exactly so, and last `tokenSecs`.
 *
 * `publicUrl`: the issuer's name, if a proxy is in front of it; `port`: 0 is any. Returns its name, what it has counted, and
 * `verify(token)`.
 */
export async function startIssuer({ resource, tokenSecs, publicUrl, port = 0 }) {
    const server = createServer();
    await new Promise(done => server.listen(port, '127.0.0.1', done));
    const issuer = publicUrl ?? `http://127.0.0.1:${server.address().port}`;
    const counted = { registrations: 0, authorized: [], refreshes: 0, refused: [] };
    const keys = newKeys();
    const provider = new Provider(issuer, settings({ resource, tokenSecs, jwks: { keys: [keys.own] } }));
    provider.proxy = publicUrl !== undefined;
    count(provider, counted);
    const answer = provider.callback();
    server.on('request', (request, response) => {
        if (request.url.startsWith('/interaction/')) return consent(provider, request, response);
        return answer(request, response);
    });
    const known = createLocalJWKSet({ keys: [keys.shown] });
    const checked = { issuer, audience: resource, typ: 'at+jwt', clockTolerance: LEEWAY_SECS };
    return {
        issuer,
        counted,
        /** The claims of an access token for the resource; throws if it is none. */
        verify: async token => (await jwtVerify(token, known, checked)).payload
    };
}

function newKeys() {
    const { privateKey, publicKey } = generateKeyPairSync('rsa', { modulusLength: 2048 });
    const about = { kid: 'e2e', alg: 'RS256', use: 'sig' };
    return { own: { ...privateKey.export({ format: 'jwk' }), ...about }, shown: { ...publicKey.export({ format: 'jwk' }), ...about } };
}

function settings({ resource, tokenSecs, jwks }) {
    return {
        jwks,
        cookies: { keys: ['e2e'] },
        scopes: ALL_SCOPES,
        extraClientMetadata: { properties: ['scope'], validator: allowAllScopes },
        pkce: { required: () => true },
        rotateRefreshToken: true,
        issueRefreshToken: async (_, client) => client.grantTypeAllowed('refresh_token'),
        findAccount: (_, id) => ({ accountId: id, claims: () => ({ sub: id }) }),
        interactions: { url: (_, { uid }) => `/interaction/${uid}` },
        features: {
            devInteractions: { enabled: false },
            registration: { enabled: true },
            resourceIndicators: {
                enabled: true,
                useGrantedResource: () => true,
                getResourceServerInfo: (_, asked) => {
                    if (asked !== resource) throw new errors.InvalidTarget();
                    return { scope: SCOPES.join(' '), audience: resource, accessTokenTTL: tokenSecs, accessTokenFormat: 'jwt' };
                }
            }
        }
    };
}

/** Lets a client ask later for a scope that it has not registered, as most issuers do. */
function allowAllScopes(context, key, value, metadata) {
    metadata.scope = ALL_SCOPES.join(' ');
}

function count(provider, counted) {
    provider.on('registration_create.success', () => (counted.registrations += 1));
    provider.on('authorization.success', ({ oidc }) => counted.authorized.push(oidc.params.scope));
    provider.on('grant.success', ({ oidc }) => (counted.refreshes += oidc.params.grant_type === 'refresh_token'));
    for (const what of ['registration_create.error', 'authorization.error', 'grant.error', 'server_error']) {
        provider.on(what, (_, error) => counted.refused.push(`${what}: ${error.error_description ?? error.message}`));
    }
}

/** Signs the one user in, or grants all that is asked. */
async function consent(provider, request, response) {
    try {
        const { prompt, params, grantId, session } = await provider.interactionDetails(request, response);
        const result =
            prompt.name === 'login'
                ? { login: { accountId: 'user' } }
                : { consent: { grantId: await grant(provider, { params, grantId, session }) } };
        await provider.interactionFinished(request, response, result);
    } catch (error) {
        response.writeHead(500).end(String(error));
    }
}

async function grant(provider, { params, grantId, session }) {
    const owner = { accountId: session.accountId, clientId: params.client_id };
    const granted = grantId ? await provider.Grant.find(grantId) : new provider.Grant(owner);
    granted.addOIDCScope(params.scope ?? '');
    granted.addResourceScope(params.resource, params.scope ?? '');
    return granted.save();
}
