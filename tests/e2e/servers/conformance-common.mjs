// The tools, resources and prompts that the conformance suite calls by name, for the servers on both TypeScript SDKs.

import { setTimeout as sleep } from 'node:timers/promises';
import { z } from 'zod';

// One pixel, and an empty sound.
const PNG = 'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC';
const WAV = 'UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAEAfAAABAAgAZGF0YQAAAAA=';

// Longer than the one second that the proxy holds a connection in the case that expects a close, shorter than two.
const RECONNECTION_MS = 1500;

export const text = words => ({ type: 'text', text: words });
const image = { type: 'image', data: PNG, mimeType: 'image/png' };
const audio = { type: 'audio', data: WAV, mimeType: 'audio/wav' };
const embedded = (uri, mimeType, words) => ({ type: 'resource', resource: { uri, mimeType, text: words } });

const string = { type: 'string' };

/** The name of a tool, and its schema, which zod cannot express. */
export const SCHEMA_TOOL = 'json_schema_2020_12_tool';
export const SCHEMA = {
    $schema: 'https://json-schema.org/draft/2020-12/schema',
    type: 'object',
    $defs: { address: { $anchor: 'addressDef', type: 'object', properties: { street: string, city: string } } },
    properties: {
        name: string,
        address: { $ref: '#/$defs/address' },
        contactMethod: { ...string, enum: ['phone', 'email'] },
        phone: string,
        email: string
    },
    allOf: [{ anyOf: [{ required: ['phone'] }, { required: ['email'] }] }],
    if: { properties: { contactMethod: { const: 'phone' } }, required: ['contactMethod'] },
    then: { required: ['phone'] },
    else: { required: ['email'] },
    additionalProperties: false
};

const titled = [1, 2, 3].map(n => ({ const: `value${n}`, title: `Value ${n}` }));
const plain = { ...string, enum: ['option1', 'option2', 'option3'] };

/** Properties of the form of `test_elicitation`, all of them required. */
export const USER = { username: string, email: string };

/** Tools that ask by a form: the question, and the properties of the form. */
export const FORMS = {
    test_elicitation_sep1034_defaults: {
        message: 'Who is it?',
        properties: {
            name: { ...string, default: 'John Doe' },
            age: { type: 'integer', default: 30 },
            score: { type: 'number', default: 95.5 },
            status: { ...string, enum: ['active', 'inactive', 'pending'], default: 'active' },
            verified: { type: 'boolean', default: true }
        }
    },
    test_elicitation_sep1330_enums: {
        message: 'Which ones?',
        properties: {
            untitledSingle: plain,
            titledSingle: { ...string, oneOf: titled },
            legacyEnum: { ...string, enum: ['opt1', 'opt2', 'opt3'], enumNames: ['One', 'Two', 'Three'] },
            untitledMulti: { type: 'array', items: plain },
            titledMulti: { type: 'array', items: { anyOf: titled } }
        }
    }
};

/** Adds a tool; `work` returns its content, or a whole result. */
export function addTool(server, name, work, inputSchema = z.object({})) {
    server.registerTool(name, { description: `The suite's ${name}`, inputSchema }, async (args, extra) => {
        const made = await work(args, extra);
        return made.type || Array.isArray(made) ? { content: [made].flat() } : made;
    });
}

/** The tools without requests to the client. `notify` and `tokenOf` send a notification on the call's stream in the SDK's way. */
export function addTools(server, notify, tokenOf) {
    addTool(server, 'test_simple_text', () => text('A simple text.'));
    addTool(server, 'test_image_content', () => image);
    addTool(server, 'test_audio_content', () => audio);
    addTool(server, 'test_embedded_resource', () => embedded('test://embedded-resource', 'text/plain', 'Inside.'));
    addTool(server, 'test_multiple_content_types', () => [
        text('Three kinds:'),
        image,
        embedded('test://mixed-content-resource', 'application/json', '{"kind":"third"}')
    ]);
    addTool(server, 'test_error_handling', () => {
        throw new Error('This tool always fails');
    });
    addTool(server, 'test_tool_with_progress', async (_, extra) => {
        const progressToken = tokenOf(extra);
        for (const progress of progressToken === undefined ? [] : [0, 50, 100]) {
            await notify(extra, { method: 'notifications/progress', params: { progressToken, progress, total: 100 } });
            await sleep(50);
        }
        return text('Progressed.');
    });
    addTool(server, 'test_reconnection', async () => {
        await sleep(RECONNECTION_MS);
        return text('Still here.');
    });
}

export function addResources(server, ResourceTemplate) {
    const add = (name, where, mimeType, content) => {
        const read = async (uri, variables) => ({ contents: [{ uri: uri.href, mimeType, ...content(variables) }] });
        server.registerResource(name, where, { description: `The suite's ${name}`, mimeType }, read);
    };
    add('static-text', 'test://static-text', 'text/plain', () => ({ text: 'A text that stays.' }));
    add('static-binary', 'test://static-binary', 'image/png', () => ({ blob: PNG }));
    add('watched', 'test://watched-resource', 'text/plain', () => ({ text: 'It never changes.' }));
    const template = new ResourceTemplate('test://template/{id}/data', { list: undefined });
    add('template', template, 'application/json', ({ id }) => ({ text: JSON.stringify({ id, data: `of ${id}` }) }));
}

/** `schema` is the SDK's form of a prompt's arguments. */
export function addPrompts(server, completable, schema) {
    const add = (name, args, contents) => {
        const config = { description: `The suite's ${name}`, ...(args && { argsSchema: schema(args) }) };
        const messages = args => contents(args).map(content => ({ role: 'user', content }));
        server.registerPrompt(name, config, async args => ({ messages: messages(args) }));
    };
    const word = () => completable(z.string(), start => ['paris', 'park', 'test'].filter(word => word.startsWith(start)));
    add('test_simple_prompt', undefined, () => [text('A simple prompt.')]);
    add('test_prompt_with_arguments', { arg1: word(), arg2: word() }, ({ arg1, arg2 }) => [text(`${arg1} and ${arg2}`)]);
    add('test_prompt_with_embedded_resource', { resourceUri: z.string() }, ({ resourceUri }) => [
        embedded(resourceUri, 'text/plain', 'Inside.'),
        text('Read this.')
    ]);
    add('test_prompt_with_image', undefined, () => [image, text('Look at this.')]);
}

/** Refuses a request whose `Host` or `Origin` is not of this machine; true if it did. */
export function refuseForeign(request, response) {
    const { host = '', origin = '' } = request.headers;
    const isLocal = authority => ['localhost', '127.0.0.1', '[::1]'].includes(authority.replace(/:\d+$/, ''));
    if (isLocal(host) && (!origin || isLocal(origin.replace(/^.*:\/\//, '')))) return false;
    refuse(response, 403, 'Not from here');
    return true;
}

export function refuse(response, status, message) {
    response.writeHead(status, { 'content-type': 'application/json' });
    response.end(JSON.stringify({ jsonrpc: '2.0', error: { code: -32001, message }, id: null }));
}
