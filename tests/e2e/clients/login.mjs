// Sign-in of the TypeScript clients of the suite: the SDK's own OAuth, with a browser that follows each redirect at once.

// Nothing listens there: the browser reads the address to which it is sent.
const CALLBACK = 'http://127.0.0.1:9/callback';

/** A provider of the SDK that keeps all in memory. */
export class Login {
    redirectUrl = CALLBACK;
    clientMetadata = {
        client_name: 'e2e',
        redirect_uris: [CALLBACK],
        grant_types: ['authorization_code', 'refresh_token'],
        response_types: ['code'],
        token_endpoint_auth_method: 'none'
    };
    #kept = {};

    clientInformation = () => this.#kept.client;
    saveClientInformation = client => void (this.#kept.client = client);
    tokens = () => this.#kept.tokens;
    saveTokens = tokens => void (this.#kept.tokens = tokens);
    codeVerifier = () => this.#kept.verifier;
    saveCodeVerifier = verifier => void (this.#kept.verifier = verifier);
    redirectToAuthorization = async url => void (this.#kept.answer = await browse(url));

    /** Runs `attempt`; after a sign-in that it asked for, `finish(parameters of the callback)` and `attempt` again. */
    async around(attempt, finish) {
        try {
            return await attempt();
        } catch (error) {
            const { answer } = this.#kept;
            if (!answer) throw error;
            this.#kept.answer = undefined;
            await finish(answer);
            return attempt();
        }
    }
}

/** Follows the redirects from `url` with the cookies that they set; returns the parameters of the callback. */
async function browse(url) {
    const cookies = new Map();
    for (let hops = 0; hops < 10; hops += 1) {
        const cookie = [...cookies].map(pair => pair.join('=')).join('; ');
        const response = await fetch(url, { redirect: 'manual', headers: { cookie } });
        for (const set of response.headers.getSetCookie()) {
            const [, name, value] = /^([^=]+)=([^;]*)/.exec(set);
            cookies.set(name, value);
        }
        const to = response.headers.get('location');
        if (!to) throw new Error(`${url}: status ${response.status}: ${await response.text()}`);
        url = new URL(to, url);
        if (url.href.startsWith(CALLBACK)) return url.searchParams;
    }
    throw new Error('the authorization server redirects for ever');
}
