"""`ChatTemplate`: messages to a prompt, by the Jinja template that comes with a model.

Templates are other people's code. They run in jinja2's immutable sandbox, see plain JSON values only, and get the same
helpers as in transformers, so that they render the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InvalidInput, ModelError
from .messages import before_mark, check_messages, joined, marked, plain
from .tokenizer_files import read_json, read_tokenizer_files

if TYPE_CHECKING:
    import jinja2

TEMPLATE_FILE = "chat_template.jinja"
TEMPLATE_FOLDER = "additional_chat_templates"


class ChatTemplate:
    """The chat template, or the named ones, of one model. Compiled at first use."""

    def __init__(self, templates: Mapping[str, str], special_tokens: Mapping[str, str]) -> None:
        """`templates` by name, the usual one being `default`; `special_tokens` (`bos_token`…) become variables."""
        self.templates = dict(templates)
        self._special_tokens = dict(special_tokens)
        self._compiled: dict[str, jinja2.Template] = {}
        self._part_readers: set[str] = set()
        """Names of compiled templates that go through the parts of a content themselves."""

    @classmethod
    def from_folder(cls, path: str | Path) -> ChatTemplate:
        """Read the templates of a model folder; files of their own win over `tokenizer_config.json`.

        Raises `ModelError` where there are none.
        """
        folder = Path(path)
        templates = _from_files(folder) or _from_config(read_json(folder / "tokenizer_config.json"))
        if not templates:
            raise ModelError(
                f"{folder} has no chat template (looked for {TEMPLATE_FILE} and tokenizer_config.json).\n"
                "  give a plain prompt instead, or use the instruction-tuned variant of the model"
            )
        return cls(templates, read_tokenizer_files(folder).named)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        name: str | None = None,
        **variables: Any,
    ) -> str:
        """The prompt for `messages`, each with `role` and most with `content`.

        A content in parts is joined to one text, a line each, unless the template goes through parts itself.
        `tools` and `documents` are JSON objects handed to the template, `variables` whatever else it understands
        (`enable_thinking`…). With `add_generation_prompt` the prompt ends where the assistant is to speak; with
        `continue_final_message` it ends with the text of the last message, which the model then continues. `name`
        chooses a template; by default `tool_use` where there are tools and such a template, else `default`. Encode the
        result with `add_special_tokens=False`: the template writes them. Raises `InvalidInput` naming the message
        and field that is wrong, or with the template's own complaint; `ModelError` for a broken template.
        """
        import jinja2

        spoken = check_messages(messages)
        chosen = self._choose(name, bool(tools))
        template = self._template(chosen)
        if chosen not in self._part_readers:
            spoken = [joined(message) for message in spoken]
        if continue_final_message:
            if add_generation_prompt:
                raise InvalidInput(
                    "continue_final_message", "needs add_generation_prompt=False: it opens a new message"
                )
            spoken[-1] = marked(spoken[-1])
        values = {
            **self._special_tokens,
            **{key: plain(key, value) for key, value in variables.items()},
            "messages": spoken,
            "tools": plain("tools", tools),
            "documents": plain("documents", documents),
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            text = template.render(values)
            return before_mark(text) if continue_final_message else text
        except jinja2.TemplateSyntaxError as error:
            raise ModelError(f"the chat template has an error in line {error.lineno}: {error.message}") from error
        except (jinja2.TemplateError, TypeError, ValueError, LookupError, ArithmeticError) as error:
            raise InvalidInput("messages", f"the model's chat template refuses them: {error}") from error

    def _choose(self, name: str | None, has_tools: bool) -> str:
        wanted = name or ("tool_use" if has_tools and "tool_use" in self.templates else "default")
        if wanted not in self.templates:
            known = ", ".join(sorted(self.templates))
            raise InvalidInput("chat_template", f"{wanted!r} is not known; the model has: {known}")
        return wanted

    def _template(self, name: str) -> jinja2.Template:
        if name not in self._compiled:
            import jinja2

            from .chat_environment import reads_parts

            try:
                self._compiled[name] = self._environment.from_string(self.templates[name])
                if reads_parts(self._environment.parse(self.templates[name])):
                    self._part_readers.add(name)
            except jinja2.TemplateSyntaxError as error:
                raise ModelError(f"the chat template has an error in line {error.lineno}: {error.message}") from error
        return self._compiled[name]

    @cached_property
    def _environment(self) -> jinja2.Environment:
        from .chat_environment import chat_environment

        return chat_environment()


def _from_files(folder: Path) -> dict[str, str]:
    files = {"default": folder / TEMPLATE_FILE}
    files |= {file.stem: file for file in sorted((folder / TEMPLATE_FOLDER).glob("*.jinja"))}
    try:
        return {name: file.read_text(encoding="utf-8") for name, file in files.items() if file.is_file()}
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot read the chat template of {folder}: {error}") from error


def _from_config(config: Mapping[str, Any]) -> dict[str, str]:
    template = config.get("chat_template")
    entries = template if isinstance(template, list) else [{"name": "default", "template": template}]
    found: dict[str, str] = {}
    for entry in entries if template else ():
        name, text = (entry.get("name"), entry.get("template")) if isinstance(entry, Mapping) else (None, None)
        if not isinstance(name, str) or not isinstance(text, str):
            raise ModelError("tokenizer_config.json: chat_template must be text, or a list of named texts")
        found[name] = text
    return found
