"""Write docs/reference.md from the docstrings of the public names (``make reference``); ``--check`` compares."""

import enum
import importlib
import inspect
import sys
from pathlib import Path

WRITTEN_WITH = (3, 11)
HERE = Path(__file__).parent
MODULES = (
    "edl_agent",
    "edl_agent.tasks",
    "edl_agent.checkpoints",
    "edl_agent.testing",
    "edl_controller",
    "edl_controller.errors",
)
HEAD = """# Reference

Written by `make reference` from the docstrings; `make check` compares. Do not edit by hand.

The pages that explain: [agent.md](agent.md), [tasks.md](tasks.md), [checkpoints.md](checkpoints.md),
[membership-report-drain.md](membership-report-drain.md), [training-jobs.md](training-jobs.md).
"""


def text_of(thing: object) -> str:
    """The docstring as a block that Markdown shows as it stands."""
    text = inspect.getdoc(thing) or ""
    return f"```text\n{text}\n```\n" if "\n" in text else f"{text}\n"


def signature_of(thing: object) -> str:
    """The parameters, without the addresses that some defaults have in their repr."""
    try:
        signature = inspect.signature(thing)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return ""
    parameters = [
        one.replace(annotation=one.empty, default=one.default if "0x" not in repr(one.default) else "...")
        for one in signature.parameters.values()
        if one.name != "self"
    ]
    return str(signature.replace(parameters=parameters, return_annotation=signature.empty))


def members_of(kind: type) -> list[tuple[str, object]]:
    """Public methods and properties that are documented, also the inherited ones of our own classes."""
    found = []
    for name, member in inspect.getmembers(kind):
        plain = member.fget if isinstance(member, property) else member
        ours = (getattr(plain, "__module__", None) or "").startswith(("edl_agent", "edl_controller"))
        if not name.startswith("_") and ours and inspect.getdoc(plain):
            found.append((name, member))
    return found


def section(name: str, thing: object) -> str:
    """One public name."""
    if not callable(thing):
        return f"### `{name}`\n\n`{thing!r}`\n"
    error = isinstance(thing, type) and issubclass(thing, BaseException)
    plain = error or (isinstance(thing, type) and issubclass(thing, enum.Enum))
    lines = [f"### `{name}{'' if plain else signature_of(thing)}`\n", text_of(thing)]
    if isinstance(thing, type) and not error:
        for member_name, member in members_of(thing):
            shown = f"{member_name}{'' if isinstance(member, property) else signature_of(member)}"
            lines += [f"#### `{name}.{shown}`\n", text_of(member)]
    return "\n".join(lines)


def reference() -> str:
    """The whole page."""
    parts = [HEAD]
    for module_name in MODULES:
        module = importlib.import_module(module_name)
        parts.append(f"## `{module_name}`\n\n{(inspect.getdoc(module) or '').splitlines()[0]}\n")
        names = getattr(module, "__all__", None) or [
            name
            for name, thing in vars(module).items()
            if not name.startswith("_") and getattr(thing, "__module__", "") == module_name
        ]
        parts += [section(name, getattr(module, name)) for name in sorted(names, key=str.lower)]
    return "\n".join(parts).rstrip() + "\n"


def main() -> int:
    """Write or compare."""
    if "--check" in sys.argv[1:] and sys.version_info[:2] != WRITTEN_WITH:
        print("docs/reference.md is not compared: other versions of Python print some signatures differently")
        return 0
    page, text = HERE / "reference.md", reference()
    if "--check" in sys.argv[1:]:
        if not page.exists() or page.read_text() != text:
            print("docs/reference.md is older than the docstrings: run `make reference`", file=sys.stderr)
            return 1
        return 0
    page.write_text(text)
    print(f"wrote {page.name}, {len(text.splitlines())} lines")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
