"""Engines' own modules, imported without what they need: some are the engine's files, as they are,
everything else of it is stood in for. Shared by the tools that hold tarn against a real engine
(vllm-boundaries.py, vllm-soak.py, vllm-mooncake.py, ascend-store.py), which are run by hand."""

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import os
import re
import sys
import traceback
import types

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tests", "python"))
import harness  # finds tarn

import tarn

# What decides a hit in vLLM.
BLOCK_MANAGER = {
    "vllm.utils.math_utils",
    "vllm.v1.kv_cache_interface",
    "vllm.v1.kv_cache_spec_registry",
    "vllm.v1.core.block_pool",
    "vllm.v1.core.kv_cache_coordinator",
    "vllm.v1.core.kv_cache_utils",
    "vllm.v1.core.single_type_kv_cache_manager",
}


class _AnyMeta(type):
    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _any_named(name)


class Anything(metaclass=_AnyMeta):
    """Stands in for whatever is asked of it: a base class, a function, a constant."""

    def __init__(self, *_, **__):
        pass

    def __call__(self, *_, **__):
        return Anything()

    def __class_getitem__(cls, _):
        return cls

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything()


def _any_named(name):
    return type(name, (Anything,), {})


class StandIn(types.ModuleType):
    """A module that has everything."""

    __path__ = ()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        # Options of vLLM's environment: none is set.
        setattr(self, name, None if self.__name__ == "vllm.envs" else _any_named(name))
        return getattr(self, name)


class Engine(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """The engine whose source is in `folder`. real: the modules that are its own; stand_ins: the
    packages whose other modules are stood in for. Importable as soon as it is made."""

    def __init__(self, name, folder, real, stand_ins):
        self.name, self.folder, self.real, self.stand_ins = name, folder, real, stand_ins
        sys.meta_path.insert(0, self)

    def path_of(self, name):
        path = os.path.join(self.folder, *name.split("."))
        package = os.path.join(path, "__init__.py")
        return package if os.path.exists(package) else path + ".py"

    def find_spec(self, name, path=None, target=None):
        if name in self.real and os.path.exists(self.path_of(name)):
            return importlib.util.spec_from_file_location(name, self.path_of(name))
        if name.split(".")[0] in self.stand_ins:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return StandIn(spec.name)

    def exec_module(self, module):
        pass

    def module(self, name, *members):
        """One of the real modules, which has these members. SystemExit: it is not there, or not
        what the tool was written for."""
        if not os.path.exists(self.path_of(name)):
            where = os.path.relpath(self.path_of(name), self.folder)
            sys.exit(f"{self.name} is not in {self.folder}, or its version is unknown: no {where}")
        try:
            module = importlib.import_module(name)
        except (ImportError, AttributeError, TypeError) as e:
            sys.exit(f"{self.name} in {self.folder}: {name} cannot be imported: {e}")
        for member in members:
            if not hasattr(module, member):
                sys.exit(
                    f"{self.name} in {self.folder} is of an unknown version: {name} has no "
                    f"{member}"
                )
        return module

    def stand_in(self, name, **members):
        """A module that is stood in for, with these members."""
        module = importlib.import_module(name)
        for member, value in members.items():
            setattr(module, member, value)
        return module


def vllm_of(folder, *more, stand_ins=("vllm", "torch", "typing_extensions")):
    """The vLLM of this folder, whose block manager is its own, and `more` modules."""
    engine = Engine("vLLM", folder, BLOCK_MANAGER | set(more), stand_ins)
    engine.module("vllm.v1.core.kv_cache_coordinator", "get_kv_cache_coordinator")
    managers = engine.module("vllm.v1.core.single_type_kv_cache_manager")
    registry = getattr(managers, "register_all_kvcache_specs", None)
    if registry is not None:
        registry(Anything())
    return engine


def known(call, **arguments):
    """The call with those of the arguments that this version has."""
    names = set(inspect.signature(call).parameters)
    return call(**{name: value for name, value in arguments.items() if name in names})


@contextlib.contextmanager
def expected(what):
    """SystemExit, by name, if an engine's class is not made as in the version that is known."""
    try:
        yield
    except (AttributeError, ImportError, TypeError) as e:
        traceback.print_exc(limit=-4)
        raise SystemExit(f"{what} is of an unknown version: {e}") from e


def leave(play):
    """Ends the process with what play() returns: engines' threads never end."""
    try:
        status = play()
    except KeyboardInterrupt:
        status = 130
    except SystemExit as e:
        status = e.code
        if isinstance(status, str):
            print(status, file=sys.stderr)
            status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def needs(**modules):
    """SystemExit, by name, if a module cannot be imported; modules: their packages. Or if there is
    no server."""
    for module, package in modules.items():
        try:
            importlib.import_module(module)
        except ImportError:
            sys.exit(f"{sys.executable} has no {module}: install {package} (Debian's name)")
    if not os.path.exists(harness.SERVER):
        sys.exit(f"no {harness.SERVER}: `make`, or name a tarn-server by TARN_SERVER")


def evicted_keys(server):
    """How many this harness.Server has evicted."""
    with tarn.Client(server.url) as client:
        return int(re.search(r"evicted_keys:(\d+)", client.command("INFO", "stats"))[1])


class Checks:
    """Counts what was looked at. Of what is wrong, the first twenty are printed."""

    def __init__(self):
        self.done = self.wrong = 0
        self.part = ""

    def ok(self, holds, *what):
        self.done += 1
        if not holds:
            self.wrong += 1
            if self.wrong <= 20:
                print(f"WRONG: {self.part}:", *what, flush=True)
        return bool(holds)

    def scene(self, part, play, *arguments):
        """Plays it; whatever it raises is wrong."""
        self.part, before, wrong = part, self.done, self.wrong
        try:
            said = play(*arguments)
        except Exception as e:  # whatever it is, the other parts go on
            said = None
            self.ok(False, repr(e))
            traceback.print_exc(limit=-4)
        what = f", {said}" if said else ""
        print(f"{part}: {self.done - before} checks, {self.wrong - wrong} wrong{what}", flush=True)

    def end(self):
        """Says how many; the exit status."""
        print(f"{self.done} checks, {self.wrong} wrong", flush=True)
        return 1 if self.wrong or not self.done else 0
