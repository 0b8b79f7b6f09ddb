"""What the sources do not do, read from their syntax trees, and that no regular expression in them can be made slow."""

from __future__ import annotations

import ast
import importlib
import random
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import edl_agent

ROOT = Path(edl_agent.__file__).parents[1]
SOURCES = sorted([*ROOT.glob("edl_agent/**/*.py"), *ROOT.glob("edl_controller/**/*.py")])

MODULES = {
    "pickle", "cPickle", "_pickle", "cloudpickle", "dill", "marshal", "shelve", "jsonpickle", "joblib",
    "xmlrpc", "telnetlib", "ftplib", "docker", "podman", "requests",
}  # fmt: skip
"""Loaders that run what they load; clients of registries and others that nothing here has to talk to."""
CALLS = {
    "eval", "exec", "compile", "__import__", "os.system", "os.popen", "subprocess.getoutput",
    "subprocess.getstatusoutput", "tempfile.mktemp", "os.tempnam", "yaml.load_all", "yaml.unsafe_load",
    "yaml.unsafe_load_all", "yaml.full_load", "yaml.full_load_all", "ssl._create_unverified_context",
    "asyncio.create_subprocess_shell", "grpc.insecure_server_credentials", "logging.config.fileConfig",
    "logging.config.listen", "code.interact",
}  # fmt: skip
KEYWORDS = {
    ("shell", True),
    ("verify", False),
    ("verify_ssl", False),
    ("check_hostname", False),
    ("assert_hostname", False),
}
ALLOWED = {
    ("edl_agent/cli/certificate_expiry.py", "check_hostname"): "reads when a bad certificate ends, sends nothing",
    ("edl_agent/cli/certificate_expiry.py", "CERT_NONE"): "as above",
    ("edl_controller/machine/node/checks.py", "ssl._create_unverified_context"): "an HTTPS probe, as kubelets make it",
}


def dotted(node: ast.AST) -> str:
    """``a.b.c`` of a name or an attribute, else nothing."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        before = dotted(node.value)
        return f"{before}.{node.attr}" if before else ""
    return ""


def safe_loader(tree: ast.Module) -> set[str]:
    """Classes of a module that are made of ``yaml.SafeLoader``."""
    return {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and any(dotted(base).endswith("SafeLoader") for base in node.bases)
    } | {"yaml.SafeLoader", "yaml.CSafeLoader"}


def offences(source: str) -> Iterator[tuple[int, str]]:
    """Line and name of all that a source must not do."""
    tree = ast.parse(source)
    loaders = safe_loader(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, one.name) for one in node.names if one.name.partition(".")[0] in MODULES)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in MODULES:
            yield node.lineno, str(node.module)
        elif isinstance(node, ast.Attribute) and node.attr == "CERT_NONE":
            yield node.lineno, "CERT_NONE"
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and node.value.value is False:
            names = [dotted(target).rpartition(".")[2] for target in node.targets]
            yield from ((node.lineno, name) for name in names if (name, False) in KEYWORDS)
        elif isinstance(node, ast.Call):
            name = dotted(node.func)
            if name in CALLS:
                yield node.lineno, name
            given = {one.arg: one.value for one in node.keywords}
            if name == "yaml.load":
                loader = given.get("Loader") or (node.args[1] if len(node.args) > 1 else None)
                if loader is None or dotted(loader) not in loaders:
                    yield node.lineno, name
            for keyword, value in given.items():
                if isinstance(value, ast.Constant) and (keyword, value.value) in KEYWORDS:
                    yield node.lineno, f"{keyword}={value.value!r}"
        elif isinstance(node, ast.Assert) and not narrows(node.test):
            yield node.lineno, "assert"


def narrows(test: ast.expr) -> bool:
    """Whether an assertion only tells the type checker what is known: ``x is not None``, ``isinstance(x, T)``.

    ``python -O`` leaves assertions out, so nothing may depend on one.
    """
    if isinstance(test, ast.Call):
        return dotted(test.func) == "isinstance"
    return (
        isinstance(test, ast.Compare)
        and isinstance(test.ops[0], ast.IsNot)
        and isinstance(test.comparators[0], ast.Constant)
        and test.comparators[0].value is None
    )


@pytest.mark.parametrize(
    "bad",
    [
        "import pickle", "from marshal import loads", "eval ('1')", "import yaml; yaml.load(f)",
        "yaml.load(f, Loader=yaml.Loader)", "yaml.unsafe_load(f)", "subprocess.run(x, shell=True)",
        "Pool(verify=False)", "c.verify_ssl = False", "c.check_hostname = False", "ssl.CERT_NONE",
        "tempfile.mktemp()", "os.system('x')", "assert user.is_admin", "assert len(x) < 5",
    ],
)  # fmt: skip
def test_the_scan_finds_what_it_looks_for(bad: str) -> None:
    assert list(offences(bad))


@pytest.mark.parametrize(
    "good",
    [
        "yaml.safe_load(f)", "class L(yaml.SafeLoader): ...\nyaml.load(f, Loader=L)", "re.compile(x)",
        "subprocess.run([x])", "assert x is not None", "assert isinstance(x, int)", "'no pickle here'", "retrieval(x)",
    ],
)  # fmt: skip
def test_the_scan_leaves_the_rest_alone(good: str) -> None:
    assert not list(offences(good))


@pytest.mark.report("M58")
@pytest.mark.security(9)
@pytest.mark.security(18)
@pytest.mark.security(19)
def test_the_sources_load_nothing_that_runs_and_open_no_door() -> None:
    """No pickle, eval, unsafe YAML, shell, unchecked TLS, guessed file name; no client of an image registry."""
    assert len(SOURCES) > 250
    found = {(path.relative_to(ROOT).as_posix(), what) for path in SOURCES for _, what in offences(path.read_text())}
    assert found == set(ALLOWED)


# --- regular expressions ---


METHODS = ("fullmatch", "match", "search", "sub", "findall", "finditer", "split")


def used_as() -> dict[str, set[str]]:
    """Name of a compiled expression -> the methods that are called on it, anywhere."""
    found: dict[str, set[str]] = {}
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr in METHODS:
                found.setdefault(dotted(node.value).rpartition(".")[2], set()).add(node.attr)
    return found


def patterns() -> dict[tuple[str, str | bytes], set[str]]:
    """Every regular expression of both packages (module, text) and how it is used."""
    found: dict[tuple[str, str | bytes], set[str]] = {}
    used = used_as()
    for path in SOURCES:
        where, text = path.relative_to(ROOT).as_posix(), path.read_text()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and dotted(node.func) in {f"re.{method}" for method in METHODS}:
                first = node.args[0]
                if isinstance(first, ast.Constant) and isinstance(first.value, str | bytes):
                    found.setdefault((where, first.value), set()).add(dotted(node.func)[3:])
        if "re.compile" in text:
            module = importlib.import_module(where.removesuffix(".py").replace("/", ".").removesuffix(".__init__"))
            for name, value in vars(module).items():
                if isinstance(value, re.Pattern):
                    found.setdefault((where, value.pattern), set()).update(used.get(name, {"fullmatch"}))
    return found


def hostile_texts(pattern: str, length: int) -> list[str]:
    """Long texts for one expression: runs of what it names, with an end that lets the whole match fail."""
    dice = random.Random(pattern)
    letters = sorted({char for char in pattern if char.isalnum() or char in "./-_:@$(, +/\"' \\"})
    units = [*letters, "a", "0", "\0", "\n", "a-", "a.", "$(", "(a", "99999999/"]
    units += ["".join(dice.choice(letters or ["a"]) for _ in range(size)) for size in (2, 3, 5)]
    return [(unit * (length // len(unit) + 1))[:length] + end for unit in sorted(set(units)) for end in ("", "!")]


def seconds(text: str | bytes, methods: set[str], subject: str) -> float:
    """Of this thread's own time, for all that is done with an expression."""
    expression = re.compile(text)
    given: str | bytes = subject.encode() if isinstance(text, bytes) else subject
    begin = time.thread_time()
    for method in methods:
        run = getattr(expression, method)
        found = run(given[:0], given) if method == "sub" else run(given)
        if method == "finditer":
            for _ in found:
                pass
    return time.thread_time() - begin


@pytest.mark.security(20)
def test_every_regular_expression_is_linear() -> None:
    """100,000 characters in less than half a second of this thread's own time; most need a hundredth of that."""
    known = patterns()
    assert len(known) > 30
    slow = []
    for (where, text), methods in known.items():
        for subject in hostile_texts(str(text), 100_000):
            # A quadratic one is known by a tenth of the length already.
            spent = max(seconds(text, methods, subject[-10_000:]) * 10, seconds(text, methods, subject[-30_000:]) * 3.3)
            if spent < 0.5:
                spent = seconds(text, methods, subject)
            if spent > 0.5:
                slow.append(f"{where}: {text!r} ({methods}) takes {spent:.1f} s for {subject[:12]!r}...")
                break
    assert slow == []


@pytest.mark.security(20)
def test_a_slow_expression_would_be_found() -> None:
    """At a hundredth of the length already it takes a thousand times as long as a linear one."""
    pattern = re.compile(r"(a|aa)*b")
    begin = time.thread_time()
    pattern.fullmatch("a" * 27)
    assert time.thread_time() - begin > 0.01
