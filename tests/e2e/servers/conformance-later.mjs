// The tools and the prompt that the conformance suite calls at 2026-07-28 alone, on a server that does not know that revision: it asks in
// mid-call, and tells of changes on its own stream. Those of the scenarios of tasks are silent for `SILENT_MS` before they answer or ask.

import { setTimeout as sleep } from 'node:timers/promises';
import { CreateMessageResultSchema, ElicitResultSchema, ListRootsResultSchema, McpError } from '@modelcontextprotocol/sdk/types.js';
import { z } from 'zod';
import { addTool, text } from './conformance-common.mjs';

const SILENT_MS = 1500;

const schema = (property, type) => ({ type: 'object', properties: { [property]: { type } }, required: [property] });

async function elicit(extra, message, property, type = 'string') {
    const params = { message, requestedSchema: schema(property, type) };
    const { content } = await extra.sendRequest({ method: 'elicitation/create', params }, ElicitResultSchema);
    return content?.[property];
}

async function sample(extra, words) {
    const params = { messages: [{ role: 'user', content: text(words) }], maxTokens: 100 };
    const { content } = await extra.sendRequest({ method: 'sampling/createMessage', params }, CreateMessageResultSchema);
    return content.text;
}

async function roots(extra) {
    const { roots } = await extra.sendRequest({ method: 'roots/list' }, ListRootsResultSchema);
    return roots.map(({ uri }) => uri).join();
}

/** Tools that ask for input. */
function addAskingTools(server) {
    const asking = (name, work) =>
        addTool(server, `test_input_required_result_${name}`, async (_, extra) => text(await work(extra)));
    asking('elicitation', async extra => `Hello, ${await elicit(extra, 'What is your name?', 'name')}!`);
    asking('sampling', extra => sample(extra, 'What is the capital of France?'));
    asking('list_roots', roots);
    const confirmed = async extra => `state-ok ${await elicit(extra, 'Please confirm', 'ok', 'boolean')}`;
    asking('request_state', confirmed);
    asking('tampered_state', confirmed);
    asking('multiple_inputs', async extra => {
        const name = elicit(extra, 'What is your name?', 'name');
        return (await Promise.all([name, sample(extra, 'Generate a greeting'), roots(extra)])).join(' ');
    });
    asking('multi_round', async extra => {
        const name = await elicit(extra, 'Step 1: What is your name?', 'name');
        return `${name} likes ${await elicit(extra, 'Step 2: What is your favorite color?', 'color')}.`;
    });
    asking('capabilities', async extra => {
        const { elicitation } = server.server.getClientCapabilities();
        return elicitation ? elicit(extra, 'What is your name?', 'name') : sample(extra, 'What is a name?');
    });
    addTool(server, 'test_missing_capability', async (_, extra) => {
        if (!server.server.getClientCapabilities().sampling) throw new Error('Client does not support sampling');
        return text(await sample(extra, 'Say it.'));
    });
    addTool(server, 'test_streaming_elicitation', async (_, extra) => text(await elicit(extra, 'Your name?', 'name')));
    const description = 'Asks for its context';
    server.registerPrompt('test_input_required_result_prompt', { description }, async extra => {
        const context = await elicit(extra, 'What context should the prompt use?', 'context');
        return { messages: [{ role: 'user', content: text(`In the context of ${context}`) }] };
    });
}

/** Tools of the scenarios of tasks. */
function addSlowTools(server) {
    addTool(server, 'greet', ({ name }) => text(`Hello, ${name}!`), z.object({ name: z.string() }));
    const seconds = z.object({ seconds: z.number(), label: z.string().default('') });
    const compute = async ({ seconds, label }, { signal }) => {
        await sleep(seconds * 1000, undefined, { signal });
        return text(`${label} after ${seconds} s`);
    };
    addTool(server, 'slow_compute', compute, seconds);
    const slow = (name, work, shape = {}) =>
        addTool(server, name, async (args, extra) => (await sleep(SILENT_MS), work(args, extra)), z.object(shape));
    slow('failing_job', () => ({ content: [text('The job has failed.')], isError: true }));
    const confirm = async ({ filename }, extra) =>
        text((await elicit(extra, `Delete ${filename}?`, 'confirm', 'boolean')) ? 'Deleted.' : 'Kept.');
    slow('confirm_delete', confirm, { filename: z.string().default('') });
    slow('multi_input', async (_, extra) => {
        const asked = [elicit(extra, 'Your name?', 'name'), elicit(extra, 'Your age?', 'age', 'number')];
        return text((await Promise.all(asked)).join());
    });
    addTool(server, 'test_tool_with_task', async (_, extra) => {
        const name = await elicit(extra, 'Your name?', 'name');
        await sleep(SILENT_MS);
        return text(`Hello, ${name}!`);
    });
    // The SDK makes a result with `isError` of whatever a tool throws, so this one stands before the tools.
    addTool(server, 'protocol_error_job', () => text(''));
    const handlers = server.server._requestHandlers;
    const call = handlers.get('tools/call');
    handlers.set('tools/call', async (request, extra) => {
        if (request.params.name !== 'protocol_error_job') return call(request, extra);
        await sleep(SILENT_MS);
        throw new McpError(-32603, 'The job has panicked.');
    });
}

export function addLater(server) {
    addTool(server, 'test_logging_tool', async (_, extra) => {
        await extra.sendNotification({ method: 'notifications/message', params: { level: 'info', data: 'For who asked.' } });
        return text('Logged.');
    });
    addTool(server, 'test_trigger_tool_change', () => (server.sendToolListChanged(), text('Told.')));
    addTool(server, 'test_trigger_prompt_change', () => (server.sendPromptListChanged(), text('Told.')));
    addAskingTools(server);
    addSlowTools(server);
}
