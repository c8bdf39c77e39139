// Tool calls through Vercel's AI SDK, which never resumes a POST, for a model that makes each call and then repeats the text of its result.

import { createMCPClient } from '@ai-sdk/mcp';
import { generateText, stepCountIs } from 'ai';
import { MockLanguageModelV4 } from 'ai/test';
import { flags, main } from './common.mjs';

const usage = {
    inputTokens: { total: 1, noCache: 1, cacheRead: 0, cacheWrite: 0 },
    outputTokens: { total: 1, text: 1, reasoning: 0 }
};
const says = (content, finished) => ({ content, finishReason: { unified: finished, raw: finished }, usage, warnings: [] });

/** The text of the last result that the model was given, or nothing. */
function resultIn(prompt) {
    const results = prompt.filter(({ role }) => role === 'tool').flatMap(({ content }) => content);
    const output = results.at(-1)?.output;
    return output && (output.value.content ?? output.value)[0].text;
}

/** A model that calls this tool once. */
const modelFor = ({ name, arguments: given }) =>
    new MockLanguageModelV4({
        doGenerate: async ({ prompt }) => {
            const text = resultIn(prompt);
            if (text) return says([{ type: 'text', text }], 'stop');
            return says([{ type: 'tool-call', toolCallId: 'one', toolName: name, input: JSON.stringify(given) }], 'tool-calls');
        }
    });

let client;
await main(
    async () => {
        client = await createMCPClient({ transport: { type: 'http', url: flags.url.href }, onUncaughtError: () => {} });
        return client.protocolVersion ?? '2025-11-25';
    },
    async params => {
        const { text } = await generateText({
            model: modelFor(params),
            tools: await client.tools(),
            stopWhen: stepCountIs(3),
            maxRetries: 0,
            prompt: 'Call the tool.'
        });
        return { content: [{ type: 'text', text }] };
    },
    {}
);
