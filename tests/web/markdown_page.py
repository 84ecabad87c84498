"""A page that holds nothing but the Markdown renderer of the chat, in the widget's colours. Knows nothing of the chat.

In the page, `make()` is a renderer within the page's one box, with `copied` and `said` for what its buttons did, and
`write(markdown, pieces)` is all of it: appended, drawn after each piece, ended.
"""

from playwright.async_api import Page

from tests.web.scripted_server import ScriptedServer

_SETUP = r"""
async () => {
  const { Markdown, markdownStyle } = await import("/chat/markdown.js");
  const sheet = new CSSStyleSheet();
  sheet.replaceSync(`
    :root { --ink: #1c2030; --ink-soft: #565c6e; --rule: #dddcd4; --edge: #878a9b; --sunk: #efefea; --raised: #ffffff;
      --blue: #2f46c4; --mono: monospace; }
    body { margin: 0; padding: 1rem; background: #f8f8f5; color: var(--ink); font: 1.0625rem/1.68 sans-serif; }
    #box { max-width: 40rem; margin: auto; }
    ${markdownStyle}`);
  document.adoptedStyleSheets = [sheet];
  const box = document.createElement("div");
  box.id = "box";
  document.body.replaceChildren(box);

  window.make = () => {
    const copied = [];
    const copy = (text, code, button) => copied.push([text, code.localName, button.textContent]);
    const markdown = new Markdown({ copy });
    box.replaceChildren(markdown.element);
    return Object.assign(markdown, { copied });
  };
  window.drawAll = (markdown) => {
    while (!markdown.draw());
  };
  window.write = (markdown, pieces) => {
    for (const piece of pieces) {
      markdown.append(piece);
      drawAll(markdown);
    }
    markdown.end();
    drawAll(markdown);
    return markdown;
  };
  // Without the parts that only group blocks, and without the attributes that every link or button has.
  window.markup = (element) => {
    const copy = element.cloneNode(true);
    copy.querySelectorAll(":scope > div").forEach((part) => part.replaceWith(...part.childNodes));
    copy.querySelectorAll("span").forEach((span) => span.closest("pre") && span.replaceWith(...span.childNodes));
    for (const each of copy.querySelectorAll("*")) {
      for (const name of ["dir", "rel", "target", "referrerpolicy", "scope", "type"]) each.removeAttribute(name);
    }
    return copy.innerHTML;
  };
}
"""


async def open_markdown(page: Page, server: ScriptedServer) -> Page:
    """`page`, ready to write Markdown under the content policy of every page of rota."""
    await page.goto(f"{server.origin}/chat/markdown.js")
    await page.evaluate(_SETUP)
    return page
