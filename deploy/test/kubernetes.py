"""Checks the objects that deploy/kubernetes builds: their schemas, their references by name, and the promises of the comments.
`kubernetes.py KUBECTL MCP-RESUME`.

The schemas are Kubernetes' own, strict, of the oldest supported and of the newest known version, and the Prometheus operator's. No cluster
takes part: the decisions of an API server (admission, quotas) are not checked.
"""

import base64
import copy
import json
import subprocess
import sys
import tempfile
import tomllib
from functools import cache
from pathlib import Path

import kubernetes_validate
import yaml
from cloudcoil.models.prometheus_operator import v1 as operator

import balances
import entrances
from entrances import Wrong, require

HERE = Path(__file__).resolve().parent.parent
# The requirement in deploy/README.md: native sidecars are on by default from 1.29, and a hook that sleeps from 1.30.
VERSIONS = ["1.30", "1.37"]
# The library reads its files again for each object.
kubernetes_validate.utils.schema_contents = cache(kubernetes_validate.utils.schema_contents)
CUSTOM = {"ServiceMonitor": operator.ServiceMonitor, "PrometheusRule": operator.PrometheusRule}
# Time for the server's own shutdown, after its sidecar has drained.
LEAST_REST_SECS = 30
# Time for calls that still run when new ones are refused.
LEAST_RUN_SECS = 120


# Lifetime of CoreDNS's cache, and interval of the balancer's lookups: all balancers know a new pod after both.
DNS_CACHE_SECS = 30
LOOKED_UP_SECS = 5
# The DNS servers: CoreDNS, or NodeLocal DNSCache on the node itself.
DNS_PLACES = [
    {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}}},
    {"ipBlock": {"cidr": "169.254.20.10/32"}},
]
DNS_PORTS = [(53, "UDP"), (53, "TCP")]
# A balancer's memory before its first stream, and for each stream.
BALANCER_MEMORY = 256 << 20
# The networks whose headers about clients are trusted. Only the cluster's operator knows its pod network; the tests use kubeadm's.
TRUSTED = "MCP_RESUME_LISTEN__TRUSTED_PROXIES"
PLACEHOLDER = "YOUR-POD-NETWORK"
POD_NETWORK = "10.244.0.0/16"
STREAM_MEMORY = 64 << 10


def build(kubectl, folder):
    run = subprocess.run([kubectl, "kustomize", folder], capture_output=True, text=True)
    require(run.returncode == 0 and not run.stderr, f"kustomize: {run.stderr}")
    return documents(run.stdout)


def documents(text):
    """The documents of a YAML text that are not empty, read by libyaml: the reader in Python takes ten times as long."""
    return [document for document in yaml.load_all(text, Loader=yaml.CSafeLoader) if document]


# Schemas


@cache
def fits_schema(text):
    thing = json.loads(text)
    if thing["kind"] in entrances.KEYS:
        return entrances.fits_list(thing)
    model = CUSTOM.get(thing["kind"])
    if model:
        return fits_model(model, thing)
    for version in VERSIONS:
        try:
            kubernetes_validate.validate(thing, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            raise Wrong(f"{version}: {'.'.join(map(str, error.path))}: {error.message}") from None


def fits_model(model, thing):
    """Detects unknown keys: the operator's models ignore them, so they are missing from the models' output."""
    said = model.model_validate(thing).model_dump(by_alias=True, exclude_unset=True, mode="json")
    require(said == thing, "has keys that its kind does not have")


# Names


class Objects:
    """All objects of an overlay, whose proxies trust the networks `pods`."""

    def __init__(self, things, pods=PLACEHOLDER):
        self.things = things
        self.pods_network = pods
        names = [(thing["kind"], thing["metadata"]["name"]) for thing in things]
        require(len(names) == len(set(names)), "two objects of one kind and name")

    def of(self, kind):
        return [thing for thing in self.things if thing["kind"] == kind]

    def named(self, kind, name):
        found = [thing for thing in self.of(kind) if thing["metadata"]["name"] == name]
        require(found, f"there is no {kind} {name}")
        return found[0]

    def workloads(self):
        return self.of("Deployment") + self.of("StatefulSet")

    def pods(self, labels):
        found = [work for work in self.workloads() if labels.items() <= work["spec"]["template"]["metadata"]["labels"].items()]
        require(found, f"no pod has the labels {labels}")
        return found


def containers(work):
    pod = work["spec"]["template"]["spec"]
    return pod.get("initContainers", []) + pod["containers"]


def ports(work):
    return {name for container in containers(work) for port in container.get("ports", []) for name in (port["name"], port["containerPort"])}


def mounts_and_environment_are_there(objects, work):
    pod = work["spec"]["template"]["spec"]
    volumes = {volume["name"] for volume in pod.get("volumes", [])}
    volumes |= {claim["metadata"]["name"] for claim in work["spec"].get("volumeClaimTemplates", [])}
    for volume in pod.get("volumes", []):
        for source in volume.get("projected", {}).get("sources", [volume]):
            if "configMap" in source:
                objects.named("ConfigMap", source["configMap"]["name"])
            if "secret" in source:
                secret = objects.named("Secret", source["secret"].get("name") or source["secret"]["secretName"])
                missing = {item["key"] for item in source["secret"].get("items", [])} - secret["data"].keys()
                require(not missing, f"the secret has no {missing}")
    for container in containers(work):
        used = {mount["name"] for mount in container.get("volumeMounts", [])}
        require(used <= volumes, f"{container['name']} mounts {used - volumes}, which are no volumes")
        for variable in container.get("env", []):
            for kind in ("Secret", "ConfigMap"):
                if key := variable.get("valueFrom", {}).get(f"{kind[0].lower()}{kind[1:]}KeyRef"):
                    require(key["key"] in objects.named(kind, key["name"])["data"], f"the {kind} has no {key['key']}")


def probes_and_hooks_reach_a_port(work):
    for container in containers(work):
        own = {port["name"] for port in container.get("ports", [])}
        # A probe by number may ask another container of the pod.
        own |= {port for port in ports(work) if isinstance(port, int)}
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            asked = container.get(probe, {})
            port = (asked.get("httpGet") or asked.get("tcpSocket") or {}).get("port")
            require(port is None or port in own, f"{probe} of {container['name']} asks port {port}")
        # A hook may ask another container of the pod, by number.
        port = container.get("lifecycle", {}).get("preStop", {}).get("httpGet", {}).get("port")
        require(port is None or port in ports(work), f"preStop of {container['name']} asks port {port}")


def selectors_find_pods(objects):
    for work in objects.workloads():
        require(work in objects.pods(work["spec"]["selector"]["matchLabels"]), "it does not select its own pods")
    for service in objects.of("Service"):
        for work in objects.pods(service["spec"]["selector"]):
            for port in service["spec"]["ports"]:
                require(port["targetPort"] in ports(work), f"service {service['metadata']['name']}: port {port['targetPort']}")
    for work in objects.of("StatefulSet"):
        objects.named("Service", work["spec"]["serviceName"])
    for budget in objects.of("PodDisruptionBudget"):
        objects.pods(budget["spec"]["selector"]["matchLabels"])
    for scaler in objects.of("HorizontalPodAutoscaler"):
        target = objects.named(scaler["spec"]["scaleTargetRef"]["kind"], scaler["spec"]["scaleTargetRef"]["name"])
        require("replicas" not in target["spec"], "a scaled workload has replicas, which every apply would reset")


def policies_name_pods_and_ports(objects):
    for policy in objects.of("NetworkPolicy"):
        spec = policy["spec"]
        protected = objects.pods(spec["podSelector"]["matchLabels"])
        for rule in spec.get("ingress", []):
            for work in protected:
                require(all(port["port"] in ports(work) for port in rule["ports"]), f"{policy['metadata']['name']}: {rule['ports']}")
        for rule in spec.get("ingress", []) + spec.get("egress", []):
            for peer in rule.get("from", []) + rule.get("to", []):
                if "podSelector" in peer:
                    objects.pods(peer["podSelector"]["matchLabels"])
            for work in [work for peer in rule.get("to", []) if "podSelector" in peer for work in objects.pods(peer["podSelector"]["matchLabels"])]:
                require(all(port["port"] in ports(work) for port in rule["ports"]), f"{policy['metadata']['name']}: {rule['ports']}")
    guarded = [work for policy in objects.of("NetworkPolicy") for work in objects.pods(policy["spec"]["podSelector"]["matchLabels"])]
    require(all(work in guarded for work in objects.workloads()), "pods without a policy")


def policies_let_names_be_asked(objects):
    """Checks that policies with restricted egress allow DNS at all its addresses. Pods without any egress need no DNS."""
    for policy in objects.of("NetworkPolicy"):
        rules = policy["spec"].get("egress", [])
        peers = [peer for rule in rules if DNS_PORTS == [(port["port"], port["protocol"]) for port in rule["ports"] if "protocol" in port] for peer in rule["to"]]
        require(not rules or all(place in peers for place in DNS_PLACES), f"{policy['metadata']['name']}: the DNS cannot be reached")


def monitors_find_services(objects):
    for monitor in objects.of("ServiceMonitor"):
        labels = monitor["spec"]["selector"]["matchLabels"]
        services = [service for service in objects.of("Service") if labels.items() <= service["metadata"]["labels"].items()]
        for endpoint in monitor["spec"]["endpoints"]:
            named = [service for service in services if endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}]
            require(named, f"no service has a port {endpoint['port']}")


# Promises


def pods_are_restricted(work):
    """Checks the restricted Pod Security Standard, and a read-only root."""
    pod = work["spec"]["template"]["spec"]
    context = pod["securityContext"]
    require(context["runAsNonRoot"] and context["runAsUser"] > 0, "it runs as root")
    require(context["seccompProfile"]["type"] == "RuntimeDefault", "it may make any system call")
    require(pod["automountServiceAccountToken"] is False, "it has a token of the cluster")
    for container in containers(work):
        own = container["securityContext"]
        require(own["readOnlyRootFilesystem"] is True and own["allowPrivilegeEscalation"] is False, container["name"])
        require(own["capabilities"] == {"drop": ["ALL"]}, f"{container['name']} has capabilities")
        require("memory" in container["resources"]["limits"], f"{container['name']} may take all memory")
        require(":" in container["image"].rsplit("/", 1)[-1], f"{container['image']} names no version")


def configured(mcp_resume, objects, work, container):
    """The container's environment and configuration file as the proxy reads them, and the file as TOML with the numbers of the environment."""
    pod = work["spec"]["template"]["spec"]
    [mount] = [mount for mount in container["volumeMounts"] if mount["mountPath"] == "/etc/mcp-resume"]
    [volume] = [volume for volume in pod["volumes"] if volume["name"] == mount["name"]]
    text = objects.named("ConfigMap", volume["configMap"]["name"])["data"]["mcp-resume.toml"]
    require(container["args"][1:] == ["--config", "/etc/mcp-resume/mcp-resume.toml"], container["args"])
    environment = {variable["name"]: value_of(objects, variable) for variable in container.get("env", [])}
    require(environment.get(TRUSTED) == objects.pods_network, f"it trusts other networks: {environment.get(TRUSTED)}")
    refuses_the_placeholder(mcp_resume, container["args"][0], text)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "mcp-resume.toml"
        file.write_text(text)
        places = written_secrets(objects, pod, container, Path(folder))
        here = {name: at_its_place(value, places) for name, value in environment.items()}
        is_taken(mcp_resume, container["args"][0], file, here | {TRUSTED: POD_NETWORK})
    config = tomllib.loads(text)
    for variable, value in environment.items():
        section, _, key = variable.removeprefix("MCP_RESUME_").lower().partition("__")
        if value.isdigit():
            config.setdefault(section, {})[key] = int(value)
    return config


def written_secrets(objects, pod, container, folder):
    """Writes the files of the Secrets that the container mounts: a folder for each mount, by its path in the container."""
    volumes = {volume["name"]: volume["secret"] for volume in pod["volumes"] if "secret" in volume}
    places = {}
    for mount in [mount for mount in container["volumeMounts"] if mount["name"] in volumes]:
        secret = volumes[mount["name"]]
        data = objects.named("Secret", secret["secretName"])["data"]
        place = places[mount["mountPath"]] = folder / mount["name"]
        place.mkdir()
        for item in secret.get("items", [{"key": key, "path": key} for key in data]):
            (place / item["path"]).write_bytes(base64.b64decode(data[item["key"]]))
    return places


def at_its_place(value, places):
    """The path of a file in one of the written folders; any other value as it is."""
    folder, _, name = value.rpartition("/")
    return str(places[folder] / name) if folder in places else value


@cache
def refuses_the_placeholder(mcp_resume, role, file_text):
    """Checks that no proxy starts before the network of the pods is set, and that its error names the key."""
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(file_text)
        file.flush()
        try:
            is_taken(mcp_resume, role, file.name, {TRUSTED: PLACEHOLDER})
        except Wrong as error:
            require(TRUSTED in str(error) and PLACEHOLDER in str(error), f"the error does not name the key: {error}")
            return
    raise Wrong("a proxy starts before the network of the pods is set")


def is_taken(mcp_resume, role, file, environment):
    if role == "balance":
        refusal = balances.refusal(mcp_resume, file, environment)
        require(refusal is None, refusal)
        return
    run = subprocess.run([mcp_resume, "check", "--config", file], env=environment, capture_output=True, text=True)
    require(role == "serve" and run.returncode == 0, run.stderr)


def value_of(objects, variable):
    source = variable.get("valueFrom", {})
    if key := source.get("secretKeyRef"):
        secret = objects.named("Secret", key["name"])["data"][key["key"]]
        return base64.b64decode(secret).decode()
    if key := source.get("configMapKeyRef"):
        return objects.named("ConfigMap", key["name"])["data"][key["key"]]
    return "mcp-server-7d4b9c-x2x" if "fieldRef" in source else variable["value"]


def sidecars_outlive_their_server(mcp_resume, objects):
    for work in objects.workloads():
        pod = work["spec"]["template"]["spec"]
        for sidecar in pod.get("initContainers", []):
            require(sidecar.get("restartPolicy") == "Always", f"{sidecar['name']} is no sidecar, but must end before the server starts")
            config = configured(mcp_resume, objects, work, sidecar)
            require(sidecar["startupProbe"]["httpGet"]["path"] == "/livez", "it would wait for a server that waits for it")
            [server] = pod["containers"]
            hook = server["lifecycle"]["preStop"]["httpGet"]
            admin = int(config["admin"]["address"].rsplit(":", 1)[1])
            require(hook["path"] == "/drain" and hook["port"] == admin, "the server does not wait for the drain")
            require({"name": "X-Drain", "value": "1"} in hook["httpHeaders"], "without X-Drain there is no drain")
            delay = config["replica"]["drain_delay_secs"]
            require(min(delay, work["spec"]["minReadySeconds"]) > DNS_CACHE_SECS + LOOKED_UP_SECS, "a rollout is faster than DNS")
            for probe in ("startupProbe", "livenessProbe"):
                # An existing server keeps its own probes, if any.
                is_theirs = is_added(work) and probe not in server
                asks = server.get(probe, {}).get("httpGet")
                require(is_theirs or asks == {"path": "/upstreamz", "port": admin}, f"{probe} of the server")
            # The timeout counts from the beginning, like the delay.
            timeout = config["replica"]["drain_timeout_secs"]
            require(timeout - delay >= LEAST_RUN_SECS, f"a call that runs when new ones are refused has {timeout - delay} s")
            needed = timeout + LEAST_REST_SECS
            require(pod["terminationGracePeriodSeconds"] >= needed, f"killed before {needed} s: in the drain")
            held = config.get("streams", {}).get("max_bytes_total", 1 << 30)
            require(bytes_of(sidecar["resources"]["limits"]["memory"]) >= 2 * held, "less memory than it may need")


def is_added(work):
    """True if the sidecar was added to an existing Deployment."""
    return work["metadata"].get("labels", {}).get("app.kubernetes.io/part-of") != "mcp-resume"


def proxies_listen_where_they_are_asked(mcp_resume, objects):
    for work in objects.workloads():
        for container in containers(work):
            if container["name"] != "mcp-resume":
                continue
            config = configured(mcp_resume, objects, work, container)
            listens = {port["name"]: port["containerPort"] for port in container["ports"]}
            keys = [("mcp", "listen", "address"), ("admin", "admin", "address"), ("metrics", "admin", "metrics_address")]
            for name, section, key in keys:
                said = config[section].get(key)
                require(said == (f"0.0.0.0:{listens[name]}" if name in listens else None), f"[{section}] {key} is not port {name}")
            require("trusted_proxies" not in config["listen"], "trusted networks are set in two places")


def balancers_end_in_time(mcp_resume, objects):
    for work in objects.of("Deployment"):
        pod = work["spec"]["template"]["spec"]
        for balancer in [container for container in pod["containers"] if container.get("args", [""])[0] == "balance"]:
            config = configured(mcp_resume, objects, work, balancer)
            grace = config["balance"]["grace_secs"]
            memory = BALANCER_MEMORY + config["limits"]["connections"] * STREAM_MEMORY
            require(bytes_of(balancer["resources"]["limits"]["memory"]) >= memory, "less memory than its streams may need")
            needed = balancer["lifecycle"]["preStop"]["sleep"]["seconds"] + grace
            require(pod["terminationGracePeriodSeconds"] > needed, f"killed before {needed} s: with responses in flight")


def balancers_find_the_sidecars(objects):
    for config in objects.of("ConfigMap"):
        text = config["data"].get("mcp-resume.toml", "")
        if "[balance]" not in text:
            continue
        [replica] = tomllib.loads(text)["balance"]["replicas"]
        scheme, _, address = replica.partition("://")
        host, port = address.split(":")
        service = objects.named("Service", host)
        require(int(port) in {port["port"] for port in service["spec"]["ports"]}, f"{host} has no port {port}")
        require(service["spec"]["clusterIP"] == "None", "all sidecars share one address")
        require(service["spec"]["publishNotReadyAddresses"] is True, "a draining replica cannot be found")
        sidecars = objects.pods(service["spec"]["selector"])
        require(all(has_tls(work) == (scheme == "https") for work in sidecars), f"the balancer asks sidecars by {scheme}")


def has_tls(work):
    """True if the proxy in these pods has a certificate for its listener."""
    [proxy] = [container for container in containers(work) if container["name"] == "mcp-resume"]
    return "MCP_RESUME_LISTEN__TLS__CERT" in {variable["name"] for variable in proxy["env"]}


def services_name_their_protocol(objects):
    for service in objects.of("Service"):
        for port in [port for port in service["spec"]["ports"] if port["name"] == "mcp"]:
            said = port.get("appProtocol") == "https"
            pods = objects.pods(service["spec"]["selector"])
            require(all(has_tls(work) == said for work in pods), f"service {service['metadata']['name']} has another protocol than its pods")


def nothing_is_all_in_one_place(objects):
    for work in objects.workloads():
        if is_added(work) or all(container["name"] != "mcp-resume" for container in containers(work)):
            continue
        spread = {rule["topologyKey"]: rule["labelSelector"] for rule in work["spec"]["template"]["spec"]["topologySpreadConstraints"]}
        require(spread.keys() == {"kubernetes.io/hostname", "topology.kubernetes.io/zone"}, "pods may all be on one node, or in one zone")
        require(all(selector["matchLabels"] == work["spec"]["selector"]["matchLabels"] for selector in spread.values()), "spread by others' labels")
        budgets = [budget for budget in objects.of("PodDisruptionBudget") if work in objects.pods(budget["spec"]["selector"]["matchLabels"])]
        require([budget["spec"].get("maxUnavailable") for budget in budgets] == [1], "several may be evicted at a time")


def metrics_that_are_scaled_by_exist(objects):
    documented = (HERE.parent / "docs" / "balancer.md").read_text()
    for scaler in objects.of("HorizontalPodAutoscaler"):
        require({"cpu", "memory"} <= {metric["resource"]["name"] for metric in scaler["spec"]["metrics"] if "resource" in metric}, "CPU alone")
        for metric in [metric["pods"]["metric"]["name"] for metric in scaler["spec"]["metrics"] if "pods" in metric]:
            require(f"`{metric.removeprefix('mcp_resume_balancer_')}`" in documented, f"there is no metric {metric}")


def bytes_of(quantity):
    units = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}
    return int(quantity[:-2]) * units[quantity[-2:]]


def check(mcp_resume, things, pods=PLACEHOLDER):
    """Runs all checks; ends with the first fault."""
    for thing in things:
        try:
            fits_schema(json.dumps(thing))
        except Exception as error:
            raise Wrong(f"{thing['kind']} {thing['metadata']['name']}: {error}") from None
    objects = Objects(things, pods)
    for work in objects.workloads():
        mounts_and_environment_are_there(objects, work)
        probes_and_hooks_reach_a_port(work)
        pods_are_restricted(work)
    selectors_find_pods(objects)
    policies_name_pods_and_ports(objects)
    policies_let_names_be_asked(objects)
    monitors_find_services(objects)
    sidecars_outlive_their_server(mcp_resume, objects)
    proxies_listen_where_they_are_asked(mcp_resume, objects)
    balancers_end_in_time(mcp_resume, objects)
    balancers_find_the_sidecars(objects)
    services_name_their_protocol(objects)
    nothing_is_all_in_one_place(objects)
    metrics_that_are_scaled_by_exist(objects)
    entrances.check(objects)


# Changes that the checks must refuse, as (kind, path to a value, new value; None removes it). Deployments mean the server's, maps the
# balancer's.
SIDECAR = (HERE / "kubernetes" / "base-sidecar" / "mcp-resume.toml").read_text()
BALANCER = (HERE / "kubernetes" / "balancer" / "mcp-resume.toml").read_text()
INGRESS = yaml.safe_load((HERE / "kubernetes" / "components" / "ingress" / "ingress.yaml").read_text())["metadata"]["annotations"]
BROKEN = [
    ("Deployment", "spec.template.spec.initContainers.0.restartPolicy", "Sometimes"),
    ("Deployment", "spec.template.spec.initContainers.0.startupProbe.httpGet.path", "/readyz"),
    ("Deployment", "spec.template.spec.initContainers.0.livenessProbe.httpGet.port", "metric"),
    ("Deployment", "spec.template.spec.initContainers.0.readinesProbe", {}),
    ("Deployment", "spec.template.spec.initContainers.0.env.0.name", "MCP_RESUME_REPLICA__NAMES"),
    ("Deployment", "spec.template.spec.initContainers.0.resources.limits.memory", "1Gi"),
    ("Deployment", "spec.template.spec.initContainers.0.volumeMounts.0.name", "configs"),
    ("Deployment", "spec.template.spec.containers.0.securityContext.readOnlyRootFilesystem", False),
    ("Deployment", "spec.template.spec.containers.0.lifecycle.preStop.httpGet.path", "/readyz"),
    ("Deployment", "spec.template.spec.containers.0.livenessProbe.httpGet.path", "/readyz"),
    ("Deployment", "spec.template.spec.containers.0.livenessProbe", None),
    ("Deployment", "spec.template.spec.containers.0.startupProbe", None),
    ("Deployment", "spec.template.spec.topologySpreadConstraints", []),
    ("Deployment", "spec.minReadySeconds", 5),
    ("Deployment", "spec.template.spec.terminationGracePeriodSeconds", 30),
    ("Deployment", "spec.template.spec.volumes.0.configMap.name", "mcp-sidecars"),
    ("Deployment", "spec.selector.matchLabels", {"app": "other"}),
    ("ConfigMap", "data", {"mcp-resume.toml": BALANCER.replace("grace_secs", "grace")}),
    ("ConfigMap", "data", {"mcp-resume.toml": BALANCER.replace("grace_secs = 30", "grace_secs = 60")}),
    ("ConfigMap", "data", {"mcp-resume.toml": BALANCER.replace("mcp-sidecars", "mcp-server")}),
    ("ConfigMap", "data", {"mcp-resume.toml": BALANCER.replace("connections = 10_240", "connections = 20_480")}),
    ("ConfigMap", "data", {"mcp-resume.toml": BALANCER.replace("[balance]", 'trusted_proxies = ["10.0.0.0/8"]\n[balance]')}),
    ("ConfigMap/mcp-sidecar", "data", {"mcp-resume.toml": SIDECAR.replace("drain_delay_secs = 40", "drain_delay_secs = 30")}),
    ("ConfigMap/mcp-sidecar", "data", {"mcp-resume.toml": SIDECAR.replace("drain_delay_secs = 40", "drain_delay_secs = 50")}),
    ("ConfigMap/mcp-sidecar", "data", {"mcp-resume.toml": SIDECAR.replace("drain_timeout_secs = 160", "drain_timeout_secs = 120")}),
    ("ConfigMap/mcp-sidecar", "data", {"mcp-resume.toml": SIDECAR.replace("drain_timeout_secs = 160", "drain_timeout_secs = 170")}),
    ("ConfigMap/mcp-network", "data", {"pods": "10.0.0.0/8,172.16.0.0/12"}),
    ("ConfigMap/mcp-network", "data", {"pods": ""}),
    ("ConfigMap/mcp-network", "data", {"nodes": "YOUR-POD-NETWORK"}),
    ("Service", "spec.ports.0.targetPort", 8081),
    ("Service", "spec.ports.0.targetPort", 9464),
    ("Ingress", "metadata.annotations", {}),
    ("Ingress", "metadata.annotations", {key: value for key, value in INGRESS.items() if "snippet" not in key}),
    ("HTTPRoute", "spec.rules.0.filters.0.requestHeaderModifier.remove", ["Forwarded"]),
    ("HTTPRoute", "spec.rules.0.filters", []),
    ("Ingress", "spec.rules.0.http.paths.0.backend.service.port.name", "admin"),
    ("HTTPRoute", "spec.rules.0.backendRefs.0.port", 8080),
    ("HTTPRoute", "spec.rules.0.timeouts.request", "60s"),
    ("HTTPRoute", "spec.rules.0.timeout", "60s"),
    ("ClientSettingsPolicy", "spec.body.maxSize", "1m"),
    ("Gateway", "spec.listeners.0.hostname", "other.example.com"),
    ("Service", "spec.publishNotReadyAddresses", "yes"),
    ("PodDisruptionBudget", "spec.selector.matchLabels", {"app": "other"}),
    ("PodDisruptionBudget", "spec.maxUnavailable", 2),
    ("NetworkPolicy", "spec.podSelector.matchLabels", {"app": "other"}),
    ("NetworkPolicy", "spec.ingress.0.ports.0.port", 9466),
    # The server's admin port, which would allow callers to drain it.
    ("NetworkPolicy/mcp-server", "spec.ingress.0.ports.0.port", 9464),
    ("NetworkPolicy/mcp-server", "spec.ingress.0.ports", []),
    ("NetworkPolicy/mcp-balancer", "spec.egress.1.to.1.ipBlock.cidr", "169.254.20.0/32"),
    ("NetworkPolicy/mcp-balancer", "spec.egress.1.to.0", {"podSelector": {"matchLabels": {"app.kubernetes.io/name": "mcp-server"}}}),
    ("NetworkPolicy/mcp-balancer", "spec.egress.1.ports.0.protocol", "TCP"),
    ("NetworkPolicy/mcp-balancer", "spec.egress.1.ports.1.port", 8053),
    ("HorizontalPodAutoscaler", "spec.metrics.2.pods.metric.name", "mcp_resume_balancer_clients"),
    ("HorizontalPodAutoscaler", "spec.scaleTargetRef.name", "mcp-server"),
    ("StatefulSet", "spec.template.spec.volumes.0.projected.sources.1.secret.items.0.key", "acl"),
    ("ServiceMonitor", "spec.endpoints.0.port", "metric"),
    ("ServiceMonitor", "spec.endpoints.0.intervall", "15s"),
    ("PrometheusRule", "spec.groups.0.rules.0.for", 5),
]


def broken(things, kind, path, value):
    things = copy.deepcopy(things)
    kind, _, name = kind.partition("/")
    meant = name or {"Deployment": "mcp-server", "ConfigMap": "mcp-balancer"}.get(kind, "")
    place = next(thing for thing in things if thing["kind"] == kind and thing["metadata"]["name"].startswith(meant))
    *way, last = path.split(".")
    for step in way:
        place = place[int(step)] if step.isdigit() else place[step]
    last = int(last) if last.isdigit() else last
    if value is None:
        del place[last]
    else:
        place[last] = value
    return things


def broken_variants_are_refused(mcp_resume, things, pods=PLACEHOLDER):
    for kind, path, value in BROKEN:
        try:
            check(mcp_resume, broken(things, kind, path, value), pods)
        except Wrong:
            continue
        raise Wrong(f"{kind} {path} = {json.dumps(value)} is accepted")
    print(f"deploy: {len(BROKEN)} broken variants are refused")


def hooks_stay(kubectl):
    """Checks that the sidecar component replaces no existing lifecycle of a server: it fails, or keeps it for the label."""
    overlay = HERE / "kubernetes" / "overlays" / "existing-deployment"
    own = {"preStop": {"exec": {"command": ["/bin/flush"]}}}
    require(server_of(kubectl, overlay, "own-hook", own)["lifecycle"] == own, "the server's own hook is lost")
    require("lifecycle" in server_of(kubectl, overlay, "true", None), "a server without a hook does not wait for the drain")
    for lifecycle in (own, {"postStart": own["preStop"]}):
        try:
            server_of(kubectl, overlay, "true", lifecycle)
        except Wrong as error:
            require("containers/0/lifecycle failed" in str(error), error)
            continue
        raise Wrong("the server's own hook is replaced")
    print("deploy: a server keeps a lifecycle of its own")


def server_of(kubectl, overlay, label, lifecycle):
    """The server's container after the sidecar was added to a Deployment with this label and lifecycle."""
    things = list(yaml.safe_load_all((overlay / "your-deployment.yaml").read_text()))
    [deployment] = [thing for thing in things if thing["kind"] == "Deployment"]
    deployment["metadata"]["labels"]["mcp-resume/sidecar"] = label
    deployment["spec"]["template"]["spec"]["containers"][0] |= {"lifecycle": lifecycle} if lifecycle else {}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "given.yaml").write_text(yaml.safe_dump_all(things))
        text = {"resources": ["given.yaml"], "components": [f"{relative_from(folder)}/components/sidecar"]}
        (Path(folder) / "kustomization.yaml").write_text(yaml.safe_dump(text))
        [built] = [thing for thing in build(kubectl, folder) if thing["kind"] == "Deployment"]
    pod = built["spec"]["template"]["spec"]
    require([container["name"] for container in pod.get("initContainers", [])] == ["mcp-resume"], f"no sidecar by the label {label}")
    return pod["containers"][0]


def relative_from(folder):
    """The relative path to kubernetes/, since kustomize accepts no absolute one."""
    return Path(*[".."] * (len(Path(folder).resolve().parts) - 1)) / (HERE / "kubernetes").relative_to("/")


def with_components(kubectl, overlay, *components):
    """The overlay with additional resources, in a folder with relative paths, as kustomize requires."""
    with tempfile.TemporaryDirectory() as folder:
        relative = relative_from(folder)
        text = {"resources": [f"{relative}/overlays/{overlay}"], "components": [f"{relative}/components/{name}" for name in components]}
        (Path(folder) / "kustomization.yaml").write_text(yaml.safe_dump(text))
        return build(kubectl, folder)


def main(kubectl, mcp_resume):
    overlays = sorted((HERE / "kubernetes" / "overlays").iterdir())
    require(overlays, "there are no overlays")
    built = [(overlay.name, build(kubectl, overlay)) for overlay in overlays]
    extended = [("sessionless-redis", "gateway"), ("with-balancer-redis", "scale-on-connections", "ingress", "gateway")]
    built += [(" with ".join(names), with_components(kubectl, *names)) for names in extended]
    monitoring = build(kubectl, HERE / "kubernetes" / "monitoring")
    for name, things in built:
        # An existing Deployment has no services for the monitoring.
        monitored = monitoring if name != "existing-deployment" else []
        try:
            check(mcp_resume, things)
            check(mcp_resume, things + monitored)
        except Wrong as error:
            raise Wrong(f"{name}: {error}") from None
        kinds = sorted({thing["kind"] for thing in things})
        print(f"deploy: kubernetes/overlays/{name} is good: {len(things)} objects ({', '.join(kinds)})")
    hooks_stay(kubectl)
    broken_variants_are_refused(mcp_resume, things + monitoring)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except Wrong as error:
        sys.exit(f"deploy/test/kubernetes.py: {error}")
