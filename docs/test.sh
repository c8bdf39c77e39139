#!/usr/bin/env bash
# Builds the site of the documents, and compares the generated pages with their sources. Each check is also given an input that it must
# refuse. Needs the program of the tests' profile, or another one in MCP_RESUME_BIN.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
binary=${MCP_RESUME_BIN:-target/debug/mcp-resume}

# `refused WHAT WORDS COMMAND...`: fails unless the command fails with these words.
refused() {
    local what=$1 words=$2
    shift 2
    if "$@" >"$work/said" 2>&1 || ! grep -qF -- "$words" "$work/said"; then
        cat "$work/said" >&2
        echo "docs/test.sh: $what is accepted, or refused for another reason" >&2
        exit 1
    fi
}

# A tree whose documents can be changed: the other files are links to those of this one.
fresh_tree() {
    rm -rf "$work/root"
    mkdir "$work/root"
    for entry in "$PWD"/*; do
        case $entry in
            */docs | */config.example.toml) cp -r "$entry" "$work/root/" ;;
            *) ln -s "$entry" "$work/root/" ;;
        esac
    done
}

build() {
    docs/site/build.py --root "$work/root" --out "$work/site"
}

reference() {
    docs/site/reference.py --root "${1:-.}" --binary "$binary" --check
}

files() {
    docs/site/files.py --root "${1:-.}" --check
}

docs/site/build.py
reference
files

fresh_tree
echo '[gone](gone.md)' >>"$work/root/docs/faq.md"
refused "a link to a page that is not there" "docs/faq.html: gone.html leads nowhere" build
fresh_tree
echo '[gone](../deploy/gone.yaml)' >>"$work/root/docs/faq.md"
refused "a link to a file that is not there" "docs/faq.html: ../deploy/gone.yaml leads nowhere" build
fresh_tree
echo '[gone](errors.md#gone)' >>"$work/root/docs/faq.md"
refused "a link to an anchor that is not there" "docs/errors.html has no such anchor" build
fresh_tree
echo '# New' >"$work/root/docs/new.md"
refused "a page that SUMMARY.md does not list" "docs/SUMMARY.md does not list docs/new.md" build

fresh_tree
sed -i 's/^retry_ms = 1000/retry_ms = 1001/' "$work/root/config.example.toml"
refused "a page of the configuration with another default" "docs/configuration.md differs" reference "$work/root"
fresh_tree
sed -i 's/^## mcp-resume drain/## mcp-resume drains/' "$work/root/docs/command-line.md"
refused "a page of the command line that differs" "docs/command-line.md differs" reference "$work/root"
fresh_tree
# shellcheck disable=SC2016
echo '`delivery.retry_secs` and `mcp_resume_retried_total`' >>"$work/root/docs/faq.md"
refused "a key that does not exist" "delivery.retry_secs is no key" reference "$work/root"
refused "a metric that does not exist" "mcp_resume_retried_total is no metric" reference "$work/root"
fresh_tree
sed -i 's/`fastmcp` [0-9.]*/`fastmcp` 1.2.3/' "$work/root/docs/clients/README.md"
refused "a version that is not tested" "fastmcp 1.2.3 is not a version" reference "$work/root"

fresh_tree
sed -i '/^| `src\/cli.rs`/d' "$work/root/docs/files.md"
refused "a list of files that lacks one" "docs/files.md differs" files "$work/root"
