// Tool calls through the stock TypeScript SDK v1.

import { Client } from '@modelcontextprotocol/sdk/client/index.js';
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

const transport = new StreamableHTTPClientTransport(flags.url);
await main(
    async () => {
        await client.connect(transport);
        return transport.protocolVersion;
    },
    (params, onprogress) => client.callTool(params, undefined, { ...deadline, onprogress }),
    {
        level: level => client.setLoggingLevel(level),
        subscribe: uri => client.subscribeResource({ uri }),
        list: () => client.listTools()
    }
);
