"""Checks the queries of the alerts and the dashboards: existing metrics, labels and values, valid PromQL, and panels that do not overlap.
`metrics.py PROMTOOL`.

A sidecar's metrics are those of the table in docs/operations.md, which tests/docs.rs compares with the program. The balancer's are those of
docs/balancer.md, which is compared here with src/balancer/metrics.rs. The dashboards are not loaded into Grafana.
"""

import copy
import json
import re
import subprocess
import sys
import tempfile
import tomllib
from itertools import combinations
from pathlib import Path

import yaml

DEPLOY = Path(__file__).resolve().parent.parent
ROOT = DEPLOY.parent
# Labels that Prometheus, its operator or a histogram add.
ADDED_LABELS = {"job", "instance", "pod", "le"}
OTHERS = {"up": set()}
# Metric -> its upper limit: section, key, and the key's default.
BOUNDS = {
    "mcp_resume_held_bytes": ("streams", "max_bytes_total", 1 << 30),
    "mcp_resume_connections": ("limits", "connections", 20_480),
    "mcp_resume_balancer_connections": ("limits", "connections", 20_480),
}
CONFIGURATIONS = sorted([*DEPLOY.glob("**/*.toml"), ROOT / "config.example.toml"])


class Wrong(Exception):
    pass


def require(holds, what):
    if not holds:
        raise Wrong(what)


def documented(document, heading, prefix, least):
    """Name -> (kind, labels, the words of its row), of the table below the heading."""
    text = (ROOT / "docs" / document).read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    metrics = {}
    for names, kind, means in re.findall(r"^\| (`.*) \| (gauge|counter|histogram) \| (.*) \|$", text, re.M):
        for name, labels in re.findall(r"`(\w+)(?:\{([\w,]*)\})?`", names):
            metrics[prefix + name] = (kind, set(labels.split(",")) - {""}, set(re.findall(r"\w+", means)))
    require(len(metrics) >= least, f"the table of metrics in {document} is gone")
    return metrics


def check_balancer(metrics, source):
    """Checks that the table has exactly the metrics that the source registers."""
    prefix = re.search(r'Registrar::new\("(\w+)"\)', source)[1]
    text = r'\(\s*"(\w+)",\s*"[^"]*"'
    registered = {(name, kind, "") for kind, name in re.findall(rf"\bregistrar\s*\.(counter|gauge){text}", source)}
    for name, labels in re.findall(rf"\bregistrar\s*\.(?:family|families){text},\s*(.*?)\?", source, re.S):
        registered.add((name, "counter", ",".join(sorted(re.findall(r'\("(\w+)"', labels)))))
    registered |= {(name, "gauge", label) for name, label in re.findall(rf'\bIntGaugeVec::new\(\s*Opts::new{text}\),\s*&\["(\w+)"', source)}
    explained = {(name.removeprefix(f"{prefix}_"), kind, ",".join(sorted(labels))) for name, (kind, labels, _) in metrics.items()}
    require(registered == explained, f"docs/balancer.md and src/balancer/metrics.rs differ: {registered ^ explained}")


def asked(expression):
    """The metrics of an expression with their label selectors, and the labels of its aggregations."""
    expression = expression.replace('"$job"', '""').replace('"$instance"', '""')
    names = re.findall(r"\b(mcp_resume_\w+|up)\b(?:\{([^}]*)\})?", expression)
    return [(name, re.findall(r'(\w+)\s*[=!]~?\s*"([^"]*)"', selector)) for name, selector in names], listed("by", expression)


def listed(before, expression):
    return set(re.findall(r"\w+", " ".join(re.findall(rf"\b(?:{before}) \(([^)]*)\)", expression))))


def exists(metrics, expression):
    used, _ = asked(expression)
    require(used, f"names no metric: {expression}")
    known, seen = set(ADDED_LABELS), set()
    for name, selected in used:
        base = re.sub(r"_(bucket|sum|count)$", "", name)
        kind, own, words = metrics.get(name) or metrics.get(base) or ("other", OTHERS.get(name), set())
        require(own is not None, f"there is no metric {name}")
        require((base != name) == (kind == "histogram"), f"{name} is a {kind}")
        labels = {label for label, _ in selected}
        require(labels <= own | ADDED_LABELS, f"{name} has no label {labels - own - ADDED_LABELS}")
        # The tests of the alerts cover patterns.
        values = {word for label, value in selected if label in own and re.fullmatch(r"[\w|]+", value) for word in value.split("|")}
        require(values <= words, f"the row of {name} does not name {values - words}")
        require(kind != "counter" or re.search(rf"(rate|increase)\({name}\b|{name}\b.* offset ", expression), f"{name} is a counter without a rate: {expression}")
        known |= own
        seen.add(base)
    named = listed("by|without|on|ignoring", expression)
    require(named <= known, f"no label {named - known}: {expression}")
    return seen


def readable(promtool, expressions):
    """Checks the expressions with promtool, each in a rule, with values for Grafana's variables."""
    rules = [{"record": f"q{number}", "expr": re.sub(r"\$__\w+", "5m", expression)} for number, expression in enumerate(expressions)]
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}, file)
        run = subprocess.run([promtool, "check", "rules", file.name], capture_output=True, text=True)
    require(run.returncode == 0, run.stdout + run.stderr)


def overlap(one, other):
    one, other = one["gridPos"], other["gridPos"]
    return all(a[k] < b[k] + b[size] for k, size in (("x", "w"), ("y", "h")) for a, b in ((one, other), (other, one)))


def check_dashboard(promtool, metrics, dashboard):
    panels = dashboard["panels"]
    require(len({panel["id"] for panel in panels}) == len(panels), "two panels have one id")
    for one, other in combinations(panels, 2):
        require(not overlap(one, other), f"{one['title']} and {other['title']} overlap")
    variables = {variable["name"] for variable in dashboard["templating"]["list"]}
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            require(variable["query"]["query"] == variable["definition"], f"${variable['name']} is defined in two ways")
            exists(metrics, variable["definition"])
    used = set(re.findall(r"\$\{?([a-z]\w*)", json.dumps(dashboard)))
    require(used <= variables | {"__rate_interval", "__all"}, f"no variable {used - variables}")
    expressions, seen = [], set()
    for panel in panels:
        if panel["type"] == "row":
            continue
        require(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 and panel["title"] and panel["targets"], panel["title"])
        require(len({target["refId"] for target in panel["targets"]}) == len(panel["targets"]), f"{panel['title']}: two of one refId")
        for target in panel["targets"]:
            require(target["datasource"] == {"type": "prometheus", "uid": "${datasource}"}, f"{panel['title']}: a data source of its own")
            expressions.append(target["expr"])
            seen |= exists(metrics, target["expr"])
            shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            grouped = asked(target["expr"])[1]
            require(not grouped or shown <= grouped, f"{panel['title']}: the legend shows {shown - grouped}, which is summed away")
    readable(promtool, expressions)
    missing = metrics.keys() - seen
    require(not missing, f"on no panel: {', '.join(sorted(missing))}")
    return len(expressions)


def check_alerts(metrics, rules, tests):
    alerts = [rule for group in rules["groups"] for rule in group["rules"]]
    for alert in alerts:
        exists(metrics, alert["expr"])
        require(alert["labels"]["severity"] in {"critical", "warning", "info"}, alert["alert"])
        require({"summary", "description"} <= alert["annotations"].keys(), alert["alert"])
        require(alert["annotations"].get("runbook") == f"docs/alerts.md#{alert['alert'].lower()}", f"{alert['alert']} links to no section")
        can_fire(alert["expr"])
    sections = re.findall(r"^## (\w+)$", (ROOT / "docs" / "alerts.md").read_text(), re.M)
    require(sections == [alert["alert"] for alert in alerts], "docs/alerts.md does not have a section for each alert, in their order")
    fired = {case["alertname"] for test in tests["tests"] for case in test["alert_rule_test"] if case.get("exp_alerts")}
    untested = {alert["alert"] for alert in alerts} - fired
    require(not untested, f"no test fires {', '.join(sorted(untested))}")
    return len(alerts)


def can_fire(expression):
    """Checks that an alert's number is below the limit in every shipped configuration."""
    for name, number in re.findall(r"\b(mcp_resume_\w+) > (\d+)", expression):
        if name in BOUNDS:
            section, key, default = BOUNDS[name]
            for file in CONFIGURATIONS:
                most = tomllib.loads(file.read_text()).get(section, {}).get(key, default)
                require(int(number) < most, f"{name} is at most {most} by {file.relative_to(ROOT)}: never above {number}")


def refused(check, what):
    try:
        check()
    except Wrong:
        return
    raise Wrong(f"{what} is accepted")


def main(promtool):
    sidecar = documented("operations.md", "Every metric", "mcp_resume_", 20)
    balancer = documented("balancer.md", "Metrics", "mcp_resume_balancer_", 5)
    # The reloads of certificates are registered with those of the sidecar.
    source = "".join((ROOT / "src" / folder / "metrics.rs").read_text() for folder in ("balancer", "tls"))
    check_balancer(balancer, source)
    metrics = sidecar | balancer
    rules = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yaml").read_text())
    tests = yaml.safe_load((DEPLOY / "prometheus" / "alerts_test.yaml").read_text())
    shown = {"mcp-resume.json": sidecar, "mcp-resume-balancer.json": balancer}
    [shipped] = yaml.safe_load((DEPLOY / "grafana" / "kustomization.yaml").read_text())["configMapGenerator"]
    require(set(shipped["files"]) == shown.keys(), f"Kubernetes gets the dashboards {shipped['files']}")
    dashboards = [(own, json.loads((DEPLOY / "grafana" / name).read_text())) for name, own in shown.items()]
    alerts = check_alerts(metrics, rules, tests)
    queries = sum(check_dashboard(promtool, own, dashboard) for own, dashboard in dashboards)
    require(len({dashboard["uid"] for _, dashboard in dashboards}) == len(dashboards), "two dashboards have one uid")
    print(f"deploy: {alerts} alerts and {queries} queries of the dashboards ask for what exists")

    for expression in ("mcp_resume_stream_open", "sum by (reason) (mcp_resume_streams_open)", 'mcp_resume_streams_open{kind="x"}',
                       "mcp_resume_retries_total", "rate(mcp_resume_live_event_seconds[5m])",
                       # Metrics of the other role.
                       "mcp_resume_balancer_streams_open", "mcp_resume_doubled_owners",
                       "sum without (conditions) (mcp_resume_balancer_replicas)", 'mcp_resume_balancer_replicas{condition=~"ready|reedy"}'):
        refused(lambda: exists(metrics, expression), expression)
    unlinked = copy.deepcopy(rules)
    unlinked["groups"][0]["rules"][0]["annotations"]["runbook"] = "docs/alerts.md#down"
    refused(lambda: check_alerts(metrics, unlinked, tests), "an alert that links to no section")
    for expression in ("mcp_resume_balancer_connections > 16384", "mcp_resume_held_bytes > 1073741824"):
        refused(lambda: can_fire(expression), expression)
    refused(lambda: readable(promtool, ["rate(mcp_resume_retries_total)"]), "a rate of an instant vector")
    refused(lambda: check_balancer(balancer, source.replace('"rounds_total"', '"round_total"')), "a metric of the balancer with another name")
    refused(lambda: check_balancer(balancer, source.replace('("reason", ', '("why", ')), "a metric of the balancer with another label")
    for own, dashboard in dashboards:
        for change in (lambda d: d["panels"].pop(), lambda d: d["panels"][2]["gridPos"].update(d["panels"][1]["gridPos"])):
            other = copy.deepcopy(dashboard)
            change(other)
            refused(lambda: check_dashboard(promtool, own, other), "a dashboard with a panel less, or with overlapping panels,")
    refused(lambda: check_dashboard(promtool, sidecar, dashboards[1][1]), "a dashboard of another role's metrics")
    refused(lambda: check_alerts(metrics, rules, {"tests": tests["tests"][1:]}), "an alert without a test")


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except Wrong as error:
        sys.exit(f"deploy/test/metrics.py: {error}")
