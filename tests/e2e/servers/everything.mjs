// The reference server `@modelcontextprotocol/server-everything`, as it is published: this only has it listen on the
// loopback interface and say which port it got.

import { createRequire } from 'node:module';
import { Server } from 'node:net';
import { pathToFileURL } from 'node:url';

process.env.PORT ??= '0';

const { listen } = Server.prototype;
Server.prototype.listen = function (port, ready) {
    return listen.call(this, Number(port), '127.0.0.1', () => {
        console.log(JSON.stringify({ port: this.address().port }));
        ready?.();
    });
};

process.argv[2] = 'streamableHttp';
const manifest = createRequire(import.meta.url).resolve('@modelcontextprotocol/server-everything/package.json');
await import(new URL('dist/index.js', pathToFileURL(manifest)));
