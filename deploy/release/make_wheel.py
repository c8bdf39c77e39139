"""Writes the wheel with a binary: `make_wheel.py BINARY TARGET VERSION DIRECTORY`. The program is its only content, so that `uvx mcp-resume` runs it."""

import os
import sys
import time
import zipfile
from pathlib import Path

from wheel.wheelfile import WheelFile

# A static binary runs with every C library.
TAGS = {
    "x86_64-unknown-linux-gnu": ["manylinux_2_17_x86_64", "musllinux_1_1_x86_64"],
    "aarch64-unknown-linux-gnu": ["manylinux_2_17_aarch64", "musllinux_1_1_aarch64"],
    "x86_64-apple-darwin": ["macosx_10_12_x86_64"],
    "aarch64-apple-darwin": ["macosx_11_0_arm64"],
}


def entry(name, mode):
    """A file of the archive, at the time of the commit."""
    info = zipfile.ZipInfo(name, time.gmtime(int(os.environ["SOURCE_DATE_EPOCH"]))[:6])
    info.external_attr = (0o100000 | mode) << 16
    info.compress_type = zipfile.ZIP_DEFLATED
    return info


def main(binary, target, version, directory):
    tags = TAGS[target]
    info = f"mcp_resume-{version}.dist-info"
    metadata = [
        "Metadata-Version: 2.4",
        "Name: mcp-resume",
        f"Version: {version}",
        "Summary: A reverse proxy that makes MCP servers resumable",
        "License-Expression: Apache-2.0",
        "License-File: LICENSE",
        "Classifier: Environment :: Console",
        "Classifier: Topic :: Internet :: Proxy Servers",
        "Description-Content-Type: text/markdown",
        "",
        Path("README.md").read_text(),
    ]
    kinds = "".join(f"Tag: py3-none-{tag}\n" for tag in tags)
    with WheelFile(Path(directory) / f"mcp_resume-{version}-py3-none-{'.'.join(tags)}.whl", "w") as wheel:
        wheel.writestr(entry(f"mcp_resume-{version}.data/scripts/mcp-resume", 0o755), Path(binary).read_bytes())
        wheel.writestr(entry(f"{info}/METADATA", 0o644), "\n".join(metadata))
        wheel.writestr(entry(f"{info}/WHEEL", 0o644), f"Wheel-Version: 1.0\nGenerator: mcp-resume\nRoot-Is-Purelib: false\n{kinds}")
        wheel.writestr(entry(f"{info}/licenses/LICENSE", 0o644), Path("LICENSE").read_text())


main(*sys.argv[1:])
