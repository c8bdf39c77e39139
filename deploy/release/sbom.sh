#!/usr/bin/env bash
# Writes the bill of materials of the binary with both roles: `sbom.sh FILE`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
version=$(cat deploy/release/cargo-cyclonedx.version)
tool=target/tools/cargo-cyclonedx-$version/bin/cargo-cyclonedx
"$tool" cyclonedx --quiet --manifest-path Cargo.toml --format json --features balancer --describe crate --override-filename release-sbom
# The serial number is drawn at random, and the time is that of the run.
python3 - release-sbom.json "$1" <<'PY'
import datetime, json, os, sys, uuid

with open(sys.argv[1]) as file:
    bill = json.load(file)
at = datetime.datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), datetime.timezone.utc)
bill["metadata"]["timestamp"] = at.strftime("%Y-%m-%dT%H:%M:%SZ")
del bill["serialNumber"]
text = json.dumps(bill, indent=1, sort_keys=True).replace(os.getcwd(), "/mcp-resume")
bill = json.loads(text)
bill["serialNumber"] = f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, text)}"
with open(sys.argv[2], "w") as file:
    json.dump(bill, file, indent=1, sort_keys=True)
PY
find . -name release-sbom.json -not -path './target/*' -delete
