// Shared parts of the TypeScript clients of the suite: flags, JSON lines, one call with a limit.

import { parseArgs } from 'node:util';

const { values } = parseArgs({
    options: {
        url: { type: 'string' },
        tool: { type: 'string' },
        args: { type: 'string', default: '{}' },
        mode: { type: 'string', default: 'legacy' },
        'timeout-ms': { type: 'string', default: '30000' },
        'linger-ms': { type: 'string', default: '200' },
        'resume-tokens': { type: 'string', default: 'false' }
    }
});

export const flags = {
    url: new URL(values.url),
    tool: values.tool,
    args: JSON.parse(values.args),
    mode: values.mode,
    timeout: Number(values['timeout-ms']),
    linger: Number(values['linger-ms']),
    resumeTokens: values['resume-tokens'] === 'true'
};

export const say = line => console.log(JSON.stringify(line));

export const answers = {
    sampling() {
        say({ event: 'asked', kind: 'sampling' });
        return { model: 'fixed', role: 'assistant', content: { type: 'text', text: 'sampled' } };
    },
    elicitation() {
        say({ event: 'asked', kind: 'elicitation' });
        return { action: 'accept', content: { word: 'elicited' } };
    },
    roots() {
        say({ event: 'asked', kind: 'roots' });
        return { roots: [{ uri: 'file:///rooted' }] };
    }
};

/** Runs `call(params)` for the tool; with --resume-tokens again for each token in a result. */
export async function callTool(call) {
    let given = flags.args;
    for (;;) {
        const result = await call({ name: flags.tool, arguments: given });
        if (!flags.resumeTokens || !result.nextResumeToken) return result;
        say({ event: 'slice' });
        given = { ...flags.args, resumeToken: result.nextResumeToken };
    }
}

/** Runs `connect`, then, within the limit, `call`; prints the outcome, and exits after the linger. */
export async function main(connect, call) {
    let limit;
    try {
        say({ event: 'connected', protocol: await connect() });
        limit = setTimeout(() => leave({ event: 'error', message: 'timeout' }), flags.timeout);
        const result = await call(progress => say({ event: 'progress', n: progress.progress }));
        say({ event: result.isError ? 'error' : 'result', text: result.content[0].text });
    } catch (error) {
        say({ event: 'error', message: String(error) });
    }
    clearTimeout(limit);
    setTimeout(leave, flags.linger);
}

function leave(line) {
    if (line) say(line);
    say({ event: 'closed' });
    // Unfinished work of the SDK must not keep the process alive.
    process.exit(0);
}
