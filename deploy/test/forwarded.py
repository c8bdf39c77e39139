"""What proxies in front remove of a client's request, as docs/security.md says."""

import re
from pathlib import Path

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "security.md"


def removed():
    """The names of headers that nothing which ships passes on."""
    text = " ".join(DOCUMENT.read_text().split())
    [whole, ends] = re.search(r"it removes (.*?) and `X-Forwarded-` with (.*?)\.", text).groups()
    names = re.findall(r"`([\w-]+)`", whole) + [f"X-Forwarded-{end}" for end in re.findall(r"`([\w-]+)`", ends)]
    if len(names) < 16:
        raise SystemExit(f"docs/security.md names only {names}")
    return names
