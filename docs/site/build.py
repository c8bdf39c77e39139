#!/usr/bin/env python3
"""Builds the site of the documents with mdBook: build.py [--root ROOT] [--out OUT]. Fails for a broken link or anchor.

The pages stay readable as plain files: they link to each other, and to other files of the repository, by relative paths. The pages that
SUMMARY.md lists are copied into a folder of the same layout, where mdBook finds them. Other files of the repository that a page links to
become pages of their own, with their text as it is; folders become lists of their files.
"""

import argparse
import html
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

REPOSITORY = Path(__file__).resolve().parent.parent.parent
# The version of tests/cargo-tools/mdbook.txt.
MDBOOK_VERSION = "0.5.4"
MDBOOK = REPOSITORY / f"target/tools/mdbook-{MDBOOK_VERSION}/bin/mdbook"


def fail(faults):
    sys.exit("docs/site/build.py:\n" + "\n".join(f"  {fault}" for fault in faults))


def collect(root, work):
    """Copies the pages of SUMMARY.md and the pictures to `work`, each at its path from the root of the repository."""
    docs = root / "docs"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    pages = set()

    def from_root(match):
        path = os.path.normpath(f"docs/{match[1]}")
        pages.add(path)
        return f"]({path})"

    summary = re.sub(r"\]\(([^)]+)\)", from_root, (docs / "SUMMARY.md").read_text())
    (work / "SUMMARY.md").write_text(summary)
    shutil.copy(docs / "book.toml", work)
    present = {str(path.relative_to(root)) for path in docs.rglob("*.md")} - {"docs/SUMMARY.md"}
    faults = [f"docs/SUMMARY.md lists {path}, which does not exist" for path in pages if not (root / path).is_file()]
    faults += [f"docs/SUMMARY.md does not list {path}" for path in present - pages]
    if faults:
        fail(sorted(faults))
    for path in pages | {str(picture.relative_to(root)) for picture in docs.rglob("*.svg")}:
        (work / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(root / path, work / path)


class Page(HTMLParser):
    """The anchors of a page, and the addresses that it links to."""

    def __init__(self, path):
        super().__init__()
        self.anchors = set()
        self.links = []
        self.feed(path.read_text())

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name == "id" or (name == "name" and tag == "a"):
                self.anchors.add(value)
            elif name in ("href", "src") and value:
                self.links.append(value)


def text_page(title, body):
    """A page for a file or a folder that is no document."""
    return f'<!doctype html><meta charset="utf-8"><title>{html.escape(title)}</title><h1>{html.escape(title)}</h1>{body}\n'


def add_source(root, out, path):
    """Adds a file or folder of the repository to the site; returns the path of its page."""
    source = root / path
    if source.is_dir():
        rows = []
        for child in sorted(source.iterdir()):
            if child.name != "__pycache__":
                page = os.path.relpath(add_source(root, out, os.path.relpath(child, root)), path)
                rows.append(f'<li><a href="{html.escape(page)}">{html.escape(child.name)}</a>')
        page, body = f"{path}/index.html", f"<ul>{''.join(rows)}</ul>"
    else:
        page, body = f"{path}.html", f"<pre>{html.escape(source.read_text())}</pre>"
    if not (out / page).exists():
        (out / page).parent.mkdir(parents=True, exist_ok=True)
        (out / page).write_text(text_page(path, body))
    return page


def complete_links(root, out):
    """Adds the files of the repository that pages link to and that are no pages, and points links to the pages of the site."""
    for file in sorted(set(out.rglob("*.html")) - {out / "404.html"}):
        folder = os.path.relpath(file.parent, out)
        text = file.read_text()
        for link in set(Page(file).links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or not parts.path or parts.path.startswith("/"):
                continue
            path = os.path.normpath(os.path.join(folder, unquote(parts.path)))
            # mdBook calls the page of a README.md index.html, and leaves links to it alone.
            index = re.sub(r"(^|/)README\.html$", r"\1index.html", path)
            if (out / path / "index.html").is_file():
                index = f"{path}/index.html"
            if (out / path).is_file() or path == "." or path.startswith(".."):
                continue
            elif (out / index).is_file():
                page = os.path.relpath(index, folder) + (f"#{parts.fragment}" if parts.fragment else "")
            elif (root / path).exists():
                page = os.path.relpath(add_source(root, out, path), folder)
            else:
                continue
            text = text.replace(f'href="{link}"', f'href="{page}"')
        file.write_text(text)


def check_links(out):
    """Fails if a link of a page has no target in the site. Links to other sites are not followed."""
    # A host serves 404.html for unknown paths, so its links begin at the root of the host.
    files = [file for file in out.rglob("*.html") if file != out / "404.html"]
    pages = {os.path.relpath(file, out): Page(file) for file in files}
    faults = []
    for name, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            path = os.path.normpath(os.path.join(os.path.dirname(name), unquote(parts.path))) if parts.path else name
            if parts.path.startswith("/"):
                faults.append(f"{name}: {link} begins at the root of the host")
                continue
            if (out / path).is_dir():
                path = os.path.normpath(os.path.join(path, "index.html"))
            if path.startswith("..") or not (out / path).is_file():
                faults.append(f"{name}: {link} leads nowhere")
            elif parts.fragment and path in pages and unquote(parts.fragment) not in pages[path].anchors:
                faults.append(f"{name}: {link}: {path} has no such anchor")
    if faults:
        fail(sorted(set(faults)))
    return len(pages), sum(len(page.links) for page in pages.values())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, default=REPOSITORY, help="the tree whose documents are built")
    parser.add_argument("--out", type=Path, default=REPOSITORY / "target/site")
    options = parser.parse_args()
    root, out = options.root.resolve(), options.out.resolve()
    work = out.with_name(out.name + "-pages")
    # Without a server of its own, where it has to be built.
    features = ("--no-default-features", "--features", "search")
    subprocess.run([REPOSITORY / "tests/cargo-tool.sh", "mdbook", MDBOOK_VERSION, *features], check=True)
    collect(root, work)
    shutil.rmtree(out, ignore_errors=True)
    built = subprocess.run([MDBOOK, "build", work, "--dest-dir", out], stderr=subprocess.PIPE, text=True)
    warnings = [line for line in built.stderr.splitlines() if re.search(r"\b(WARN|ERROR)\b", line)]
    if built.returncode or warnings:
        fail(warnings or built.stderr.splitlines())
    shutil.rmtree(work)
    (out / "book.toml").unlink()
    if not list(out.glob("searchindex*.js")):
        fail(["the site has no index for its search"])
    complete_links(root, out)
    pages, links = check_links(out)
    print(f"docs: {pages} pages with {links} links in {out}")


if __name__ == "__main__":
    main()
