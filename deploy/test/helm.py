"""Checks the Helm chart with Helm's own engine: `helm.py KUBECTL MCP-RESUME`.

Each overlay of deploy/kubernetes has a file in deploy/helm/values, whose rendering equals the output of kustomize, object by object. Other
values are rendered too, and pass the checks of kubernetes.py. Values that must be refused are, with the reason. No cluster takes part.
"""

import base64
import copy
import difflib
import json
import re
import shutil
import subprocess
import sys
import tempfile
from functools import cache, partial
from pathlib import Path

import yaml
from helm_python import Chart, Config, HelmError, chart

import kubernetes
from entrances import Wrong, require
from kubernetes import PLACEHOLDER, POD_NETWORK, Objects, build, documents

HERE = Path(__file__).resolve().parent.parent
CHART = HERE / "helm" / "mcp-resume"
EXAMPLE = HERE / "helm" / "example"
VALUES = HERE / "helm" / "values"
# The name of this release makes the names of kustomize's objects.
RELEASE = "mcp"
# The differences from kustomize. Helm's labels, which also keep releases apart; the label by which kustomize adds the sidecar; and a
# rollout after a change of the configuration: by a hash in the ConfigMap's name there, by an annotation of the pods here.
HELM_LABELS = {"app.kubernetes.io/instance", "app.kubernetes.io/managed-by", "app.kubernetes.io/version", "helm.sh/chart"}
KUSTOMIZE_LABELS = {"mcp-resume/sidecar"}
HASHED = re.compile(r"(.+)-[bcdf2456789ghkmt]{10}")

sys.path.insert(0, str(HERE / "helm"))
import generate  # noqa: E402


# Rendering


def rendered(folder, values, release=RELEASE):
    """The objects and the notes of `helm install --dry-run=client`."""
    with Config(storage_driver="memory") as config, Chart.load(folder) as loaded:
        release = config.install(loaded, release, values, dry_run="client", namespace="default")
    return documents(release["manifest"]), release.get("notes", "")


def merged(*layers):
    """Values as of several files, the last one first."""
    result = {}
    for layer in layers:
        for key, value in layer.items():
            both = isinstance(value, dict) and isinstance(result.get(key), dict)
            result[key] = merged(result[key], value) if both else copy.deepcopy(value)
    return result


def values_of(*names):
    return merged(*(yaml.safe_load((VALUES / f"{name}.yaml").read_text()) for name in names))


def with_chart(folder, of=CHART):
    """A copy of the example with the chart in it."""
    shutil.copytree(EXAMPLE, folder)
    shutil.copytree(of, folder / "charts" / "mcp-resume")
    return folder


# Comparison with kustomize


class Kustomize:
    """A copy of the manifests as a user completes them: with a password of Redis, and the network of the pods."""

    def __init__(self, kubectl, folder):
        self.kubectl, self.folder = kubectl, folder / "kubernetes"
        for name in ("kubernetes", "grafana"):
            shutil.copytree(HERE / name, folder / name)
        subprocess.run([self.folder / "redis" / "make-secret.sh"], check=True)
        self.password = re.search(r"^url=redis://mcp-resume:(\w+)@", (self.folder / "redis" / "url.env").read_text(), re.M)[1]
        for overlay in (self.folder / "overlays").glob("*/kustomization.yaml"):
            overlay.write_text(overlay.read_text().replace(PLACEHOLDER, POD_NETWORK))

    def build(self, overlay, *additions):
        place = self.folder / "overlays" / "-".join(("built", overlay, *additions))
        place.mkdir(exist_ok=True)
        resources = [f"../../{name}" for name in additions if name == "monitoring"]
        components = [f"../../components/{name}" for name in additions if name != "monitoring"]
        (place / "kustomization.yaml").write_text(yaml.safe_dump({"resources": [f"../{overlay}", *resources], "components": components}))
        return build(self.kubectl, place)


def comparable(things):
    """The objects by kind and name, without the documented differences."""
    text = json.dumps(things)
    for thing in things:
        name = HASHED.fullmatch(thing["metadata"]["name"])
        if thing["kind"] in ("ConfigMap", "Secret") and name:
            text = text.replace(f'"{name[0]}"', f'"{name[1]}"')
    found = {}
    for thing in json.loads(text):
        key = f"{thing['kind']} {thing['metadata']['name']}"
        require(key not in found, f"two of {key}")
        if thing["kind"] == "Secret":
            thing["data"] = {name: base64.b64decode(value).decode() for name, value in thing["data"].items()}
        found[key] = plain(thing)
    return found


def plain(value):
    if isinstance(value, list):
        return [plain(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    result = {}
    for key, inner in value.items():
        if key in HELM_LABELS | KUSTOMIZE_LABELS or key.startswith("checksum/"):
            continue
        inner = plain(inner)
        if key in ("labels", "annotations") and not inner:
            continue
        # Their order has no meaning.
        result[key] = sorted(inner, key=lambda entry: entry["name"]) if key in ("env", "volumes", "volumeMounts") else inner
    return result


def equal(ours, theirs):
    ours, theirs = comparable(ours), comparable(theirs)
    require(ours.keys() == theirs.keys(), f"objects of one alone: {sorted(ours.keys() ^ theirs.keys())}")
    for key, thing in theirs.items():
        # Python takes 1 for True.
        if json.dumps(thing, sort_keys=True) == json.dumps(ours[key], sort_keys=True):
            continue
        lines = [yaml.safe_dump(each).splitlines() for each in (thing, ours[key])]
        difference = "\n".join(difflib.unified_diff(*lines, "kustomize", "helm", lineterm="", n=2))
        raise Wrong(f"{key} differs:\n{difference}")


def completed(password, overlay, *additions):
    """The values of an overlay and its additions, completed as `Kustomize` completes the manifests."""
    values = values_of(overlay, *(f"components/{name}" for name in additions))
    own = {"podNetworks": [POD_NETWORK]} | ({"store": {"redis": {"password": password}}} if "redis" in overlay else {})
    return merged(values, {"mcp-resume": own} if "mcp-resume" in values else own)


ADDITIONS = [
    ("sessionless-redis", "ingress"),
    ("sessionless-redis", "monitoring"),
    ("with-balancer", "gateway"),
    ("with-balancer-redis", "scale-on-connections", "ingress", "gateway", "monitoring"),
]


def overlays_are_equal(kustomize, folder, mcp_resume):
    overlays = sorted(path.name for path in (HERE / "kubernetes" / "overlays").iterdir())
    files = sorted(path.stem for path in VALUES.glob("*.yaml"))
    require(overlays == files, f"overlays {overlays}, values {files}")
    example = with_chart(folder / "example")
    for names in [(overlay,) for overlay in overlays] + ADDITIONS:
        values = completed(kustomize.password, *names)
        place = example if "mcp-resume" in values else CHART
        try:
            lints(place, values)
            ours, _ = rendered(place, values)
            equal(ours, kustomize.build(*names))
            kubernetes.check(mcp_resume, ours, POD_NETWORK)
        except (Wrong, HelmError) as error:
            raise Wrong(f"values/{' with '.join(names)}: {error}") from None
    print(f"deploy: the Helm chart equals kustomize in {len(overlays) + len(ADDITIONS)} overlays and additions")
    return names


# Changes of the chart's files that the comparison must detect: (file, text, new text).
BROKEN = [
    ("templates/server.yaml", "path: /upstreamz", "path: /readyz"),
    ("templates/server.yaml", "maxUnavailable: 0", "maxUnavailable: 1"),
    ("templates/_sidecar.tpl", "failureThreshold: 60", "failureThreshold: 61"),
    ("templates/_sidecar.tpl", "path: /drain", "path: /drains"),
    ("templates/_helpers.tpl", "readOnlyRootFilesystem: true", "readOnlyRootFilesystem: false"),
    ("templates/services.yaml", "publishNotReadyAddresses: true", "publishNotReadyAddresses: false"),
    ("templates/network.yaml", "- port: 9465", "- port: 9464"),
    ("templates/balancer.yaml", "stabilizationWindowSeconds: 600", "stabilizationWindowSeconds: 60"),
    ("templates/disruption.yaml", "kind: PodDisruptionBudget", "kind: PodDisruptionBudge"),
    ("templates/ingress.yaml", "pathType: Prefix", "pathType: Exact"),
    ("templates/gateway.yaml", "backendRequest: 0s", "backendRequest: 1s"),
    ("templates/monitoring.yaml", "path: /metrics", "path: /metric"),
    ("templates/redis.yaml", "--user probe", "--user probes"),
    ("files/sidecar.toml", "drain_delay_secs = 40", "drain_delay_secs = 41"),
    ("files/redis.conf", "appendonly yes", "appendonly no"),
    ("files/alerts.yaml", "for: 2m", "for: 3m"),
    ("values.yaml", "replicas: 3", "replicas: 4"),
    ("values.yaml", "cpuPercent: 70", "cpuPercent: 80"),
]


def broken_charts_differ(kustomize, folder, mcp_resume):
    names = ADDITIONS[-1]
    theirs = kustomize.build(*names)
    values = completed(kustomize.password, *names)
    ours, _ = rendered(CHART, values)
    equal(ours, theirs)
    for change in BROKEN:
        is_noticed(folder, *change, lambda place: equal(rendered(place, values)[0], theirs))
    print(f"deploy: {len(BROKEN)} changes of the Helm chart differ from kustomize")
    # Some of its variants change the first object of a kind.
    ours.sort(key=lambda thing: thing["metadata"]["name"])
    kubernetes.broken_variants_are_refused(mcp_resume, ours, POD_NETWORK)


def is_noticed(folder, name, text, new, check):
    """Fails if the check passes for a chart with this change in a file, which can still be rendered."""
    with tempfile.TemporaryDirectory(dir=folder) as place:
        place = Path(place) / "mcp-resume"
        shutil.copytree(CHART, place)
        said = (place / name).read_text()
        require(text in said, f"{name} has no {text}")
        (place / name).write_text(said.replace(text, new))
        try:
            check(place)
        except Wrong:
            return
    raise Wrong(f"{name} with {new} in place of {text} is accepted")


# Other values


def lints(folder, values):
    report = chart.lint(folder, values, strict=True)
    said = [message for message in report["messages"] if message["error"] != "icon is recommended"]
    require(not report["errors"] and not said, f"helm lint: {report['errors']} {said}")


BASE = {
    "image": {"repository": "r.example.com/m"},
    "server": {"image": {"repository": "r.example.com/s", "tag": "1"}},
    "podNetworks": [POD_NETWORK],
}
BALANCED = {"balancer": {"enabled": True, "image": {"repository": "r.example.com/b"}}}
REDIS = {"store": {"kind": "redis", "redis": {"password": "0123456789abcdef"}}}
DIGEST = {"digest": "sha256:" + "0" * 64}
OWN = {"server": {"enabled": False, "image": {"repository": "", "tag": ""}}}
# Values whose rendering passes the checks of kubernetes.py.
GOOD = {
    "the defaults": {},
    "a disk": {"store": {"kind": "disk", "disk": {"size": "20Gi", "storageClassName": "fast"}}},
    "a disk and a balancer": merged(BALANCED, {"store": {"kind": "disk"}, "sidecar": {"settings": {"store": {"max_bytes": 2 << 30}}}}),
    "another name": merged(BALANCED, REDIS, {"nameOverride": "tools"}),
    "digests": merged(BALANCED, {"image": DIGEST, "server": {"image": DIGEST}, "balancer": {"image": DIGEST}}),
    "a fixed number of balancers": merged(BALANCED, {"balancer": {"autoscaling": {"enabled": False}, "replicas": 4}}),
    "an external Redis": {"store": {"kind": "redis", "redis": {"bundled": False, "url": "rediss://u:p@redis.example.com:6380"}}},
    "more memory and a longer drain": merged(BALANCED, {
        "sidecar": {"settings": {"streams": {"max_bytes_total": 4 << 30}, "replica": {"drain_delay_secs": 60, "drain_timeout_secs": 3600}}},
        "balancer": {"settings": {"limits": {"connections": 100_000}, "balance": {"grace_secs": 120}}},
    }),
    "settings of each type": {"sidecar": {"settings": {
        "delivery": {"mode": "stream", "retry_ms": 2_000_000, "progress_except": ["a", "b"]}, "streams": {"max_event_bytes": 16_777_216},
        "dialects": {"stream_url": False, "resume_tokens": {"enabled": True, "tools": ["x"]}}, "listen": {"allowed_hosts": ["mcp.example.com"]},
        "otel": {"endpoint": "http://collector:4318", "headers": ["Authorization=Basic dTpw", "X-Scope-OrgID=a,b"]},
        "upstream": {"headers": {"X-Key": "k", "X-Tenant": "a,b"}},
    }, "tools": {"long-report": {"max_wait_secs": 1_000_000, "mode": "poll"}, 'a "b"': {"call_timeout_secs": 5}}}},
    "a server on HTTP+SSE": {"sidecar": {"settings": {"upstream": {"sse_url": "http://127.0.0.1:3000/sse"}}}},
    "no trusted networks": {"podNetworks": []},
    "several networks": {"podNetworks": [POD_NETWORK, "fd00::/8"]},
    "placement": merged(BALANCED, {name: {
        "nodeSelector": {"disk": "ssd"}, "priorityClassName": "high", "podAnnotations": {"a": "b"},
        "tolerations": [{"key": "mcp", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Exists"}]}],
        }}},
    } for name in ("server", "balancer")}),
    "files, secrets and commands": {
        "imagePullSecrets": [{"name": "registry"}],
        "sidecar": {
            "settings": {"upstream": {"url": "http://127.0.0.1:4000/"}},
            "extraVolumes": [{"name": "ca", "emptyDir": {}}], "extraVolumeMounts": [{"name": "ca", "mountPath": "/ca"}],
            "env": [{"name": "OTEL_RESOURCE_ATTRIBUTES", "value": "deployment.environment.name=test"}],
            "resources": {"requests": {"cpu": 1}, "limits": {"memory": "3Gi"}},
        },
        "server": {
            "command": ["node"], "args": ["server.js"], "user": 1000, "image": {"pullPolicy": "Always"}, "env": [],
            "extraVolumes": [{"name": "cache", "emptyDir": {}}], "extraVolumeMounts": [{"name": "cache", "mountPath": "/cache"}],
        },
    },
    "entrances": {
        "ingress": {"enabled": True, "host": "mcp.example.com", "annotations": {"cert-manager.io/cluster-issuer": "acme"}},
        "gateway": {"enabled": True, "host": "*.example.com"},
        "service": {"type": "LoadBalancer", "port": 8000, "annotations": {"a": "b"}},
    },
    "monitoring": merged(BALANCED, values_of("components/monitoring"), {
        "monitoring": {name: {"labels": {"release": "prometheus"}} for name in ("serviceMonitor", "prometheusRule", "dashboards")},
    }),
}
# Values that are refused, with a word of the reason.
REFUSED = [
    ({"imag": {}}, "imag"),
    ({"store": {"kind": "disc"}}, "kind"),
    ({"store": {"kind": "redis", "redis": {"pasword": "0123456789abcdef"}}}, "pasword"),
    ({"store": {"kind": "redis", "redis": {"password": "short"}}}, "password"),
    ({"store": {"kind": "redis", "redis": {"password": "0123456789abcdef@x:"}}}, "password"),
    ({"store": {"kind": "redis"}}, "store.redis.password"),
    ({"store": {"kind": "redis", "redis": {"bundled": False}}}, "store.redis.url"),
    ({"store": {"kind": "redis", "redis": {"bundled": False, "url": "http://redis"}}}, "url"),
    (merged(REDIS, {"store": {"redis": {"url": "redis://other:6379"}}}), "bundled: false"),
    (merged(REDIS, {"store": {"redis": {"existingSecret": "own"}}}), "takes the place"),
    (merged(REDIS, {"store": {"redis": {"bundled": False, "url": "redis://other:6379"}}}), "write it into"),
    ({"store": {"kind": "disk", "disk": {"size": "much"}}}, "size"),
    ({"podNetworks": [PLACEHOLDER]}, "podNetworks"),
    ({"podNetworks": ["10.244.0.0/33"]}, "podNetworks"),
    ({"podNetworks": POD_NETWORK}, "podNetworks"),
    ({"podNetworks": None}, "podNetworks is required"),
    ({"image": {"repository": ""}}, "image.repository is required"),
    ({"image": {"digest": "sha256:0"}}, "digest"),
    ({"server": {"image": {"repository": ""}}}, "server.image.repository is required"),
    ({"server": {"image": {"tag": ""}}}, "server.image.tag"),
    ({"server": {"user": 0}}, "user"),
    ({"server": {"replicas": "3"}}, "replicas"),
    ({"server": {"podLabels": {"app": "s"}}}, "server.podLabels is for"),
    ({"sidecar": {"settings": {"streams": {"max_wait_sec": 5}}}}, "max_wait_sec"),
    ({"sidecar": {"settings": {"streams": {"max_wait_secs": "5"}}}}, "max_wait_secs"),
    ({"sidecar": {"settings": {"stream": {"max_wait_secs": 5}}}}, "stream"),
    ({"sidecar": {"settings": {"store": {"kind": "disk"}}}}, "kind"),
    ({"sidecar": {"settings": {"listen": {"address": "0.0.0.0:80"}}}}, "address"),
    ({"sidecar": {"settings": {"admin": {"address": ""}}}}, "admin"),
    ({"sidecar": {"tools": {"x": {"mod": "poll"}}}}, "mod"),
    ({"sidecar": {"settings": {"replica": {"drain_timeout_secs": 30}}}}, "has to be longer"),
    ({"sidecar": {"resources": {"limit": {}}}}, "limit"),
    ({"sidecar": {"resources": {"limits": {"memory": "2 GB"}}}}, "memory"),
    ({"balancer": {"enabled": True}}, "balancer.image.repository"),
    (merged(BALANCED, {"sidecar": {"settings": {"replica": {"drain_delay_secs": 35}}}}), "exceed 35"),
    (merged(BALANCED, {"balancer": {"settings": {"streams": {"max_events": 1}}}}), "streams"),
    (merged(BALANCED, {"balancer": {"settings": {"balance": {"replicas": ["http://other"]}}}}), "replicas"),
    ({"ingress": {"enabled": True}}, "ingress.host"),
    ({"gateway": {"enabled": True}}, "gateway.host"),
    ({"gateway": {"enabled": True, "host": "https://mcp.example.com"}}, "host"),
    ({"service": {"type": "ExternalName"}}, "type"),
    ({"networkPolicy": {"enable": False}}, "enable"),
    ({"disruptionBudget": {"maxUnavailable": 0}}, "maxUnavailable"),
    ({"monitoring": {"serviceMonitor": {"interval": "often"}}}, "interval"),
    ({"sidecar": {"tls": {"cert": "tls.crt"}}}, "cert"),
    ({"sidecar": {"tls": {"secret": "Sidecar_TLS"}}}, "secret"),
    ({"sidecar": {"tls": {"secret": "sidecar-tls", "clientCa": "ca/crt"}}}, "clientCa"),
    ({"sidecar": {"tls": {"clientCa": "ca.crt"}}}, "sidecar.tls.secret, which is required"),
    ({"sidecar": {"settings": {"listen": {"tls": {"cert": "/tls.crt"}}}}}, "tls"),
    ({"balancer": {"tls": {"secret": "balancer-tls"}}}, "balancer.enabled: true"),
    (merged(BALANCED, {"balancer": {"tls": {"clientCa": "ca.crt"}}}), "balancer.tls.secret, which is required"),
    (merged(BALANCED, {"sidecar": {"tls": {"secret": "sidecar-tls", "clientCa": "ca.crt"}}}), "balancer.tls.clientSecret is required"),
    (merged(BALANCED, {"balancer": {"tls": {"clientSecret": "client"}}}), "no sidecar asks"),
    (merged(BALANCED, {"balancer": {"settings": {"balance": {"tls": {"ca": "/ca.crt"}}}}}), "ca"),
    (merged(OWN, BALANCED), "server.podLabels is required"),
    (merged(OWN, REDIS), "server.podLabels is required"),
]


def good_values_are_good(mcp_resume):
    for name, values in GOOD.items():
        values = merged(BASE, values)
        try:
            lints(CHART, values)
            things, _ = rendered(CHART, values)
            kubernetes.check(mcp_resume, things, ",".join(values["podNetworks"]))
        except (Wrong, HelmError) as error:
            raise Wrong(f"{name}: {error}") from None
    print(f"deploy: {len(GOOD)} other values of the Helm chart are good")


def bad_values_are_refused():
    # helm lint checks the schema, and does not run `fail`.
    require(chart.lint(CHART, merged(BASE, REFUSED[0][0]))["errors"], "helm lint accepts an unknown key")
    for values, reason in REFUSED:
        given = merged(BASE, values)
        given = {key: value for key, value in given.items() if value is not None}
        try:
            rendered(CHART, given)
        except HelmError as error:
            require(reason in str(error), f"{json.dumps(values)} is refused for another reason: {error}")
            continue
        raise Wrong(f"{json.dumps(values)} is accepted")
    for release in ("1mcp", "a.b"):
        try:
            rendered(CHART, BASE, release)
        except HelmError as error:
            require("nameOverride" in str(error), error)
            continue
        raise Wrong(f"a release {release} is accepted")
    print(f"deploy: {len(REFUSED)} values of the Helm chart are refused")


# Properties that kustomize has no equivalent of


def by_kind(things, kind, name):
    return Objects(things).named(kind, name)


def sidecar_of(work):
    return next(container for container in kubernetes.containers(work) if container["name"] == "mcp-resume")


def settings_arrive(place):
    """The settings are in the environment as the proxy reads them, and what depends on them follows."""
    things, _ = rendered(place, merged(BASE, GOOD["settings of each type"]))
    environment = {variable["name"]: variable.get("value") for variable in sidecar_of(by_kind(things, "Deployment", "mcp-server"))["env"]}
    for name, value in {
        "DELIVERY__RETRY_MS": "2000000", "DELIVERY__PROGRESS_EXCEPT": "a,b", "STREAMS__MAX_EVENT_BYTES": "16777216",
        "DIALECTS__STREAM_URL": "false", "DIALECTS__RESUME_TOKENS__TOOLS": "x",
        "OTEL__HEADERS": '["Authorization=Basic dTpw","X-Scope-OrgID=a,b"]',
        "UPSTREAM__HEADERS": '{"X-Key":"k","X-Tenant":"a,b"}',
    }.items():
        require(environment.get(f"MCP_RESUME_{name}") == value, f"{name} is {environment.get(f'MCP_RESUME_{name}')}")
    tools = kubernetes.tomllib.loads(by_kind(things, "ConfigMap", "mcp-sidecar")["data"]["mcp-resume.toml"])["tools"]
    require(tools == {"long-report": {"max_wait_secs": 1_000_000, "mode": "poll"}, 'a "b"': {"call_timeout_secs": 5}}, tools)
    things, _ = rendered(place, merged(BASE, GOOD["more memory and a longer drain"]))
    server, balancer = (by_kind(things, "Deployment", name) for name in ("mcp-server", "mcp-balancer"))
    require(sidecar_of(server)["resources"]["limits"]["memory"] == "8Gi", "memory of a sidecar")
    require(server["spec"]["minReadySeconds"] == 60, "a rollout is faster than the drain's delay")
    require(server["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == 3630, "a pod is killed in its drain")
    require(balancer["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == 150, "a balancer is killed before its responses end")
    larger = {"sidecar": {"settings": {"limits": {"body_bytes": 32 << 20}}}}
    things, _ = rendered(place, merged(BASE, larger, values_of("components/ingress")))
    annotations = by_kind(things, "Ingress", "mcp")["metadata"]["annotations"]
    require(annotations["nginx.ingress.kubernetes.io/proxy-body-size"] == "32m", "the Ingress has another limit")


def pods_are_as_the_values_say(place):
    things, _ = rendered(place, merged(BASE, GOOD["placement"]))
    for work in Objects(things).workloads():
        given = GOOD["placement"][work["metadata"]["name"].removeprefix("mcp-")]
        pod = work["spec"]["template"]
        for key in ("nodeSelector", "priorityClassName", "tolerations", "affinity"):
            require(pod["spec"].get(key) == given[key], f"{work['metadata']['name']} has not its {key}")
        require(given["podAnnotations"].items() <= pod["metadata"]["annotations"].items(), "annotations")
    things, _ = rendered(place, merged(BASE, GOOD["files, secrets and commands"]))
    work = by_kind(things, "Deployment", "mcp-server")
    pod = work["spec"]["template"]["spec"]
    [server] = pod["containers"]
    require(pod["imagePullSecrets"] == [{"name": "registry"}] and pod["securityContext"]["runAsUser"] == 1000, "the pod")
    require([volume["name"] for volume in pod["volumes"]] == ["config", "ca", "tmp", "cache"], pod["volumes"])
    require([mount["name"] for mount in sidecar_of(work)["volumeMounts"]] == ["config", "ca"], "mounts of the sidecar")
    require("OTEL_RESOURCE_ATTRIBUTES" in {variable["name"] for variable in sidecar_of(work)["env"]}, "variables of the sidecar")
    require([mount["name"] for mount in server["volumeMounts"]] == ["tmp", "cache"], "mounts of the server")
    require((server["command"], server["args"]) == (["node"], ["server.js"]) and "env" not in server, "the server's command")
    require(server["imagePullPolicy"] == "Always", "the server's image")
    require(sidecar_of(work)["resources"] == {"requests": {"cpu": 1, "memory": "128Mi"}, "limits": {"memory": "3Gi"}}, "resources of the sidecar")
    things, _ = rendered(place, merged(BASE, GOOD["a disk"]))
    work = by_kind(things, "StatefulSet", "mcp-server")
    [claim] = work["spec"]["volumeClaimTemplates"]
    require(claim["spec"].get("storageClassName") == "fast" and claim["spec"]["resources"]["requests"]["storage"] == "20Gi", claim)
    things, _ = rendered(place, merged(BASE, GOOD["a fixed number of balancers"]))
    require(by_kind(things, "Deployment", "mcp-balancer")["spec"]["replicas"] == 4, "the number of balancers")
    require(not Objects(things).of("HorizontalPodAutoscaler"), "a fixed number is scaled")
    things, _ = rendered(place, merged(BASE, GOOD["digests"]))
    for work in Objects(things).workloads():
        for container in kubernetes.containers(work):
            require(container["image"].endswith("@" + DIGEST["digest"]), container["image"])
    things, _ = rendered(place, BASE)
    version = yaml.safe_load((place / "Chart.yaml").read_text())["appVersion"]
    require(sidecar_of(by_kind(things, "Deployment", "mcp-server"))["image"] == f"r.example.com/m:{version}", "the sidecar's version")


def changes_are_rolled_out(place):
    """Pods have another annotation after a change of their configuration, and the others have the same."""
    values = merged(BASE, BALANCED, REDIS)

    def annotations(more):
        things, _ = rendered(place, merged(values, more))
        return {work["metadata"]["name"]: work["spec"]["template"]["metadata"]["annotations"] for work in Objects(things).workloads()}

    before = annotations({})
    for more, restarted in [
        ({}, set()),
        ({"service": {"port": 81}}, set()),
        ({"podNetworks": ["10.0.0.0/8"]}, {"mcp-server", "mcp-balancer"}),
        ({"sidecar": {"tools": {"x": {"mode": "poll"}}}}, {"mcp-server"}),
        ({"store": {"redis": {"password": "fedcba9876543210"}}}, {"mcp-server", "mcp-redis"}),
    ]:
        after = annotations(more)
        found = {name for name in before if before[name] != after[name]}
        require(found == restarted, f"{more} restarts {found}")


def releases_are_apart(place):
    """Two releases of one namespace have no object and no pod in common."""
    values = merged(BASE, BALANCED, REDIS, values_of("components/monitoring", "components/ingress"))
    one, two = (Objects(rendered(place, values, name)[0]) for name in ("one", "two"))
    names = [{(thing["kind"], thing["metadata"]["name"]) for thing in each.things} for each in (one, two)]
    require(not names[0] & names[1], f"in two releases: {names[0] & names[1]}")
    selectors = [service["spec"]["selector"] for service in two.of("Service")]
    for policy in two.of("NetworkPolicy"):
        rules = policy["spec"].get("ingress", []) + policy["spec"].get("egress", [])
        peers = [peer for rule in rules for peer in rule.get("from", []) + rule.get("to", [])]
        selectors += [each["podSelector"]["matchLabels"] for each in [policy["spec"], *peers] if "podSelector" in each]
    for kind in ("PodDisruptionBudget", "Deployment", "StatefulSet"):
        selectors += [thing["spec"]["selector"]["matchLabels"] for thing in two.of(kind)]
    require(len(selectors) > 15, "selectors were not found")
    for selector in selectors:
        for work in one.workloads():
            require(not selector.items() <= work["spec"]["template"]["metadata"]["labels"].items(), f"{selector} finds pods of another release")
    [monitor] = two.of("ServiceMonitor")
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    for service in one.of("Service"):
        require(not wanted <= service["metadata"]["labels"].items(), "a monitor finds another release's services")
    [rule] = two.of("PrometheusRule")
    alerts = {alert["alert"]: alert["expr"] for group in rule["spec"]["groups"] for alert in group["rules"]}
    jobs = re.search(r'job=~"([^"]+)"', alerts["McpResumeDown"])[1]
    scraped = [service["metadata"]["name"] for service in two.of("Service") if "metrics" in {port["name"] for port in service["spec"]["ports"]}]
    require(len(scraped) == 2 and all(re.fullmatch(jobs, name) for name in scraped), f"McpResumeDown, {jobs}, is blind to {scraped}")


def an_existing_gateway_is_used(place):
    existing = {"gateway": {"existing": "shared", "existingNamespace": "gateways"}}
    things, _ = rendered(place, merged(BASE, values_of("components/gateway"), existing))
    require({thing["kind"] for thing in things} & {"Gateway", "ClientSettingsPolicy", "HTTPRoute"} == {"HTTPRoute"}, "another Gateway is made")
    require(by_kind(things, "HTTPRoute", "mcp")["spec"]["parentRefs"] == [{"name": "shared", "namespace": "gateways"}], "the Gateway is not used")


def a_secret_of_ones_own_is_used(place):
    data = {"url": base64.b64encode(b"redis://h").decode(), "users.acl": ""}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "own"}, "data": data}
    for bundled in (True, False):
        things, _ = rendered(place, merged(BASE, {"store": {"kind": "redis", "redis": {"existingSecret": "own", "bundled": bundled}}}))
        require(not Objects(things).of("Secret"), "a Secret is made")
        for work in Objects(things).workloads():
            kubernetes.mounts_and_environment_are_there(Objects([*things, secret]), work)


SIDECAR_TLS = {"sidecar": {"tls": {"secret": "sidecar-tls"}}}
BALANCER_TLS = merged(BALANCED, {"balancer": {"tls": {"secret": "balancer-tls"}}})
MUTUAL_TLS = merged(SIDECAR_TLS, BALANCER_TLS, {
    "sidecar": {"tls": {"clientCa": "ca.crt"}},
    "balancer": {"tls": {"clientCa": "ca.crt", "clientSecret": "client"}, "settings": {"balance": {"tls": {"name": "sidecar"}}}},
})
PUBLIC_TLS = merged(SIDECAR_TLS, BALANCED, {"sidecar": {"tls": {"authority": ""}}})


@cache
def secrets_of_tls():
    """The Secrets of these values, as cert-manager writes them."""
    with tempfile.TemporaryDirectory() as folder:
        key, certificate = Path(folder) / "key", Path(folder) / "certificate"
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-noenc", "-days", "2", "-subj", "/CN=mcp",
             "-addext", "subjectAltName=DNS:mcp-sidecars,DNS:mcp.default.svc", "-keyout", key, "-out", certificate],
            check=True, capture_output=True,
        )
        pair = {"tls.crt": certificate.read_bytes(), "tls.key": key.read_bytes(), "ca.crt": certificate.read_bytes()}
    data = {name: base64.b64encode(text).decode() for name, text in pair.items()}
    return [
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "type": "kubernetes.io/tls", "data": data}
        for name in ("sidecar-tls", "balancer-tls", "client")
    ]


def listeners_have_tls(place, mcp_resume):
    """Secrets of one's own are the certificates of the listeners, and all that connects to these uses TLS."""
    entrance = values_of("components/ingress")
    for tls in (SIDECAR_TLS, BALANCER_TLS, MUTUAL_TLS, PUBLIC_TLS, merged(SIDECAR_TLS, BALANCED)):
        values = merged(BASE, tls, entrance)
        lints(place, values)
        things, _ = rendered(place, values)
        kubernetes.check(mcp_resume, [*things, *secrets_of_tls()], POD_NETWORK)
        for work in Objects(things).workloads():
            component = values["sidecar" if work["metadata"]["name"] == "mcp-server" else "balancer"]["tls"] if tls is MUTUAL_TLS else {}
            names = {variable["name"] for variable in sidecar_of(work)["env"]}
            require(not component or "MCP_RESUME_LISTEN__TLS__CLIENT_CA" in names, f"{work['metadata']['name']} asks for no certificate")
            for volume in work["spec"]["template"]["spec"]["volumes"]:
                of_sidecars = volume.get("secret", {}).get("secretName") == "sidecar-tls" and work["metadata"]["name"] == "mcp-balancer"
                require(not of_sidecars or volume["secret"]["items"] == [{"key": "ca.crt", "path": "ca.crt"}], "a balancer has the sidecars' key")
    [proxy] = by_kind(things, "Deployment", "mcp-balancer")["spec"]["template"]["spec"]["containers"]
    require("MCP_RESUME_BALANCE__TLS__CA" in {variable["name"] for variable in proxy["env"]}, "the balancer does not know the authority")
    example = with_chart(Path(tempfile.mkdtemp(dir=place.parent)) / "example", place)
    things, _ = rendered(example, {"mcp-resume": merged(BASE, OWN, SIDECAR_TLS)})
    [work] = Objects(things).workloads()
    kubernetes.configured(mcp_resume, Objects([*things, *secrets_of_tls()], POD_NETWORK), work, sidecar_of(work))
    require(kubernetes.has_tls(work), "the sidecar of an own Deployment has no TLS")


def notes_warn(place):
    for more, said, unsaid in [
        ({}, ["http://mcp.default.svc:80/mcp", "lost with their pod"], ["WARNING", "https:"]),
        (values_of("components/ingress"), ["https://mcp.example.com/mcp"], ["WARNING"]),
        (SIDECAR_TLS, ["https://mcp.default.svc:80/mcp"], ["http:", "BackendTLSPolicy"]),
        (merged(SIDECAR_TLS, values_of("components/gateway")), ["BackendTLSPolicy"], []),
        (merged(SIDECAR_TLS, BALANCED), ["http://mcp.default.svc:80/mcp"], ["https:"]),
        ({"networkPolicy": {"enabled": False}}, ["WARNING", "X-Forwarded-For"], []),
        ({"networkPolicy": {"enabled": False}, "podNetworks": []}, ["WARNING"], ["X-Forwarded-For"]),
        (OWN, ["named templates"], ["http://"]),
    ]:
        things, notes = rendered(place, merged(BASE, more))
        require(all(word in notes for word in said) and not any(word in notes for word in unsaid), f"{more}: {notes}")
        require(bool(Objects(things).of("NetworkPolicy")) == ("networkPolicy" not in more and more is not OWN), "NetworkPolicies")


def own_deployments_have_services(place, mcp_resume):
    """With the labels of an existing Deployment's pods, the chart has everything but the Deployment; its store too."""
    example = with_chart(Path(tempfile.mkdtemp(dir=place.parent)) / "example", place)
    (example / "templates" / "deployment.yaml").write_text((example / "templates" / "deployment.yaml").read_text().split("\n---\n")[0])
    labels = {"server": {"podLabels": {"app": "your-server"}}}
    for more in (BALANCED, REDIS, {"store": {"kind": "disk"}}, values_of("components/ingress", "components/monitoring")):
        values = merged(BASE, OWN, labels, more)
        values = {"mcp-resume": values}
        lints(example, values)
        things, _ = rendered(example, values)
        kubernetes.check(mcp_resume, things, POD_NETWORK)
        require(len(Objects(things).of("Deployment")) == (2 if more is BALANCED else 1), "the chart has a server of its own")


ALL_BALANCERS = 'print "app.kubernetes.io/name: mcp-balancer"'
# Changes that one of these checks must detect.
PROPERTIES = [
    (settings_arrive, "templates/_helpers.tpl", "{{ int64 . }}", "{{ . }}"),
    (settings_arrive, "templates/_helpers.tpl", 'join "," .', 'join ";" .'),
    (settings_arrive, "templates/_helpers.tpl", '"otel.headers"', '"otel.header"'),
    (settings_arrive, "templates/_helpers.tpl", '"upstream.headers"', '"upstream.header"'),
    (settings_arrive, "templates/_sidecar.tpl", '(include "mcp-resume.drainTimeout" .)', "160"),
    (settings_arrive, "templates/_sidecar.tpl", '{{ include "mcp-resume.drainDelay" . }}', "40"),
    (settings_arrive, "templates/balancer.yaml", "add $grace 30", "add 30 30"),
    (settings_arrive, "templates/_helpers.tpl", "mul 2 $held", "mul 1 $held"),
    (settings_arrive, "templates/ingress.yaml", '(include "mcp-resume.bodySize" .)', '"16m"'),
    (pods_are_as_the_values_say, "templates/balancer.yaml", 'include "mcp-resume.placement" .Values.balancer', 'print ""'),
    (pods_are_as_the_values_say, "templates/_helpers.tpl", "{{- with .tolerations }}", "{{- with false }}"),
    (pods_are_as_the_values_say, "templates/_sidecar.tpl", "with .Values.sidecar.extraVolumes ", "with false "),
    (pods_are_as_the_values_say, "templates/_sidecar.tpl", "with .Values.sidecar.env ", "with false "),
    (pods_are_as_the_values_say, "templates/server.yaml", "with .Values.store.disk.storageClassName", "with false"),
    (pods_are_as_the_values_say, "templates/_helpers.tpl", "if $image.digest", "if false"),
    (changes_are_rolled_out, "templates/_sidecar.tpl", "(toJson .Values.podNetworks)", '""'),
    (changes_are_rolled_out, "templates/_sidecar.tpl", "checksum/store:", "#"),
    (changes_are_rolled_out, "templates/redis.yaml", "checksum/users:", "#"),
    (changes_are_rolled_out, "templates/balancer.yaml", "(toJson .Values.podNetworks)", "(toJson .Values)"),
    (releases_are_apart, "templates/_helpers.tpl", "app.kubernetes.io/instance: {{ (index . 0).Release.Name }}", ""),
    (releases_are_apart, "templates/network.yaml", 'include "mcp-resume.selector" (list $ "mcp-balancer")', ALL_BALANCERS),
    (releases_are_apart, "templates/monitoring.yaml", "app.kubernetes.io/instance: {{ $.Release.Name }}", ""),
    (releases_are_apart, "templates/monitoring.yaml", "%s(-.+)?", "mcp%.0s(-.+)?"),
    (releases_are_apart, "templates/services.yaml", "name: {{ $prefix }}-sidecars-metrics", "name: mcp-sidecars-metrics"),
    (an_existing_gateway_is_used, "templates/gateway.yaml", "if not $gateway.existing", "if true"),
    (a_secret_of_ones_own_is_used, "templates/redis.yaml", "if not $redis.existingSecret", "if true"),
    (a_secret_of_ones_own_is_used, "templates/_helpers.tpl", ".Values.store.redis.existingSecret", '"other"'),
    (listeners_have_tls, "templates/_helpers.tpl", "value: /etc/mcp-resume-tls/tls.key", "value: /etc/mcp-resume-tls/tls.pem"),
    (listeners_have_tls, "templates/_helpers.tpl", "with .clientCa", "with false"),
    (listeners_have_tls, "templates/_helpers.tpl", 'ternary "https" "http"', 'ternary "http" "http"'),
    (listeners_have_tls, "templates/_sidecar.tpl", 'include "mcp-resume.tlsVolume" .Values.sidecar.tls', 'print ""'),
    (listeners_have_tls, "templates/balancer.yaml", 'include "mcp-resume.tlsSettings" .Values.balancer.tls', 'print ""'),
    (listeners_have_tls, "templates/balancer.yaml", "- key: {{ $authority }}", "- key: tls.key"),
    (listeners_have_tls, "templates/balancer.yaml", "name: MCP_RESUME_BALANCE__TLS__KEY", "name: MCP_RESUME_BALANCE__TLS__CA_KEY"),
    (listeners_have_tls, "templates/balancer.yaml", ".Values.sidecar.tls.authority", '""'),
    (listeners_have_tls, "templates/services.yaml", "if $.Values.sidecar.tls.secret", "if false"),
    (listeners_have_tls, "templates/services.yaml", 'if include "mcp-resume.entranceTls" $', "if false"),
    (listeners_have_tls, "templates/ingress.yaml", '"HTTPS"', '"HTTP"'),
    (notes_warn, "templates/NOTES.txt", "BackendTLSPolicy", "policy"),
    (notes_warn, "templates/NOTES.txt", "if not .Values.networkPolicy.enabled", "if .Values.networkPolicy.enabled"),
    (own_deployments_have_services, "templates/_helpers.tpl", "toYaml .Values.server.podLabels", 'print "app: other"'),
    (own_deployments_have_services, "templates/_sidecar.tpl", '(eq .Values.store.kind "disk") (not .Values.server.enabled)', "false"),
]


def properties_hold(folder, mcp_resume):
    checks = {check: check for check, *_ in PROPERTIES}
    for check in (own_deployments_have_services, listeners_have_tls):
        checks[check] = partial(check, mcp_resume=mcp_resume)
    for name, check in checks.items():
        place = folder / name.__name__ / "mcp-resume"
        shutil.copytree(CHART, place)
        check(place)
    for name, *change in PROPERTIES:
        is_noticed(folder, *change, checks[name])
    print(f"deploy: {len(checks)} properties of the Helm chart hold, and {len(PROPERTIES)} changes of them are noticed")


def every_value_is_documented():
    """values.yaml and the schema have the same keys, and the schema admits no other."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    defaults = yaml.safe_load((CHART / "values.yaml").read_text()) | {"podNetworks": [], "global": {}}
    agree(schema, schema, defaults, "values")


def agree(root, schema, value, place):
    if "$ref" in schema:
        schema = root["definitions"][schema["$ref"].rsplit("/", 1)[1]]
    if "properties" not in schema:
        return
    require(schema["additionalProperties"] is False, f"the schema admits any key in {place}")
    for key, inner in schema["properties"].items():
        # Settings and resources have no defaults.
        require(not value or key in value or place.endswith(".resources"), f"values.yaml has no {place}.{key}")
        agree(root, inner, value.get(key) or {}, f"{place}.{key}")
    require(value.keys() <= schema["properties"].keys(), f"the schema does not have all of {place}")


def a_package_is_complete(folder):
    """A packaged chart renders the same."""
    values = completed("0123456789abcdef", *ADDITIONS[-1])
    archive = chart.package(CHART, destination=folder)
    require(rendered(archive, values) == rendered(CHART, values), "a package renders something else")


def generated_files_are_current():
    for name, text in generate.generated().items():
        require((CHART / name).read_text() == text, f"{name} is not the output of deploy/helm/generate.py: run it again")
    require({path.name for path in (CHART / "files").iterdir()} == generate.COPIES.keys(), "files/ has others than copies")


def main(kubectl, mcp_resume):
    version = re.search(r'^version = "(.+)"', (HERE.parent / "Cargo.toml").read_text(), re.M)[1]
    about = yaml.safe_load((CHART / "Chart.yaml").read_text())
    require(about["version"] == about["appVersion"] == version, f"the chart is not of version {version}")
    generated_files_are_current()
    every_value_is_documented()
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        kustomize = Kustomize(kubectl, folder)
        overlays_are_equal(kustomize, folder, mcp_resume)
        broken_charts_differ(kustomize, folder, mcp_resume)
        good_values_are_good(mcp_resume)
        bad_values_are_refused()
        properties_hold(folder, mcp_resume)
        a_package_is_complete(folder)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except Wrong as error:
        sys.exit(f"deploy/test/helm.py: {error}")
