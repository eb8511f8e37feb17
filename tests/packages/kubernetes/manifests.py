"""Renders packaging/kubernetes with kubectl."""

import glob
import os
import re
import shutil
import subprocess
import tempfile

import yaml

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
SOURCE = os.path.join(ROOT, "packaging/kubernetes")
OVERLAYS = ["one-node", "nodes", "ha", "full"]


def is_old():
    """Debian 12's kubectl has a kustomize from before components and resources that are folders."""
    said = subprocess.run(
        ["kubectl", "version", "--client", "-o", "yaml"], capture_output=True, text=True, check=True
    ).stdout
    return int(re.search(r'minor: "?(\d+)', said)[1]) < 21


def for_old(folder, tree, bases=()):
    """Says the same as a chain of overlays, which that one understands: resources, a component over
    the other, all else. The last one's folder."""
    with open(os.path.join(SOURCE, folder, "kustomization.yaml")) as f:
        now = yaml.safe_load(f)
    beside = lambda name: os.path.normpath(os.path.join(folder, name))
    resources = now.pop("resources", [])
    below = list(bases) + [for_old(beside(r), tree) for r in resources if r[-5:] != ".yaml"]
    files = [r for r in resources if r[-5:] == ".yaml"]
    below = [overlay(folder, tree, below, {"resources": files})]
    for component in now.pop("components", []):
        below = [for_old(beside(component), tree, below)]
    now["patchesStrategicMerge"] = [p["path"] for p in now.pop("patches", [])]
    return overlay(folder, tree, below, now)


def overlay(folder, tree, bases, words):
    """With these words, and the files of a folder."""
    place = tempfile.mkdtemp(dir=tree)
    for path in glob.glob(os.path.join(SOURCE, folder, "*.*")):
        shutil.copy(path, place)
    words = {**words, "kind": "Kustomization", "bases": [os.path.relpath(b, place) for b in bases]}
    words["apiVersion"] = "kustomize.config.k8s.io/v1beta1"
    with open(os.path.join(place, "kustomization.yaml"), "w") as f:
        yaml.safe_dump(words, f)
    return place


def render(overlay):
    """The objects, as dictionaries."""
    with tempfile.TemporaryDirectory() as tree:
        folder = for_old(overlay, tree) if is_old() else os.path.join(SOURCE, overlay)
        done = subprocess.run(["kubectl", "kustomize", folder], capture_output=True, text=True)
    if done.returncode or done.stderr.strip():
        raise AssertionError(f"kubectl kustomize {overlay}: {done.stderr}")
    return [o for o in yaml.safe_load_all(done.stdout) if o]


def version():
    """Of the Makefile."""
    with open(os.path.join(ROOT, "Makefile")) as f:
        return re.search(r"^VERSION := (.+)$", f.read(), re.M)[1]


def engines():
    objects = []
    for path in sorted(glob.glob(os.path.join(SOURCE, "engine/*.yaml"))):
        with open(path) as f:
            objects += [o for o in yaml.safe_load_all(f) if o]
    return objects


def secrets():
    """tarn-users and tarn-engine."""
    made = subprocess.run(
        [os.path.join(SOURCE, "make-secret.sh")], capture_output=True, text=True, check=True
    )
    return list(yaml.safe_load_all(made.stdout))
