"""JSON schemas of Kubernetes and of the Prometheus operator, which npm has."""

import copy
import json
import os
import shutil
import subprocess

import manifests

HERE = os.path.dirname(os.path.abspath(__file__))
PLACE = os.path.join(manifests.ROOT, "build/npm")


def install(skip):
    if not shutil.which("npm"):
        raise skip("npm is not installed")
    os.makedirs(PLACE, exist_ok=True)
    shutil.copy(os.path.join(HERE, "package.json"), PLACE)
    if os.path.isdir(os.path.join(PLACE, "node_modules/kubernetes-models/_schemas")):
        return
    done = subprocess.run(
        "npm install --ignore-scripts --no-audit --no-fund --no-package-lock".split(),
        cwd=PLACE, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    if done.returncode:
        raise skip(f"npm install: {done.stderr.strip().splitlines()[-1:]}")


def mistakes(objects):
    done = subprocess.run(
        ["node", os.path.join(HERE, "schemas.js"), os.path.join(PLACE, "node_modules")],
        input="\n".join(json.dumps(o, default=str) for o in objects),
        capture_output=True,
        text=True,
    )
    assert done.stdout and not done.stderr, done.stderr
    return done.stdout.splitlines()[:-1]


def check(objects, skip):
    install(skip)
    found = mistakes(objects)
    assert not found, "\n".join(sorted(set(found)))
    # That it would have found some: a name that is misspelt, a value of another kind.
    broken = copy.deepcopy(next(o for o in objects if o["kind"] == "DaemonSet"))
    pod = broken["spec"]["template"]["spec"]
    pod["hostPid"] = True
    pod["containers"][0]["ports"][0]["containerPort"] = "many"
    found = mistakes([broken])
    assert len(found) == 2, found
