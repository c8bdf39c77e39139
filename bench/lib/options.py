"""Command-line options that several benchmarks share."""

import argparse
import os
import pathlib
import shutil

from lib.processes import ROOT

DIST = ROOT / "target/dist"


def parser(description):
    return argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)


def words(text):
    """The value of an option that takes several words with commas between."""
    return text.split(",")


def add_binaries(add, *others):
    """Adds --mcp-resume, --bench, and for each of `others` (nginx, haproxy, redis-server, node) its option."""
    add("--mcp-resume", default=str(DIST / "mcp-resume"), help="the proxy's binary")
    add("--bench", default=str(DIST / "mcp-resume-bench"), help="the load tool's binary")
    for name in others:
        sbin = pathlib.Path("/usr/sbin") / name
        default = shutil.which(name) or (str(sbin) if sbin.exists() else name)
        add(f"--{name}", default=default, help=f"{name}'s binary")


def require_binaries(options_parser, binaries, remedy):
    for binary in binaries:
        if shutil.which(binary) is None and not os.access(binary, os.X_OK):
            options_parser.error(f"{binary} is missing: {remedy}")
