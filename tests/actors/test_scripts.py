"""Modules joined into one script: each once, what it needs before it, and nothing that could not be joined."""

import pytest

from actors.scripts import ScriptError, joined, shortened

MODULES = {
    "/page.js": 'import { a } from "./parts/a.js";\nimport {\n  b,\n} from "./parts/b.js";\n\na(b);\nexport { a };\n',
    "/parts/a.js": 'import { c } from "./b.js";\nexport function a(x) { return x + c; }\n',
    "/parts/b.js": "export const b = 1;\nexport async function later() {}\nexport class K {}\nexport let c = 2;\n",
}


def test_every_module_comes_once_and_after_what_it_needs() -> None:
    assert joined("/page.js", MODULES.__getitem__) == (
        "const b = 1;\nasync function later() {}\nclass K {}\nlet c = 2;\n"
        "function a(x) { return x + c; }\n"
        "\na(b);\nexport { a };\n"
    )


def test_a_way_up_is_found() -> None:
    modules = {"/x/y.js": 'import { z } from "../w/z.js";\nz();\n', "/w/z.js": "export function z() {}\n"}
    assert joined("/x/y.js", modules.__getitem__) == "function z() {}\nz();\n"


@pytest.mark.parametrize(
    ("module", "why"),
    [
        ("const a = 1;\n", "both declare a"),
        ('import * as all from "./b.js";\n', "cannot be joined: import"),
        ('import "./b.js";\n', "cannot be joined: import"),
        ("export default 7;\n", "cannot be joined: export"),
        ("const x = 1;\nexport { x };\n", "cannot be joined: export"),
        ('import { a } from "./page.js";\n', "needs itself"),
    ],
)
def test_what_cannot_be_joined_is_named(module: str, why: str) -> None:
    modules = {"/page.js": 'import { y } from "./odd.js";\nconst a = 0;\n', "/odd.js": module}
    with pytest.raises(ScriptError, match=why):
        joined("/page.js", modules.__getitem__)


def test_comments_and_indents_go_and_the_rest_stays() -> None:
    script = """// What it knows.

/** Two
 *  lines. */
export function f() {
  // A reason.
  const url = "http://x"; // why not
  const text = "a // b"; // it's kept
  return `${url}/*`;
}
"""
    assert (
        shortened(script)
        == """export function f() {
const url = "http://x";
const text = "a // b"; // it's kept
return `${url}/*`;
}
"""
    )
