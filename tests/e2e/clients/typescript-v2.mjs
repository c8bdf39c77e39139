// Tool calls through the stock TypeScript SDK v2. `--mode modern` pins 2026-07-28, which is never chosen by default; `--mode auto` asks for it.

import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { StdioClientTransport } from '@modelcontextprotocol/client/stdio';
import { answers, deadline, flags, main, say, sayChange } from './common.mjs';
import { Login } from './login.mjs';

const options = { capabilities: { sampling: {}, elicitation: {}, roots: {} } };
const modes = { modern: { pin: '2026-07-28' }, auto: 'auto' };
if (flags.mode in modes) options.versionNegotiation = { mode: modes[flags.mode] };

const client = new Client({ name: flags.name ?? 'e2e-typescript-v2', version: '1.0.0' }, options);
client.setRequestHandler('sampling/createMessage', answers.sampling);
client.setRequestHandler('elicitation/create', answers.elicitation);
client.setRequestHandler('roots/list', answers.roots);
client.setNotificationHandler('notifications/message', message => say({ event: 'logged', data: message.params.data }));
for (const method of ['prompts/list_changed', 'resources/list_changed', 'resources/updated', 'tools/list_changed']) {
    client.setNotificationHandler(`notifications/${method}`, sayChange);
}

const authProvider = flags.login ? new Login() : undefined;
let transport;
/** Makes a request, also one that needs a sign-in first. */
const request = attempt => authProvider?.around(attempt, answer => transport.finishAuth(answer)) ?? attempt();
await main(
    async () => {
        await request(() => {
            transport = flags.program
                ? new StdioClientTransport(flags.program)
                : new StreamableHTTPClientTransport(flags.url, { authProvider });
            return client.connect(transport);
        });
        return client.getNegotiatedProtocolVersion?.() ?? transport.protocolVersion;
    },
    (params, onprogress) => request(() => client.callTool(params, { ...deadline, onprogress })),
    {
        level: level => client.setLoggingLevel(level),
        subscribe: uri => client.subscribeResource({ uri }),
        list: () => client.listTools(),
        listen: () => client.listen({ toolsListChanged: true })
    }
);
