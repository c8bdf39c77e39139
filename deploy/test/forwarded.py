"""The headers that proxies in front remove from a client's request, as listed in docs/security.md."""

import re
from pathlib import Path

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "security.md"


def removed():
    """The names of the headers that no shipped configuration passes on."""
    text = " ".join(DOCUMENT.read_text().split())
    [whole, ends] = re.search(r"each removes (.*?) and `X-Forwarded-` with (.*?)\.", text).groups()
    names = re.findall(r"`([\w-]+)`", whole) + [f"X-Forwarded-{end}" for end in re.findall(r"`([\w-]+)`", ends)]
    if len(names) < 16:
        raise SystemExit(f"docs/security.md names only {names}")
    return names
