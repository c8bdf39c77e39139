"""Checks access in deploy/kubernetes: services, policies, and the entrances from outside. Called by kubernetes.py with all objects of an
overlay.

The Gateway API and NGINX Gateway Fabric have no schemas here: the keys of their objects are compared with a list.
"""

import re
from fnmatch import fnmatch

from forwarded import removed

# limits.body_bytes in nginx's notation.
BODY = "16m"
# Headers that the controller sets and the Ingress must not set again; and the largest number of names in a filter of the Gateway API.
SET_BY_INGRESS_NGINX = {"X-Forwarded-Scheme"}
MOST_REMOVED = 16
ADMIN_PORT = 9464
ADMIN_NAMES = {ADMIN_PORT, "admin"}
# The allowed keys as paths, without the indices of lists.
KEYS = {
    "Gateway": {
        "spec.gatewayClassName", "spec.listeners.name", "spec.listeners.protocol", "spec.listeners.port", "spec.listeners.hostname",
        "spec.listeners.tls.mode", "spec.listeners.tls.certificateRefs.kind", "spec.listeners.tls.certificateRefs.name",
    },
    "HTTPRoute": {
        "spec.parentRefs.name", "spec.hostnames", "spec.rules.matches.path.type", "spec.rules.matches.path.value",
        "spec.rules.filters.type", "spec.rules.filters.requestHeaderModifier.remove", "spec.rules.timeouts.request", "spec.rules.timeouts.backendRequest", "spec.rules.backendRefs.name", "spec.rules.backendRefs.port",
    },
    "ClientSettingsPolicy": {"spec.targetRef.group", "spec.targetRef.kind", "spec.targetRef.name", "spec.body.maxSize"},
}
VERSIONS = {
    "Gateway": "gateway.networking.k8s.io/v1",
    "HTTPRoute": "gateway.networking.k8s.io/v1",
    "ClientSettingsPolicy": "gateway.nginx.org/v1alpha1",
}


class Wrong(Exception):
    pass


def require(holds, what):
    if not holds:
        raise Wrong(what)


def fits_list(thing):
    kind = thing["kind"]
    require(thing["apiVersion"] == VERSIONS[kind], f"{kind} of {thing['apiVersion']}")
    unknown = {path for path in paths(thing["spec"], "spec")} - KEYS[kind]
    require(not unknown, f"{kind} has no {', '.join(sorted(unknown))}")


def paths(value, at):
    if isinstance(value, dict):
        return [path for key, inner in value.items() for path in paths(inner, f"{at}.{key}")]
    if isinstance(value, list):
        return [path for inner in value for path in paths(inner, at)]
    return [at]


def check(objects):
    only_the_kubelet_may_drain(objects)
    admin_ports_are_no_clients(objects)
    ways_in_lead_to_the_service(objects)


def has_sidecar(work):
    return any(container["name"] == "mcp-resume" for container in work["spec"]["template"]["spec"].get("initContainers", []))


def only_the_kubelet_may_drain(objects):
    """Checks the admin port. The kubelet's requests come from the node and pass any policy; a container's own stay in the pod."""
    for work in filter(has_sidecar, objects.workloads()):
        for policy in objects.of("NetworkPolicy"):
            if work not in objects.pods(policy["spec"]["podSelector"]["matchLabels"]):
                continue
            for rule in policy["spec"].get("ingress", []):
                opened = {port["port"] for port in rule.get("ports", [])}
                require(opened and not opened & ADMIN_NAMES, f"{policy['metadata']['name']} opens the admin port of a sidecar")


def admin_ports_are_no_clients(objects):
    for service in objects.of("Service"):
        targets = {port["targetPort"] for port in service["spec"]["ports"]}
        name = service["metadata"]["name"]
        require(not targets & (ADMIN_NAMES | {9465}) or name.endswith("-metrics"), f"service {name} leads clients to the admin port")
        if name.endswith("-metrics"):
            require(not any(has_sidecar(work) for work in objects.pods(service["spec"]["selector"])) or ADMIN_PORT not in targets,
                    f"service {name} leads to where a drain is asked for")


def ways_in_lead_to_the_service(objects):
    for ingress in objects.of("Ingress"):
        said = {key.rsplit("/", 1)[1]: value for key, value in ingress["metadata"].get("annotations", {}).items()}
        require(said.get("proxy-body-size") == BODY, "an Ingress refuses bodies that the proxy accepts")
        require(said.get("proxy-buffering") == "off", "an Ingress buffers events")
        require("non_idempotent" not in said.get("proxy-next-upstream", ""), "an Ingress sends a tool call twice")
        cleared = set(re.findall(r'^proxy_set_header ([\w-]+) +"";$', said.get("configuration-snippet", ""), re.M))
        require(cleared == set(removed()) - SET_BY_INGRESS_NGINX, "an Ingress forwards a client's claims, or sets a header twice")
        for rule in ingress["spec"]["rules"]:
            require(any(rule["host"] in tls["hosts"] for tls in ingress["spec"]["tls"]), f"{rule['host']} has no certificate")
            for path in rule["http"]["paths"]:
                backend = path["backend"]["service"]
                port = leads_to(objects, backend["name"], "name", backend["port"]["name"])
                tls = port.get("appProtocol") == "https"
                require((said.get("backend-protocol") == "HTTPS") == tls, "an Ingress has another protocol than its service")
    for route in objects.of("HTTPRoute"):
        for parent in route["spec"]["parentRefs"]:
            gateway = objects.named("Gateway", parent["name"])
            hosts = [listener["hostname"] for listener in gateway["spec"]["listeners"]]
            require(all(any(fnmatch(host, pattern) for pattern in hosts) for host in route["spec"]["hostnames"]), "no listener for the route")
            bodies = [policy for policy in objects.of("ClientSettingsPolicy") if policy["spec"]["targetRef"]["name"] == parent["name"]]
            require([policy["spec"]["body"]["maxSize"] for policy in bodies] == [BODY], "a Gateway refuses bodies that the proxy accepts")
        for rule in route["spec"]["rules"]:
            [taken] = [each["requestHeaderModifier"]["remove"] for each in rule.get("filters", []) if each["type"] == "RequestHeaderModifier"] or [[]]
            require(set(taken) == set(removed()), "a Gateway forwards a client's claims")
            require(len(taken) <= MOST_REMOVED, "a Gateway filter has too many names")
            require(set(rule["timeouts"].values()) == {"0s"}, "a route limits the duration of streams")
            for backend in rule["backendRefs"]:
                leads_to(objects, backend["name"], "port", backend["port"])


def leads_to(objects, name, key, value):
    ports = [port for port in objects.named("Service", name)["spec"]["ports"] if port[key] == value]
    require(ports, f"service {name} has no port {value}")
    return ports[0]
