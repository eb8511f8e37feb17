#!/usr/bin/python3
"""The manifests of packaging/kubernetes, rendered, checked, and run.

Rendered by kubectl; checked against the schemas of the npm package kubernetes-models, unknown
fields included, and for what no schema sees: labels that nobody selects, names that nobody has.
Then the pods run, each in a network and a file system of its own, with the commands, variables,
files and probes of the manifests: the books move to another server, addresses of Sentinels change,
a node is drained, and no value is lost.
"""

import os
import sys
import traceback

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(HERE, "kubernetes"))

passed, failed, skipped = 0, [], []


class Skip(Exception):
    pass


def check(name, test):
    global passed
    try:
        test()
        passed += 1
        print(f"ok   {name}", flush=True)
    except Skip as why:
        skipped.append(name)
        print(f"skip {name}: {why}", flush=True)
    except Exception:  # pylint: disable=broad-except
        failed.append(name)
        traceback.print_exc(file=sys.stdout)
        print(f"FAIL {name}", flush=True)


def run_pods(pods, overlay):
    why = pods.why_not()
    if why:
        raise Skip(why)
    live = os.path.join(HERE, "kubernetes/live.py")
    status = pods.in_own_namespaces([sys.executable, "-B", live, overlay])
    assert status == 0, f"the pods of {overlay}: status {status}"


def main():
    try:
        import yaml  # noqa: F401
    except ImportError:
        print("python3-yaml is not installed")
        return 77
    import manifests
    import pods
    import schemas
    import static

    try:
        rendered = {name: manifests.render(name) for name in manifests.OVERLAYS}
    except FileNotFoundError:
        print("kubectl is not installed")
        return 77
    secrets, version = manifests.secrets(), manifests.version()
    names = lambda objects: static.check(objects, secrets, version)
    for name, objects in rendered.items():
        check(f"{name}: names and labels", lambda objects=objects: names(objects))
    everything = [o for objects in rendered.values() for o in objects]
    everything += manifests.engines() + secrets
    check("schemas", lambda: schemas.check(everything, Skip))
    for name in manifests.OVERLAYS:
        check(f"{name}: pods", lambda name=name: run_pods(pods, name))
    print(f"{passed} passed, {len(failed)} failed, {len(skipped)} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
