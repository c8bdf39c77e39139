// The published reference server `@modelcontextprotocol/server-everything`, listening on the loopback interface and printing its
// port.

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
