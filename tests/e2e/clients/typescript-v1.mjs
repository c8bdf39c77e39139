// Tool calls through the stock TypeScript SDK v1.

import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StdioClientTransport } from '@modelcontextprotocol/sdk/client/stdio.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import {
    CreateMessageRequestSchema,
    ElicitRequestSchema,
    ListRootsRequestSchema,
    LoggingMessageNotificationSchema,
    PromptListChangedNotificationSchema,
    ResourceListChangedNotificationSchema,
    ResourceUpdatedNotificationSchema,
    ToolListChangedNotificationSchema
} from '@modelcontextprotocol/sdk/types.js';
import { answers, deadline, flags, main, say, sayChange } from './common.mjs';
import { Login } from './login.mjs';

const client = new Client(
    { name: flags.name ?? 'e2e-typescript-v1', version: '1.0.0' },
    { capabilities: { sampling: {}, elicitation: {}, roots: {} } }
);
client.setRequestHandler(CreateMessageRequestSchema, answers.sampling);
client.setRequestHandler(ElicitRequestSchema, answers.elicitation);
client.setRequestHandler(ListRootsRequestSchema, answers.roots);
client.setNotificationHandler(LoggingMessageNotificationSchema, message =>
    say({ event: 'logged', data: message.params.data })
);
for (const schema of [
    PromptListChangedNotificationSchema,
    ResourceListChangedNotificationSchema,
    ResourceUpdatedNotificationSchema,
    ToolListChangedNotificationSchema
]) {
    client.setNotificationHandler(schema, sayChange);
}

const authProvider = flags.login ? new Login() : undefined;
let transport;
/** Makes a request, also one that needs a sign-in first. */
const request = attempt => authProvider?.around(attempt, answer => transport.finishAuth(answer.get('code'))) ?? attempt();
await main(
    async () => {
        await request(() => {
            transport = flags.program
                ? new StdioClientTransport(flags.program)
                : new StreamableHTTPClientTransport(flags.url, { authProvider });
            // Told to transports that have this method alone.
            transport.setProtocolVersion ??= protocol => (transport.protocolVersion = protocol);
            return client.connect(transport);
        });
        return transport.protocolVersion;
    },
    (params, onprogress) => request(() => client.callTool(params, undefined, { ...deadline, onprogress })),
    {
        level: level => client.setLoggingLevel(level),
        subscribe: uri => client.subscribeResource({ uri }),
        list: () => client.listTools()
    }
);
