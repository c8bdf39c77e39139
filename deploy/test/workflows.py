"""Checks the workflows of GitHub: `workflows.py ZIZMOR`.

Each step that calls `make` names targets of the Makefile. Each action is pinned by a commit, with its version as a comment. Each job has a time
limit and permissions of its own, and each workflow a group of concurrency and no other permissions. zizmor finds nothing. No workflow is run.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent.parent
WORKFLOWS = ROOT / ".github" / "workflows"
# Targets that the workflows have to call.
CALLED = {"test", "test-all", "lint", "deny", "fmt-check", "release", "release-check"}
PINNED = re.compile(r"[\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")


class Wrong(Exception):
    pass


def require(holds, what):
    if not holds:
        raise Wrong(what)


def targets():
    """The targets of the Makefile."""
    lines = re.findall(r"^([a-z][\w -]*):(?!=)", (ROOT / "Makefile").read_text(), re.M)
    return {name for line in lines for name in line.split()}


def check(name, text):
    """Checks one workflow; returns the targets that it calls."""
    flow = yaml.safe_load(text)
    require(flow.get("permissions") == {}, f"{name}: permissions of all jobs")
    require("group" in flow.get("concurrency", {}), f"{name}: no group of concurrency")
    for line in re.findall(r"^\s*(?:- )?uses: *(.*)$", text, re.M):
        require(PINNED.fullmatch(line), f"{name}: {line} is not pinned by a commit, with a version as its comment")
    called = set()
    for title, job in flow["jobs"].items():
        require(isinstance(job.get("timeout-minutes"), int), f"{name}: {title} has no time limit")
        require(isinstance(job.get("permissions"), dict), f"{name}: {title} has no permissions of its own")
        for step in job["steps"]:
            for words in re.findall(r"^make (.*)$", step.get("run", ""), re.M):
                called |= {word for word in words.split() if "=" not in word}
    unknown = called - targets()
    require(not unknown, f"{name}: the Makefile has no {', '.join(sorted(unknown))}")
    return called


def audit(zizmor, folder):
    run = subprocess.run([zizmor, "--offline", "--no-progress", "--strict-collection", folder], capture_output=True, text=True)
    require(run.returncode == 0, run.stdout + run.stderr)


# Changes that must be refused: (file, text, new text).
BROKEN = [
    ("test.yml", r"@[0-9a-f]{40} # v7.0.1", "@v7"),
    ("test.yml", r"(@[0-9a-f]{40}) # v7.0.1", r"\1"),
    ("test.yml", r"make lint", "make lints"),
    ("nightly.yml", r"    timeout-minutes: \d+\n", ""),
    ("release.yml", r"    permissions:\n      contents: write\n", ""),
    ("release.yml", r"permissions: {}", "permissions: write-all"),
    ("nightly.yml", r"concurrency:\n  group: nightly\n  cancel-in-progress: false\n", ""),
]
# Changes that zizmor must refuse.
UNSAFE = [
    ("test.yml", r"        with:\n          persist-credentials: false\n", ""),
    ("test.yml", r"run: make lint", "run: echo ${{ github.event.pull_request.title }}"),
    ("test.yml", r"run: make lint", "run: make lint: all"),
]


def changed(texts, name, pattern, new):
    text, count = re.subn(pattern, new, texts[name], count=1)
    require(count == 1, f"{name} has no {pattern}")
    return text


def is_refused(check, *what):
    try:
        check(*what)
    except Wrong:
        return True
    return False


def main(zizmor):
    texts = {path.name: path.read_text() for path in sorted(WORKFLOWS.iterdir())}
    called = set().union(*(check(name, text) for name, text in texts.items()))
    require(CALLED <= called, f"no workflow calls make {', '.join(sorted(CALLED - called))}")
    audit(zizmor, WORKFLOWS)
    for name, *change in BROKEN:
        require(is_refused(check, name, changed(texts, name, *change)), f"{name} with {change} is accepted")
    for name, *change in UNSAFE:
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder) / ".github" / "workflows"
            place.mkdir(parents=True)
            (place / name).write_text(changed(texts, name, *change))
            require(is_refused(audit, zizmor, place), f"zizmor accepts {name} with {change}")
    print(f"deploy: {len(texts)} workflows call the Makefile, and {len(BROKEN) + len(UNSAFE)} broken ones are refused")


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except Wrong as error:
        sys.exit(f"deploy/test/workflows.py: {error}")
