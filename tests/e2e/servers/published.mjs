// A published program, unchanged: `published.mjs PACKAGE FILE [ARGUMENTS]`. The first port that it opens is PORT (0 or unset: any) of the
// loopback interface, and is printed. The word PORT among the arguments stands for that number.

import { createRequire } from 'node:module';
import { Server } from 'node:net';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';

const PORT = process.env.PORT ?? '0';
// For programs that take it from there.
process.env.PORT = PORT;

const { listen } = Server.prototype;
Server.prototype.listen = function (...args) {
    Server.prototype.listen = listen;
    this.once('listening', () => console.log(JSON.stringify({ port: this.address().port })));
    const ready = args.filter(arg => typeof arg === 'function');
    return listen.call(this, Number(PORT), '127.0.0.1', ...ready);
};

const [name, file, ...args] = process.argv.slice(2);
const manifest = createRequire(import.meta.url).resolve(`${name}/package.json`);
const program = join(manifest, '..', file);
process.argv = [process.argv[0], program, ...args.map(arg => (arg === 'PORT' ? PORT : arg))];
await import(pathToFileURL(program));
