"""Joins the modules behind a script of `web/` into that script: a page elsewhere fetches one file, not two dozen.

Knows as much of a module as its first columns say: imports by name from beside it, and declarations that may be
exported. Changes no line that it keeps, but for `export` in front and the indent; knows nothing else of the language.
What is written otherwise is refused when the server starts, and so in every test.
"""

import re
from collections.abc import Callable

_IMPORT = re.compile(r'^(?:im|ex)port \{[^}]*\} from "(\.{1,2}/[^"]+)";\n', re.MULTILINE)
_EXPORTED = re.compile(r"^export (?=async |function |class |const |let )", re.MULTILINE)
_DECLARED = re.compile(r"^(?:async )?(?:function|class|const|let) (\w+)", re.MULTILINE)
_LEFT = re.compile(r"^(?:import|export)\b.*", re.MULTILINE)
_COMMENTS = re.compile(r"^[ \t]*(?://.*|/\*[\s\S]*?\*/[ \t]*)?\n", re.MULTILINE)
_ASIDES = re.compile(r"[ \t]+// [^\"'`\n]*$", re.MULTILINE)
_INDENT = re.compile(r"^[ \t]+", re.MULTILINE)


class ScriptError(ValueError):
    """A module is written in a way that cannot be joined; the message says which and how."""


def shortened(script: str) -> str:
    """Without comments and indents: whoever shows the widget should not have to fetch those.

    A comment behind code goes only if no quote is in it, as it could be part of a text; a template literal over several
    lines would lose what looks like one."""
    return _INDENT.sub("", _ASIDES.sub("", _COMMENTS.sub("", script)))


def joined(path: str, read: Callable[[str], str]) -> str:
    """The script at `path` (such as `/rota-chat.js`) and before it, once each, every module that it needs.

    `read` gives the text at a path. Modules share one scope then, so no two may declare the same name at their top.
    What the script itself exports in braces (`export { RotaChat };`) stays. Raises ScriptError.
    """
    order: list[str] = []
    bodies: dict[str, str] = {}
    _visit(path, read, order, bodies)
    declared: dict[str, str] = {}
    for module in order:
        for name in _DECLARED.findall(bodies[module]):
            if name in declared:
                raise ScriptError(f"{module} and {declared[name]} both declare {name} at their top.")
            declared[name] = module
        for line in _LEFT.findall(bodies[module]):
            if module != path or not re.fullmatch(r"export \{ [\w, ]+ \};", line):
                raise ScriptError(f"{module} cannot be joined: {line}")
    return "".join(bodies[module] for module in order)


def _visit(path: str, read: Callable[[str], str], order: list[str], bodies: dict[str, str]) -> None:
    if path in bodies:
        if path not in order:
            raise ScriptError(f"{path} needs itself.")
        return
    text = read(path)
    bodies[path] = _EXPORTED.sub("", _IMPORT.sub("", text))
    for needed in _IMPORT.findall(text):
        _visit(_beside(path, needed), read, order, bodies)
    order.append(path)


def _beside(path: str, relative: str) -> str:
    parts = path.split("/")[:-1]
    for step in relative.split("/"):
        if step == "..":
            parts.pop()
        elif step != ".":
            parts.append(step)
    return "/".join(parts)
