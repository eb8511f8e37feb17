#!/usr/bin/env python3
"""Runs tests that were built by `make`, and adds them up.

    tools/run-tests.py --build build/release --kind release GROUP...
    tools/run-tests.py --build build/release --only 'integration/put*' integration

Groups: unit transport fuzz stress integration python docs robust chaos ha packages. A suite is a
test program, a Tcl or a Python file, in packages a script. Several run at a time, JOBS of them
(four for each core: most of them wait more than they compute), those first that take long.

A suite closes with the line "N passed, M failed" (", K skipped" may follow). A crash, silence of
HANG_S, a missing closing line, a program that was not built and a sanitizer's report count as one
failure each. A script of packages needs no closing line: its status tells, 77 of one that was
skipped, whose last line is the reason. What failed is tried once more, alone, when all others are
done: if that succeeds it is named as flaky, and counts as passed. Output is shown of failures only.
After the ten slowest suites the last line is the sum; the status is 1 when anything failed twice.

Tests find their surroundings in the environment: TARN_SERVER, TARN_NODE, TARN_BENCHMARK, TARN_KV,
TARN_LIB, TARN_FAULT (a library to preload), TARN_SANITIZER (empty, or the kind), TMPDIR (a new
directory, removed afterwards; KEEP=1 keeps it), STRESS_SECONDS. PYTHON says which Python
(Debian's), TCL_ARGS and PYTHON_TESTS name some of the files, TEST_UNDER the words of an emulator
that runs test programs, TARN_TEST_TIMES a file that gets a line for each suite: seconds, seconds of
processor time, how it went, kind, name."""

import argparse
import concurrent.futures
import fnmatch
import glob
import os
import random
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# The one limit, against what would never end; no suite is silent for this long because a machine is
# busy.
HANG_S = 900
CLOSING = re.compile(r"^(\d+) passed, (\d+) failed(?:, (\d+) skipped)?$", re.M)
# A child of fork starts a thread where one of its parent was: ThreadSanitizer wonders, and goes on.
NO_REPORT = re.compile(r"^==\d+==ThreadSanitizer: dup thread with used id .*\n?", re.M)
NOT_SHOWN_FROM = 120  # lines of output from which only failures and the end are shown


class Suite:
    """What is run as one process, and how that went."""

    def __init__(self, name, argv, env=None):
        self.name, self.argv, self.env = name, argv, env or {}
        self.passed = self.failed = self.skipped = 0
        self.began = self.seconds = self.cpu_seconds = 0.0  # began: 0 until it runs
        self.why, self.output, self.reports = [], "", []
        self.flaky = False
        self.closes = True  # with "N passed, M failed"


class Surroundings:
    """What all suites of a run share: directories, environment, options of the sanitizers."""

    def __init__(self, build, kind):
        self.build = os.path.join(ROOT, build)
        self.kind = kind
        self.work = tempfile.mkdtemp(prefix="tarn-test.")
        os.makedirs(os.path.join(self.work, "tmp"))
        os.chmod(self.work, 0o711)  # some tests are somebody else for a moment
        in_build = lambda *path: os.path.join(self.build, *path)
        self.under = os.environ.get("TEST_UNDER", "").split()
        # What tests start is started without the emulator.
        program = lambda name: os.path.join(ROOT, "build/release" if self.under else build, name)
        self.env = dict(
            os.environ,
            TARN_SERVER=program("tarn-server"),
            TARN_NODE=program("tarn-node"),
            TARN_BENCHMARK=program("tarn-benchmark"),
            TARN_CHECK=program("tarn-check"),
            TARN_RDMA_FAKE=in_build("tests/fake_verbs/rdma.so"),
            TARN_MODULES=in_build("modules"),
            TARN_KV=in_build("tests/tools/kv"),
            TARN_LIB=in_build("libtarn.so"),
            TARN_FAULT=in_build("tests/fault/preload.so"),
            TARN_SANITIZER="" if kind == "release" else kind,
            TMPDIR=os.path.join(self.work, "tmp"),
            RUNTIME_DIRECTORY=os.path.join(
                self.work, "tmp"
            ),  # sockets of whoever says no other place
            STRESS_SECONDS=os.environ.get("STRESS_SECONDS", "10"),
            FUZZ_MUTATIONS=os.environ.get("FUZZ_MUTATIONS", "2000"),
            PYTHONDONTWRITEBYTECODE="1",
        )
        # ThreadSanitizer of gcc 12 does not start where the kernel randomises more address bits
        # than it knows. What is started here does not outlive us, however we end.
        self.prefix = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
        if (
            kind == "thread"
            and subprocess.run(["setarch", "-R", "true"], stderr=subprocess.DEVNULL).returncode == 0
        ):
            self.prefix += ["setarch", "-R"]
        self.prefix += self.under

    def sanitizer_options(self, reports):
        if self.kind == "release":
            return {}
        log = f"log_path={os.path.join(reports, 'report')}"
        # gcc 12 takes a module's thread-local block that begins 16 bytes into a page for one of an
        # older glibc, and looks for leaks wherever what stands before it points to.
        options = {
            "ASAN_OPTIONS": "detect_leaks=1:detect_stack_use_after_return=1:strict_string_checks=1"
            f":allocator_may_return_null=1:intercept_tls_get_addr=0:{log}",
            "LSAN_OPTIONS": f"suppressions={ROOT}/tools/lsan.supp:print_suppressions=0",
            "UBSAN_OPTIONS": f"print_stacktrace=1:halt_on_error=1:{log}",
            "TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1:"
            f"suppressions={ROOT}/tools/tsan.supp:{log}",
        }
        for name in options:
            if name in os.environ:
                options[name] += ":" + os.environ[name]
        return options

    def python(self):
        """The words that start Python, and its environment: with the libraries of the sanitizers
        where libtarn has them. Python's own leaks are not ours to judge; programs that its tests
        start get the options that all others have."""
        found = shutil.which(os.environ.get("PYTHON", "/usr/bin/python3")) or "python3"
        if self.kind == "release":
            return [found], {}
        names = ["libasan.so", "libubsan.so"] if self.kind == "address" else ["libubsan.so"]
        compiler = shlex.split(os.environ.get("CC", "gcc"))
        ask = lambda name: subprocess.run(
            [*compiler, f"-print-file-name={name}"], stdout=subprocess.PIPE, text=True, check=True
        )
        return [found], {
            "LD_PRELOAD": ":".join(ask(n).stdout.strip() for n in names),
            "PYTHON_UNDER_SANITIZER": "1",
        }


# --- suites


def built(around, group):
    """Programs that `make` wrote down as to be there: what is missing is not overlooked."""
    with open(os.path.join(around.build, "tests.list"), encoding="utf-8") as f:
        return [line.strip().partition(":")[2] for line in f if line.startswith(group + ":")]


def program_suites(around, group):
    prefix = os.path.relpath(around.build, ROOT) + "/tests/"
    size = lambda path: os.path.getsize(os.path.join(ROOT, "tests", path[len(prefix) :] + ".c"))
    for path in sorted(built(around, group), key=size, reverse=True):
        name = path[len(prefix) :] if path.startswith(prefix) else path
        argv = [os.path.join(ROOT, path)]
        if group == "fuzz":
            base = os.path.basename(path)[: -len("_fuzz")]
            seeds = os.path.join(ROOT, "tests/fuzz/seeds", base)
            name, argv = f"fuzz/{base}", argv + ([seeds] if os.path.isdir(seeds) else [])
        yield Suite(name, argv)


def largest_first(paths):
    return sorted(paths, key=lambda path: -os.path.getsize(path))


def tcl_suites(_around, _group):
    files = os.environ.get("TCL_ARGS", "").split() or glob.glob(
        os.path.join(ROOT, "tests/integration/*_test.tcl")
    )
    for path in largest_first(files):
        name = os.path.basename(path)[: -len("_test.tcl")]
        yield Suite(f"integration/{name}", ["tclsh", os.path.abspath(path)])


# What calls libtarn has suites of its own: client, batch, views, kv_groups, queue, host, transfer,
# cluster of utils/python/tarn. What stands above them, connectors of engines, gateway, pages and
# demo, is Python: to C it does what they do, and takes half the time of all of them. So a sanitizer
# sees those that are ABOVE only of FOR_EACH: one of each engine, two that drive conductor.so.
ABOVE = (
    "breaker_test chain_test conductor_page_test demo_test docs_test figures_test gateway_* "
    "identity_test install_test keys_test kv_names_test kv_router_test lmcache_* mooncake_* "
    "page_test routing_docs_test sglang_* stand_in_* vllm_*"
).split()
FOR_EACH = (
    "gateway_conductor_test lmcache_l2_test mooncake_engine_test mooncake_store_test sglang_test "
    "vllm_ascend_test vllm_groups_test"
).split()


def is_left_out(around, name):
    above = any(fnmatch.fnmatch(name, pattern) for pattern in ABOVE)
    return around.kind != "release" and above and name not in FOR_EACH


def python_suites(around, _group):
    if around.kind == "thread":
        print("skip  python  ThreadSanitizer does not load into a Python that was built without it")
        return
    here = os.path.join(ROOT, "tests/python")
    names = os.environ.get("PYTHON_TESTS", "").split()
    paths = [os.path.join(here, re.sub(r"\.py$", "", n) + ".py") for n in names]
    start, env = around.python()
    for path in largest_first(paths or glob.glob(os.path.join(here, "*_test.py"))):
        name = os.path.basename(path)[: -len(".py")]
        if not names and is_left_out(around, name):
            continue
        yield Suite(f"python/{name}", [*start, os.path.join(here, "run.py"), name], env)
    if not names:
        yield Suite(
            "python/ctypes", [*start, os.path.join(ROOT, "tests/integration/ctypes_test.py")], env
        )


def docs_suites(around, _group):
    check = os.path.join(ROOT, "tools/check-docs.tcl")
    yield Suite("docs", ["tclsh", check, "--server", around.env["TARN_SERVER"]])
    pages = os.path.join(ROOT, "tools/check-pages.py")
    yield Suite("docs/pages", [sys.executable, pages, "--build", around.build])


def robust_suites(_around, _group):
    env = {"ROBUST_SECONDS": os.environ.get("ROBUST_SECONDS", "60")}
    for path in glob.glob(os.path.join(ROOT, "tests/integration/robust_*_test.tcl")):
        yield Suite(os.path.basename(path)[: -len("_test.tcl")], ["tclsh", path], env)


def chaos_suites(around, _group):
    program = os.path.join(around.build, "tests/stress/chaos_stress")
    for seed in os.environ.get("CHAOS_SEEDS", "1 2 3 4").split():
        yield Suite(f"chaos/seed {seed}", [program], {"STRESS_SEED": seed})
    # The books and the cluster in another order of all that happens than `make test` knows, which
    # each try draws anew: what is found so is mended next, and does not stop what is not its cause.
    draw = lambda: str(random.getrandbits(32))
    for room in ("store", "cluster"):
        model = os.path.join(around.build, "tests/unit", room, "model_test")
        for number in (1, 2, 3):
            yield Suite(f"chaos/{room} {number}", [model], {"MODEL_HASH": draw})


def ha_suites(around, _group):
    yield Suite("ha", ["tclsh", os.path.join(ROOT, "tests/ha/ha_test.tcl")])
    start, env = around.python()
    kills = os.environ.get("CONDUCTOR_KILLS", "4")
    name = "conductor_failover_test"
    argv = [*start, os.path.join(ROOT, "tests/python/run.py"), name]
    yield Suite("ha/conductor", argv, dict(env, CONDUCTOR_KILLS=kills))


def packages_suites(_around, _group):
    for path in sorted(glob.glob(os.path.join(ROOT, "tests/packages/*.[sp][hy]"))):
        if os.access(path, os.X_OK):
            suite = Suite(os.path.relpath(path, os.path.join(ROOT, "tests")), [path])
            suite.closes = False
            yield suite


GROUPS = {
    "packages": packages_suites,
    "ha": ha_suites,
    "chaos": chaos_suites,
    "robust": robust_suites,
    "stress": program_suites,
    "docs": docs_suites,
    "python": python_suites,
    "integration": tcl_suites,
    "fuzz": program_suites,
    "transport": program_suites,
    "unit": program_suites,
}

# Begun first of all: they wait for long, which neither their group nor their size tells.
LONG = (
    "integration/node_wire",
    "integration/replication",
    "python/lending*_test",
    "fuzz/client_server",
    "unit/client/re*_test",
    "unit/pool/ssd_tier*_test",
    "unit/rdma/passive_test",
    "unit/repl/link_test",
)


def is_long(suite):
    return any(fnmatch.fnmatch(suite.name, pattern) for pattern in LONG)


# --- running one

RUNNING = set()  # process groups: a suite, and what it has started
LOCK = threading.Lock()


def end_group(group):
    """Ends a suite's processes, and nothing else."""
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        pass


def follow(process, out_path):
    """Waits for the end; its status and what it used, or None if nothing was said for HANG_S."""
    size, heard, pause = -1, time.monotonic(), 0.01
    while True:
        pid, status, used = os.wait4(process.pid, os.WNOHANG)
        if pid:
            process.returncode = os.waitstatus_to_exitcode(status)
            return process.returncode, used.ru_utime + used.ru_stime
        now, new = time.monotonic(), os.path.getsize(out_path)
        if new != size:
            size, heard = new, now
        elif now - heard > HANG_S:
            end_group(process.pid)
            process.wait()
            return None, 0.0
        time.sleep(pause)
        pause = min(2 * pause, 0.5)


def judge(suite, status):
    """Counts what it printed, and says what else is wrong with how it ended."""
    lines = CLOSING.findall(suite.output)
    if lines:
        suite.passed, suite.failed, suite.skipped = (int(n or 0) for n in lines[-1])
    if status is None:
        suite.why.append(f"silent for {HANG_S} s")
    elif status < 0:
        suite.why.append(f"died of {signal.Signals(-status).name}")
    elif not suite.closes and not lines and status in (0, 77):
        suite.passed, suite.skipped = int(status == 0), int(status == 77)
        suite.output += "no reason\n" if not suite.output.strip() else ""
    elif not lines:
        suite.why.append(f"status {status} and no closing line")
    elif status and not suite.failed:
        suite.why.append(f"status {status}")
    if suite.reports:
        suite.why.append("a sanitizer's report")
    suite.failed += len(suite.why)


def run_suite(suite, around):
    suite.began = began = time.monotonic()
    suite.passed = suite.failed = suite.skipped = 0
    suite.why, suite.reports, suite.output = [], [], ""
    if not os.access(suite.argv[0], os.X_OK) and "/" in suite.argv[0]:
        suite.why, suite.failed = ["not built"], 1
        return suite
    place = tempfile.mkdtemp(dir=around.work)
    drawn = {name: value() for name, value in suite.env.items() if callable(value)}
    env = {**around.env, **around.sanitizer_options(place), **suite.env, **drawn}
    if env.pop("PYTHON_UNDER_SANITIZER", None):
        env["TARN_ASAN_OPTIONS"] = env["ASAN_OPTIONS"]
        env["ASAN_OPTIONS"] = env["ASAN_OPTIONS"].replace("detect_leaks=1", "detect_leaks=0")
    out_path = os.path.join(place, "out")
    with open(out_path, "wb") as out:
        process = subprocess.Popen(
            around.prefix + suite.argv,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=env,
            cwd=ROOT,
            start_new_session=True,
        )
        with LOCK:
            RUNNING.add(process.pid)
        status, suite.cpu_seconds = follow(process, out_path)
        end_group(process.pid)
        with LOCK:
            RUNNING.discard(process.pid)
    with open(out_path, encoding="utf-8", errors="replace") as f:
        suite.output = f.read() + "".join(f"{name}={value}\n" for name, value in drawn.items())
    for path in sorted(glob.glob(os.path.join(place, "report*"))):
        with open(path, encoding="utf-8", errors="replace") as f:
            suite.reports += [text for text in [NO_REPORT.sub("", f.read())] if text.strip()]
    judge(suite, status)
    suite.seconds = time.monotonic() - began
    return suite


# --- what is said


def shown(suite):
    """What matters of a failed suite's output."""
    lines = suite.output.splitlines()
    if len(lines) > NOT_SHOWN_FROM:
        keep, left = [], 0
        for line in lines:
            if re.match(r"not ok|FAIL", line):
                left = 16
            elif re.match(r"ok ", line):
                left = 0
            if left > 0:
                keep.append(line)
                left -= 1
        lines = keep[:200] + ["..."] + lines[-25:]
    for report in suite.reports:
        lines += report.splitlines()[:60]
    return "".join(f"    | {line}\n" for line in lines)


def say(suite, note=""):
    counts = f"{suite.passed} passed"
    counts += f", {suite.failed} failed" if suite.failed else ""
    counts += f", {suite.skipped} skipped" if suite.skipped else ""
    why = f"  ({'; '.join(suite.why)})" if suite.why else ""
    if suite.skipped and not suite.closes:
        why += f"  ({suite.output.splitlines()[-1]})"
    print(
        f"{'FAIL' if suite.failed else 'ok  '}  {suite.name}  {counts}{why}  "
        f"{suite.seconds:.1f}s{note}",
        flush=True,
    )
    if suite.failed:
        print(shown(suite), end="", flush=True)


def show_state(n, left):
    """On a terminal, one line that is written over: how many are done, and what has been running
    for longest."""
    running = sorted((s for s in left if s.began), key=lambda s: s.began)
    if sys.stdout.isatty() and running:
        names = ", ".join(f"{s.name} {time.monotonic() - s.began:.0f} s" for s in running)
        print(
            f"{n - len(left)} of {n} done; {names}"[: shutil.get_terminal_size().columns - 1],
            end="",
            flush=True,
        )


def hide_state():
    if sys.stdout.isatty():
        print("\r\033[K", end="", flush=True)


def write_times(suites, kind):
    if "TARN_TEST_TIMES" not in os.environ:
        return
    with open(os.environ["TARN_TEST_TIMES"], "a", encoding="utf-8") as f:
        for s in suites:
            how = "failed" if s.failed else "flaky" if s.flaky else "ok"
            f.write(f"{s.seconds:.1f}\t{s.cpu_seconds:.1f}\t{how}\t{kind}\t{s.name}\n")


def keep_crashes(around):
    """Inputs that a fuzz target died of outlive the run."""
    for path in glob.glob(os.path.join(around.work, "tmp", "*-crash-*")):
        os.makedirs(os.path.join(around.build, "crash"), exist_ok=True)
        shutil.copy(path, os.path.join(around.build, "crash"))
        print(f"kept: {around.build}/crash/{os.path.basename(path)}")


def run_all(suites, around, jobs):
    with concurrent.futures.ThreadPoolExecutor(max(jobs, 1)) as pool:
        left = {pool.submit(run_suite, s, around): s for s in suites}
        while left:
            done, _ = concurrent.futures.wait(left, 1, concurrent.futures.FIRST_COMPLETED)
            hide_state()
            for future in done:
                say(left.pop(future))
                future.result()
            show_state(len(suites), list(left.values()))
        hide_state()
    for suite in suites:
        if suite.failed and suite.why != ["not built"]:
            print(f"again, alone: {suite.name}", flush=True)
            first = suite.seconds
            suite.flaky = run_suite(suite, around).failed == 0
            say(suite, "  FLAKY: it failed before" if suite.flaky else "")
            suite.seconds += first


def summary(suites, began):
    cpu = sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
    print(
        f"slowest of {len(suites)} suites, all in {time.monotonic() - began:.0f} s, {cpu:.0f} s of "
        "processor time:"
    )
    for suite in sorted(suites, key=lambda s: -s.seconds)[:10]:
        print(f"  {suite.seconds:6.1f} s, {suite.cpu_seconds:6.1f} s computing  {suite.name}")
    flaky = [s.name for s in suites if s.flaky]
    if flaky:
        print(f"flaky: {', '.join(flaky)}")
    passed, failed, skipped = (
        sum(getattr(s, what) for s in suites) for what in ("passed", "failed", "skipped")
    )
    print(f"{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else ""))
    return 1 if failed or not passed + skipped else 0


def interrupted(number, _frame):
    for group in list(RUNNING):
        end_group(group)
    os._exit(128 + number)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--build", default="build/release")
    parser.add_argument("--kind", default="release")
    parser.add_argument("--only", default="*", help="a glob for names of suites")
    parser.add_argument("groups", nargs="+", choices=list(GROUPS))
    options = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupted)
    began = time.monotonic()
    around = Surroundings(options.build, options.kind)
    try:
        groups = [g for g in GROUPS if g in options.groups]
        suites = [
            s for g in groups for s in GROUPS[g](around, g) if fnmatch.fnmatch(s.name, options.only)
        ]
        suites.sort(key=is_long, reverse=True)
        run_all(suites, around, int(os.environ.get("JOBS", 4 * (os.cpu_count() or 1))))
        keep_crashes(around)
        write_times(suites, options.kind)
        return summary(suites, began)
    finally:
        if not os.environ.get("KEEP"):
            shutil.rmtree(around.work, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
