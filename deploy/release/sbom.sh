#!/usr/bin/env bash
# Writes the bill of materials of the binary with both roles: `sbom.sh FILE`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
version=$(cat deploy/release/cargo-cyclonedx.version)
tool=target/tools/cargo-cyclonedx-$version/bin/cargo-cyclonedx
# One beside each manifest of the workspace.
trap "find . -name release-sbom.json -not -path './target/*' -delete" EXIT
"$tool" cyclonedx --quiet --manifest-path Cargo.toml --format json --spec-version 1.5 --target x86_64-unknown-linux-gnu --features balancer \
    --override-filename release-sbom
# The time is that of the run, and the package is a path of this machine. The serial number follows from the contents.
python3 - release-sbom.json "$1" <<'PY'
import datetime, json, os, sys, uuid

with open(sys.argv[1]) as file:
    bill = json.load(file)
at = datetime.datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), datetime.timezone.utc)
bill["metadata"]["timestamp"] = at.strftime("%Y-%m-%dT%H:%M:%SZ")
bill.pop("serialNumber", None)
text = json.dumps(bill, indent=1, sort_keys=True).replace(os.getcwd(), "/mcp-resume").replace("?download_url=file://.", "")
bill = json.loads(text)
bill["serialNumber"] = f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, text)}"
with open(sys.argv[2], "w") as file:
    json.dump(bill, file, indent=1, sort_keys=True)
PY
