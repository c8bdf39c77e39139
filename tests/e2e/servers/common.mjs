// Shared parts of the TypeScript servers of the suite: counters beside the endpoint, and the announcement of the port.
//
// With the argument `stdio` a server is on stdio, and notes its runs in files of the folder COUNTERS.

import { appendFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';

export const IS_STDIO = process.argv[2] === 'stdio';

const runs = new Map();

/** The runs of `key`. */
export function counted(key) {
    if (!runs.has(key)) runs.set(key, { started: 0, finished: 0, cancelled: 0 });
    return runs.get(key);
}

function count(key, what) {
    counted(key)[what] += 1;
    if (IS_STDIO && key) appendFileSync(join(process.env.COUNTERS, key), `${what}\n`);
}

/** Runs `work` as one run of `key`: started, then finished, or cancelled if `signal` ended it. */
export async function run(key, signal, work) {
    count(key, 'started');
    try {
        const answer = await work();
        count(key, 'finished');
        return answer;
    } catch (error) {
        if (signal?.aborted) count(key, 'cancelled');
        throw error;
    }
}

/** Sends `steps` progress notifications, one each `intervalMs`; `notify` sends one. */
export async function progress(steps, intervalMs, token, signal, notify) {
    for (let n = 1; n <= steps; n += 1) {
        await sleep(intervalMs, undefined, { signal });
        if (token === undefined) continue;
        await notify({
            method: 'notifications/progress',
            params: { progressToken: token, progress: n, total: steps, message: `step ${n}` }
        });
    }
}

const open = new Set();

/** Sends progress 1, 2, …, one each `intervalMs`, until `gate` is open; returns their number. */
export async function progressUntil(gate, intervalMs, token, signal, notify) {
    for (let n = 1; ; n += 1) {
        await sleep(intervalMs, undefined, { signal });
        await notify({ method: 'notifications/progress', params: { progressToken: token, progress: n } });
        if (open.has(gate)) return n;
    }
}

export const text = words => ({ content: [{ type: 'text', text: words }] });

/**
 * Listens on PORT (0: any) of the loopback interface, answers `/counters?key=K` and `/open?gate=G` itself, hands the rest
 * to `handle` and says the port on stdout.
 */
export function listen(handle) {
    const server = createServer((request, response) => {
        const url = new URL(request.url, 'http://localhost');
        if (url.pathname === '/counters') {
            response.setHeader('content-type', 'application/json');
            response.end(JSON.stringify(counted(url.searchParams.get('key'))));
            return;
        }
        if (url.pathname === '/open') {
            open.add(url.searchParams.get('gate'));
            response.end();
            return;
        }
        Promise.resolve(handle(request, response)).catch(error => {
            console.error(error);
            if (!response.headersSent) response.writeHead(500);
            response.end();
        });
    });
    server.listen(Number(process.env.PORT ?? 0), '127.0.0.1', () => {
        console.log(JSON.stringify({ port: server.address().port }));
    });
}
