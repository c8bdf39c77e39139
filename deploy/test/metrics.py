"""What the alerts and the dashboard ask for: metrics and labels that exist, in queries that Prometheus can read, on panels that do not
lie on each other. `metrics.py PROMTOOL`.

Metrics are those of the table in docs/operations.md, which tests/docs.rs compares with the program. Of Grafana nothing is at hand that
would load a dashboard: that it does is not checked.
"""

import copy
import json
import re
import subprocess
import sys
import tempfile
from itertools import combinations
from pathlib import Path

import yaml

DEPLOY = Path(__file__).resolve().parent.parent
# What Prometheus, its operator or a histogram add.
ADDED_LABELS = {"job", "instance", "le"}
OTHERS = {"up": set()}


class Wrong(Exception):
    pass


def require(holds, what):
    if not holds:
        raise Wrong(what)


def documented():
    """Name -> (kind, labels)."""
    text = (DEPLOY.parent / "docs" / "operations.md").read_text().split("## Every metric")[1].split("\n## ")[0]
    metrics = {}
    for row in re.findall(r"^\| (`.*) \| (gauge|counter|histogram) \|", text, re.M):
        for name, labels in re.findall(r"`(\w+)(?:\{([\w,]*)\})?`", row[0]):
            metrics[f"mcp_resume_{name}"] = (row[1], set(labels.split(",")) - {""})
    require(len(metrics) > 20, "the table of metrics is gone")
    return metrics


def asked(expression):
    """Metrics with the labels that are asked of them, and labels that are asked of the result."""
    expression = expression.replace('"$job"', '""').replace('"$instance"', '""')
    names = re.findall(r"\b(mcp_resume_\w+|up)\b(?:\{([^}]*)\})?", expression)
    grouped = set(re.findall(r"\w+", " ".join(re.findall(r"by \(([^)]*)\)", expression))))
    return [(name, set(re.findall(r"(\w+)\s*[=!]~?", selector))) for name, selector in names], grouped


def exists(metrics, expression):
    used, grouped = asked(expression)
    require(used, f"asks for nothing: {expression}")
    known, seen = set(ADDED_LABELS), set()
    for name, labels in used:
        base = re.sub(r"_(bucket|sum|count)$", "", name)
        kind, own = metrics.get(name) or metrics.get(base) or ("other", OTHERS.get(name))
        require(own is not None, f"there is no metric {name}")
        require((base != name) == (kind == "histogram"), f"{name} is a {kind}")
        require(labels <= own | ADDED_LABELS, f"{name} has no label {labels - own - ADDED_LABELS}")
        require(kind != "counter" or re.search(rf"(rate|increase)\({name}\b|{name}\b.* offset ", expression), f"{name} only grows: {expression}")
        known |= own
        seen.add(base)
    require(grouped <= known, f"no label {grouped - known}: {expression}")
    return seen


def readable(promtool, expressions):
    """As Prometheus reads it: each in a rule, with what Grafana would put in place of its variables."""
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
        require(not overlap(one, other), f"{one['title']} and {other['title']} lie on each other")
    variables = {variable["name"] for variable in dashboard["templating"]["list"]}
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
    fired = {case["alertname"] for test in tests["tests"] for case in test["alert_rule_test"] if case.get("exp_alerts")}
    untested = {alert["alert"] for alert in alerts} - fired
    require(not untested, f"no test fires {', '.join(sorted(untested))}")
    return len(alerts)


def refused(check, what):
    try:
        check()
    except Wrong:
        return
    raise Wrong(f"{what} is accepted")


def main(promtool):
    metrics = documented()
    rules = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yaml").read_text())
    tests = yaml.safe_load((DEPLOY / "prometheus" / "alerts_test.yaml").read_text())
    dashboard = json.loads((DEPLOY / "grafana" / "mcp-resume.json").read_text())
    alerts = check_alerts(metrics, rules, tests)
    queries = check_dashboard(promtool, metrics, dashboard)
    print(f"deploy: {alerts} alerts and {queries} queries of the dashboard ask for what exists")

    for expression in ("mcp_resume_stream_open", "sum by (reason) (mcp_resume_streams_open)", 'mcp_resume_streams_open{kind="x"}',
                       "mcp_resume_retries_total", "rate(mcp_resume_live_event_seconds[5m])"):
        refused(lambda: exists(metrics, expression), expression)
    refused(lambda: readable(promtool, ["rate(mcp_resume_retries_total)"]), "a rate of nothing")
    for change in (lambda d: d["panels"].pop(), lambda d: d["panels"][2]["gridPos"].update(d["panels"][1]["gridPos"])):
        other = copy.deepcopy(dashboard)
        change(other)
        refused(lambda: check_dashboard(promtool, metrics, other), "a dashboard with less, or with panels on each other,")
    refused(lambda: check_alerts(metrics, rules, {"tests": tests["tests"][1:]}), "an alert without a test")


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except Wrong as error:
        sys.exit(f"deploy/test/metrics.py: {error}")
