"""Write docs/reference.md from the docstrings of the public names, and the tables of docs/controller.md from the table
of settings, the metrics and the command itself (``make reference``); ``--check`` compares.
"""

import enum
import importlib
import inspect
import re
import sys
from collections.abc import Callable
from functools import partial
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


def settings_table() -> str:
    """All settings of `edl-controller`."""
    from edl_controller.program.settings import ROWS

    lines = ["| flag, key of the file | environment | default | what for |", "|---|---|---|---|"]
    for row in ROWS:
        flag = f"`{row.flag}`, `--no-{row.flag[2:]}`" if row.kind == "switch" else f"`{row.flag}`"
        key = "" if row.flag == f"--{row.key}" else f" (`{row.key}`)"
        default = f"`{row.shown_default}`" if row.shown_default else ""
        unit = f" {row.unit}" if default and row.unit in ("s", "jobs", "pods") else ""
        choices = f" One of {', '.join(row.choices)}." if row.choices else ""
        lines.append(f"| {flag}{key} | `{row.environment}` | {default}{unit} | {row.reason}{choices} |")
    return "\n".join(lines)


def metrics_table() -> str:
    """All metrics of `edl-controller`, but those of the process itself."""
    from typing import Any, cast

    from edl_controller.agent_state import AgentStates
    from edl_controller.controller import Controller
    from edl_controller.program.observed import Observed
    from edl_controller.runtime import metrics as counts

    metrics = counts.Metrics()
    for made in (counts.QueueCounts, counts.ReconcileCounts):
        made(metrics, "trainingjobs")
    for plain in (counts.LeaderCounts, counts.ApiCallCounts, counts.DecisionCounts):
        plain(metrics)
    agents = AgentStates()
    metrics.collect(Observed(Controller(cast(Any, None), agents=agents)).metrics)
    agents.close()
    lines = ["| metric | type | labels | what |", "|---|---|---|---|"]
    for family in sorted(metrics.registry.collect(), key=lambda one: one.name):
        if family.name.startswith("process_"):
            continue
        labels = sorted({label for sample in family.samples for label in sample.labels} - {"le"})
        labels = labels or list(counts.LABELS.get(family.name, ()))
        name = family.name + {"counter": "_total", "info": "_info"}.get(family.type, "")
        shown = ", ".join(f"`{label}`" for label in labels)
        lines.append(f"| `{name}` | {family.type} | {shown} | {family.documentation} |")
    return "\n".join(lines)


def controller_help() -> str:
    """What the command says of itself."""
    import click

    from edl_controller.cli.controller_program import program

    context = click.Context(program, info_name="edl-controller", terminal_width=110, **program.context_settings)
    return f"```text\n{program.get_help(context).strip()}\n```"


BLOCKS: dict[str, Callable[[], str]] = {
    "settings": settings_table,
    "metrics": metrics_table,
    "help": controller_help,
}
"""Of docs/controller.md, each between ``<!-- NAME: ... -->`` and ``<!-- end -->``."""


def _filled(made: str, match: re.Match[str]) -> str:
    return f"{match[1]}{made}\n"


def controller_page() -> str:
    """The page with its blocks made anew."""
    text = (HERE / "controller.md").read_text()
    for name, made in {name: make() for name, make in BLOCKS.items()}.items():
        block = re.compile(rf"(<!-- {name}:[^>]*-->\n).*?(?=<!-- end -->)", re.S)
        text, found = block.subn(partial(_filled, made), text)
        if found != 1:
            raise ValueError(f"docs/controller.md has {found} blocks {name}")
    return text


def main() -> int:
    """Write or compare."""
    if "--check" in sys.argv[1:] and sys.version_info[:2] != WRITTEN_WITH:
        print("docs/reference.md is not compared: other versions of Python print some signatures differently")
        return 0
    status = 0
    for name, text in (("reference.md", reference()), ("controller.md", controller_page())):
        page = HERE / name
        if "--check" not in sys.argv[1:]:
            page.write_text(text)
            print(f"wrote {name}, {len(text.splitlines())} lines")
        elif not page.exists() or page.read_text() != text:
            print(f"docs/{name} is older than the code: run `make reference`", file=sys.stderr)
            status = 1
    return status


if __name__ == "__main__":
    raise SystemExit(main())
