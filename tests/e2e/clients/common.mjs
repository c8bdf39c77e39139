// Shared parts of the TypeScript clients of the suite: flags, JSON lines, calls with a limit.

import { createInterface } from 'node:readline';
import { parseArgs } from 'node:util';

const { values } = parseArgs({
    options: {
        url: { type: 'string' },
        tool: { type: 'string' },
        args: { type: 'string', default: '{}' },
        mode: { type: 'string', default: 'legacy' },
        'timeout-ms': { type: 'string', default: '30000' },
        'linger-ms': { type: 'string', default: '200' },
        'resume-tokens': { type: 'string', default: 'false' },
        'deadline-ms': { type: 'string' },
        'total-ms': { type: 'string' },
        name: { type: 'string' },
        then: { type: 'string', default: 'false' },
        login: { type: 'string', default: 'false' }
    }
});

export const flags = {
    url: new URL(values.url),
    program: programOf(values.url),
    tool: values.tool,
    args: JSON.parse(values.args),
    mode: values.mode,
    timeout: Number(values['timeout-ms']),
    linger: Number(values['linger-ms']),
    resumeTokens: values['resume-tokens'] === 'true',
    name: values.name,
    then: values.then === 'true',
    login: values.login === 'true'
};

/** The parameters of a transport on stdio for `stdio:["program",…]`, or `undefined` for any other URL. */
function programOf(url) {
    if (!url.startsWith('stdio:')) return undefined;
    const [command, ...args] = JSON.parse(url.slice('stdio:'.length));
    return { command, args, env: process.env };
}

/** Options of the SDK for a call: with --deadline-ms it gives up after so long without progress. */
export const deadline = {};
if (values['deadline-ms']) Object.assign(deadline, { timeout: Number(values['deadline-ms']), resetTimeoutOnProgress: true });
if (values['total-ms']) deadline.maxTotalTimeout = Number(values['total-ms']);

export const say = line => console.log(JSON.stringify(line));

export const answers = {
    sampling() {
        say({ event: 'asked', kind: 'sampling' });
        return { model: 'fixed', role: 'assistant', content: { type: 'text', text: 'sampled' } };
    },
    elicitation({ params }) {
        say({ event: 'asked', kind: 'elicitation' });
        return { action: 'accept', content: filled(params.requestedSchema) };
    },
    roots() {
        say({ event: 'asked', kind: 'roots' });
        return { roots: [{ uri: 'file:///rooted' }] };
    }
};

/** Fills in a form: a fixed text, number or truth for each property. */
function filled({ properties }) {
    const values = { boolean: true, number: 5, integer: 5 };
    return Object.fromEntries(Object.entries(properties).map(([name, { type }]) => [name, values[type] ?? 'elicited']));
}

const LIST_CHANGED = /^notifications\/(\w+)\/list_changed$/;

/** Tells of a notification that lists or resources may have changed. */
export function sayChange({ method, params }) {
    const [, list] = LIST_CHANGED.exec(method) ?? [];
    say(list ? { event: 'changed', list } : { event: 'updated', uri: params.uri });
}

/**
 * Runs `connect`, then each call within the limit; prints the outcomes, and exits after the linger.
 * `settings`: what else standard input may ask for, by name.
 */
export async function main(connect, call, settings) {
    try {
        say({ event: 'connected', protocol: await connect() });
        for await (const asked of calls()) await makeCall(asked, call, settings);
    } catch (error) {
        say({ event: 'error', message: String(error) });
    }
    setTimeout(leave, flags.linger);
}

/** The call of the flags and, with --then, those of standard input. */
async function* calls() {
    yield { tool: flags.tool, args: flags.args };
    if (!flags.then) return;
    for await (const line of createInterface({ input: process.stdin })) yield JSON.parse(line);
}

async function makeCall(asked, call, settings) {
    const limit = setTimeout(() => leave({ event: 'error', message: 'timeout' }), flags.timeout);
    try {
        const [[name, value]] = Object.entries(asked);
        if (name in settings) {
            await settings[name](value);
            say({ event: 'result', text: name });
            return;
        }
        const onprogress = progress => say({ event: 'progress', n: progress.progress });
        const result = await callTool(asked, params => call(params, onprogress));
        sayResult(result);
    } catch (error) {
        say({ event: 'error', message: String(error) });
    } finally {
        clearTimeout(limit);
    }
}

/** Prints the outcome of a call. */
export function sayResult({ content, isError, structuredContent }) {
    const [{ text }] = content;
    say(isError ? { event: 'error', message: text } : { event: 'result', text, structured: structuredContent });
}

/** Runs `call(params)` for the tool; with --resume-tokens again for each token in a result. */
async function callTool({ tool, args }, call) {
    let given = args;
    for (;;) {
        const result = await call({ name: tool, arguments: given });
        if (!flags.resumeTokens || !result.nextResumeToken) return result;
        say({ event: 'slice' });
        given = { ...args, resumeToken: result.nextResumeToken };
    }
}

/** Says the last line, and ends the process. */
export function leave(line) {
    if (line) say(line);
    say({ event: 'closed' });
    // Unfinished work of the SDK must not keep the process alive.
    process.exit(0);
}
