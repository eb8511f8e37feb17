"""What no schema sees: names that nobody has, labels that nobody selects."""

import re

NO_HOOK = {"exec": {"command": []}}


def pods(objects):
    """Of each object that makes pods: itself, and the template."""
    return [(o, o["spec"]["template"]) for o in objects if "template" in o.get("spec", {})]


def selects(selector, labels):
    for e in selector.get("matchExpressions", []):
        assert e["operator"] == "In", e
        if labels.get(e["key"]) not in e["values"]:
            return False
    return all(labels.get(k) == v for k, v in selector.get("matchLabels", {}).items())


def is_open(template, port):
    """By name or number."""
    return any(
        port in (p["name"], p["containerPort"])
        for c in template["spec"]["containers"]
        for p in c["ports"]
    )


def check_data_ports(by_kind):
    """A node has one for each of at most 64 masters, from --data-port on."""
    for maps in by_kind.get("ConfigMap", []):
        for first in re.findall(r"--data-port (\d+)", maps["data"].get("node.sh", "")):
            policy = next(
                o for o in by_kind["NetworkPolicy"] if o["metadata"]["name"] == "tarn-node"
            )
            ports = [p for rule in policy["spec"]["ingress"] for p in rule["ports"]]
            assert {"port": int(first), "endPort": int(first) + 63} in ports, ports


def check_pod(name, template, by_kind, version):
    spec = template["spec"]
    volumes = {v["name"]: v for v in spec.get("volumes", [])}
    config_maps = {o["metadata"]["name"]: o["data"] for o in by_kind.get("ConfigMap", [])}
    secrets = {o["metadata"]["name"]: o["stringData"] for o in by_kind.get("Secret", [])}
    claimed = {
        c["metadata"]["name"]
        for o in by_kind.get("StatefulSet", [])
        if o["metadata"]["name"] == name
        for c in o["spec"].get("volumeClaimTemplates", [])
    }
    used = set()
    for c in spec["containers"] + spec.get("initContainers", []):
        image, _, tag = c["image"].rpartition(":")
        assert image, f"{name}: {c['image']} has no tag"
        assert image != "tarn" or tag == version, f"{name}: {c['image']}, the Makefile: {version}"
        for mount in c.get("volumeMounts", []):
            used.add(mount["name"])
            assert (mount["name"] in volumes) != (mount["name"] in claimed), f"{name}: {mount}"
        for variable in c.get("env", []):
            ref = variable.get("valueFrom", {}).get("configMapKeyRef")
            known = ref is None or ref.get("optional") or ref["key"] in config_maps[ref["name"]]
            assert known, f"{name}: {ref}"
        for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
            probe = c.get(kind, {})
            what = probe.get("httpGet") or probe.get("tcpSocket")
            assert not probe or is_open(template, what["port"]), f"{name}: {kind}"
        words = (
            c.get("args", []) + c.get("lifecycle", {}).get("preStop", NO_HOOK)["exec"]["command"]
        )
        for word in words:
            if word.startswith("/etc/tarn/"):
                config = config_maps[volumes["config"]["configMap"]["name"]]
                assert word.rpartition("/")[2] in config, f"{name}: there is no {word}"
    assert used == set(volumes) | claimed, f"{name}: volumes {set(volumes) | claimed}, used {used}"
    for volume in volumes.values():
        if "configMap" in volume:
            assert volume["configMap"]["name"] in config_maps, f"{name}: {volume}"
        ref = volume.get("secret", {})
        if ref and not ref.get("optional"):
            keys = secrets[ref["secretName"]]
            for item in ref.get("items", []):
                assert item["key"] in keys, f"{name}: {item}"


def check(objects, secrets, version):
    objects = objects + secrets
    by_kind = {}
    for o in objects:
        by_kind.setdefault(o["kind"], []).append(o)
        assert o["metadata"].get("namespace") == "tarn", f"{o['metadata']} is in no namespace"
    made = pods(objects)
    labels = {o["metadata"]["name"]: t["metadata"]["labels"] for o, t in made}
    for o, t in made:
        name = o["metadata"]["name"]
        assert selects(o["spec"]["selector"], labels[name]), f"{name} does not select its own"
        check_pod(name, t, by_kind, version)
        if o["kind"] == "StatefulSet":
            service = next(
                s for s in by_kind["Service"] if s["metadata"]["name"] == o["spec"]["serviceName"]
            )
            assert service["spec"]["clusterIP"] == "None"
            for i in range(o["spec"]["replicas"]):
                labels[f"{name}-{i}"] = {"statefulset.kubernetes.io/pod-name": f"{name}-{i}"}
    templates = {o["metadata"]["name"]: t for o, t in made}
    for service in by_kind["Service"]:
        selector = {"matchLabels": service["spec"]["selector"]}
        who = [n for n, l in labels.items() if selects(selector, l)]
        assert who, f"nobody has the labels of {service['metadata']['name']}"
        for port in service["spec"]["ports"]:
            template = templates.get(who[0]) or templates[who[0].rpartition("-")[0]]
            assert is_open(template, port["port"]), f"{service['metadata']['name']}: {port}"
    for kind in ("PodDisruptionBudget", "NetworkPolicy"):
        for o in by_kind.get(kind, []):
            name = f"{kind} {o['metadata']['name']}"
            who = [
                t
                for n, t in templates.items()
                if selects(o["spec"].get("selector") or o["spec"].get("podSelector"), labels[n])
            ]
            assert who, f"{name} is for nobody"
            for rule in o["spec"].get("ingress", []):
                for port in rule["ports"]:
                    assert any(is_open(t, port["port"]) for t in who), f"{name}: {port}"
    check_data_ports(by_kind)
    for monitor in by_kind.get("ServiceMonitor", []):
        services = [
            s
            for s in by_kind["Service"]
            if selects(monitor["spec"]["selector"], s["metadata"]["labels"])
        ]
        assert len(services) == 1, f"{monitor['metadata']['name']} finds {services}"
        ports = {p["name"] for p in services[0]["spec"]["ports"]}
        assert {e["port"] for e in monitor["spec"]["endpoints"]} <= ports
