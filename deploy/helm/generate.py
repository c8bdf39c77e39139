#!/usr/bin/env python3
"""Writes the generated parts of the chart: its copies of files of deploy/, and the settings in its schema, of config.example.toml.
deploy/test/helm.py fails while they differ."""

import json
import re
import tomllib
from pathlib import Path

DEPLOY = Path(__file__).resolve().parent.parent
CHART = DEPLOY / "helm" / "mcp-resume"
# A packaged chart contains only its own folder, and no symbolic links.
COPIES = {
    "sidecar.toml": "kubernetes/base-sidecar/mcp-resume.toml",
    "balancer.toml": "kubernetes/balancer/mcp-resume.toml",
    "redis.conf": "kubernetes/redis/redis.conf",
    "users.acl": "kubernetes/redis/users.acl",
    "ingress.yaml": "kubernetes/components/ingress/ingress.yaml",
    "gateway.yaml": "kubernetes/components/gateway/gateway.yaml",
    "alerts.yaml": "prometheus/alerts.yaml",
    "mcp-resume.json": "grafana/mcp-resume.json",
    "mcp-resume-balancer.json": "grafana/mcp-resume-balancer.json",
}
# Settings of the chart's own, and a command, whose programs the image does not have.
SET_BY_CHART = {
    "listen": {"address", "trusted_proxies"},
    "listen.tls": None,
    "upstream": {"command", "env", "inherit_env", "env_from_headers", "cwd", "stderr_to_client"},
    "store": {"kind", "path", "url"},
    "replica": {"name", "wrap_sessions"},
    "balance": {"replicas", "file", "upgrade_socket"},
    "balance.tls": {"ca", "cert", "key"},
    "admin": None,
}
BALANCER_SECTIONS = {"listen", "auth", "balance", "limits", "log"}


def sections():
    """The keys of config.example.toml by section, with examples of their values; those in comments included."""
    found, section = {}, None
    for line in (DEPLOY.parent / "config.example.toml").read_text().splitlines():
        if header := re.fullmatch(r'(?:# )?\[([a-z_.]+|tools\."[^"]+")\]', line):
            section = found.setdefault(header[1].split(".")[0] if header[1].startswith("tools") else header[1], {})
        elif key := re.fullmatch(r"(?:# )?([a-z_]+) = (\S.*)", line):
            section[key[1]] = tomllib.loads(f"value = {key[2]}")["value"]
    return found


def schema_of(value):
    if isinstance(value, bool):
        return {"type": "boolean"}
    if isinstance(value, int):
        return {"type": "integer", "minimum": 0}
    if isinstance(value, list):
        return {"type": "array", "items": {"type": "string"}}
    if isinstance(value, dict):
        return {"type": "object", "additionalProperties": {"type": "string"}}
    return {"type": "string"}


def strict(properties):
    return {"type": "object", "additionalProperties": False, "properties": properties}


def settings(wanted):
    """The schema of the settings in these sections, without those that the chart sets."""
    schema = {}
    for name, keys in sections().items():
        outer, _, inner = name.partition(".")
        taken = SET_BY_CHART.get(name, set())
        if outer not in wanted or taken is None:
            continue
        properties = {key: schema_of(value) for key, value in keys.items() if key not in taken}
        if inner:
            schema[outer]["properties"][inner] = strict(properties)
        else:
            schema[outer] = strict(properties)
    return strict(schema)


def generated():
    """The text of each generated file, by its path in the chart."""
    files = {f"files/{name}": (DEPLOY / source).read_text() for name, source in COPIES.items()}
    schema = json.loads((CHART / "values.schema.json").read_text())
    all_sections = {name.partition(".")[0] for name in sections()}
    schema["definitions"]["sidecarSettings"] = settings(all_sections - {"balance", "tools"})
    schema["definitions"]["balancerSettings"] = settings(BALANCER_SECTIONS)
    schema["definitions"]["toolSettings"] = strict({key: schema_of(value) for key, value in sections()["tools"].items()})
    files["values.schema.json"] = json.dumps(schema, indent=2, ensure_ascii=False) + "\n"
    return files


if __name__ == "__main__":
    for name, text in generated().items():
        (CHART / name).write_text(text)
