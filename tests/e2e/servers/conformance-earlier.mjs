// The tools that the conformance suite calls at 2025-11-25 alone, on a server that speaks 2026-07-28: it asks in its results.

import { setTimeout as sleep } from 'node:timers/promises';
import { inputRequired } from '@modelcontextprotocol/server';
import { z } from 'zod';
import { addTool, FORMS, text, USER } from './conformance-common.mjs';

const ask = question => inputRequired({ inputRequests: { question } });

function elicit(request, message, properties, required = []) {
    const answer = request.inputResponses?.question;
    if (answer) return text(`Answered: action=${answer.action}, content=${JSON.stringify(answer.content)}`);
    return ask(inputRequired.elicit({ message, requestedSchema: { type: 'object', properties, required } }));
}

export function addEarlier(server) {
    addTool(server, 'test_tool_with_logging', async (_, { mcpReq }) => {
        for (const data of ['begun', 'halfway', 'done']) {
            await mcpReq.log('info', data);
            await sleep(50);
        }
        return text('Logged.');
    });
    const sample = ({ prompt }, { mcpReq }) => {
        const answer = mcpReq.inputResponses?.question;
        if (answer) return text(`LLM response: ${answer.content.text}`);
        const messages = [{ role: 'user', content: text(prompt) }];
        return ask(inputRequired.createMessage({ messages, maxTokens: 100 }));
    };
    addTool(server, 'test_sampling', sample, z.object({ prompt: z.string() }));
    const user = ({ message }, { mcpReq }) => elicit(mcpReq, message, USER, Object.keys(USER));
    addTool(server, 'test_elicitation', user, z.object({ message: z.string() }));
    for (const [name, { message, properties }] of Object.entries(FORMS)) {
        addTool(server, name, (_, { mcpReq }) => elicit(mcpReq, message, properties));
    }
}
