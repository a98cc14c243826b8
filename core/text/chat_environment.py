"""The Jinja environment that chat templates are written for, as transformers defines it."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox
import jinja2.utils


class Generation(jinja2.ext.Extension):
    """`{% generation %}` marks what the assistant said, for training; here its body is rendered and that is all."""

    tags: set[str] = {"generation"}  # noqa: RUF012 (declared an instance variable by jinja2)

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        # A scope of its own: what is assigned inside is not seen outside, as with the call block of transformers.
        return [jinja2.nodes.Scope(body).set_lineno(line)]


class Namespace(jinja2.utils.Namespace):
    """Jinja's `namespace` without underscore names, which could reach into the interpreter."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        attributes = dict(*args, **kwargs)
        for name in attributes:
            _check(name)
        super().__init__(attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check(name)
        super().__setitem__(name, value)


class Dict:
    """`dict(...)` for templates, without the type's own attributes."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, keys: Any, value: Any = None) -> dict[Any, Any]:
        """A dict with these keys."""
        return dict.fromkeys(keys, value)


def chat_environment() -> jinja2.Environment:
    """A fresh sandboxed environment with the filters and globals that chat templates use."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals |= {
        "raise_exception": _raise,
        "strftime_now": _strftime_now,
        "namespace": Namespace,
        "dict": Dict(),
    }
    return environment


def reads_parts(template: jinja2.nodes.Template) -> bool:
    """Whether a template loops over a message's content, or over a variable that is set to it (after vLLM)."""
    names = {"content"}
    for assigned in template.find_all(jinja2.nodes.Assign):
        if isinstance(assigned.target, jinja2.nodes.Name) and _is_content(assigned.node, names):
            names.add(assigned.target.name)
    return any(_is_content(loop.iter, names) for loop in template.find_all(jinja2.nodes.For))


def _is_content(node: jinja2.nodes.Node | None, names: set[str]) -> bool:
    """Whether `node` is a content, filtered or not, or one of the variables `names`."""
    while isinstance(node, jinja2.nodes.Filter):
        node = node.node
    if isinstance(node, jinja2.nodes.Name):
        return node.name in names
    if isinstance(node, jinja2.nodes.Getattr):
        return node.attr == "content"
    return (
        isinstance(node, jinja2.nodes.Getitem)
        and isinstance(node.arg, jinja2.nodes.Const)
        and node.arg.value == "content"
    )


def _check(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a chat template may not set the namespace attribute {name!r}")


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without the HTML escapes of Jinja's own filter."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)
