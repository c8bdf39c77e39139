#!/usr/bin/env node
// In the place of Playwright's browser: starts, and opens no page. A tool that needs one runs PAGE_SECS (0) seconds long, and fails.
//
// It is told `--remote-debugging-pipe`: messages end with a zero byte, the browser's input is file descriptor 3, its output 4.

import { createReadStream, createWriteStream } from 'node:fs';

const answers = {
    'Browser.getVersion': {
        protocolVersion: '1.3',
        product: 'HeadlessChrome/140.0.0.0',
        revision: '',
        userAgent: 'HeadlessChrome/140.0.0.0',
        jsVersion: ''
    },
    'Target.createBrowserContext': { browserContextId: 'context' }
};

const output = createWriteStream('', { fd: 4 });
const say = message => output.write(`${JSON.stringify(message)}\0`);

function answer({ id, method, sessionId }) {
    if (method === 'Target.createTarget') {
        const error = { code: -32000, message: 'there are no pages' };
        setTimeout(() => say({ id, sessionId, error }), 1000 * Number(process.env.PAGE_SECS ?? 0));
    } else {
        say({ id, sessionId, result: answers[method] ?? {} });
        if (method === 'Browser.close') {
            process.exit();
        }
    }
}

let pending = '';
createReadStream('', { fd: 3, encoding: 'utf8' })
    .on('data', piece => {
        const messages = (pending + piece).split('\0');
        pending = messages.pop();
        messages.forEach(message => answer(JSON.parse(message)));
    })
    .on('end', () => process.exit());
