#!/usr/bin/env node
// Runs the program of this platform's package, which npm has installed beside this one.
"use strict";

const { spawn } = require("node:child_process");

const platform = `${process.platform}-${process.arch}`;
const name = `mcp-resume-${platform}`;
let program;
try {
    program = require.resolve(`${name}/bin/mcp-resume`);
} catch {
    console.error(`mcp-resume: there is no program for ${platform} here.`);
    console.error(`If your platform is Linux or macOS on x64 or arm64, install again with optional packages: npm install --include=optional`);
    console.error("Otherwise build from source: cargo install mcp-resume");
    process.exit(1);
}

const child = spawn(program, process.argv.slice(2), { stdio: "inherit" });
// The program drains by itself; a second signal is its own to judge.
for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"]) {
    process.on(signal, () => child.kill(signal));
}
child.on("error", (error) => {
    console.error(`mcp-resume: ${error.message}`);
    process.exit(1);
});
child.on("exit", (code, signal) => {
    if (signal) {
        process.removeAllListeners(signal);
        process.kill(process.pid, signal);
    } else {
        process.exit(code ?? 1);
    }
});
