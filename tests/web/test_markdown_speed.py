"""Twenty thousand tokens, drawn as fast as there are frames: no task is longer than 50 ms, and memory stays small."""

import pytest
from playwright.async_api import Browser, Page

from tests.web.markdown_page import open_markdown
from tests.web.scripted_server import ScriptedServer
from tests.web.tasks import TASKS, longest_task_ms

TOKENS = 20_000

SHAPES = {
    "paragraph": "Lorem ipsum dolor sit amet, consectetur. ",
    "emphasis": "Lorem **ipsum** dolor `sit` amet *never closed [nor this. ",
    "no spaces": "abcdefgh",
    "lines": "A line of a very long poem.\n",
    "blocks": (
        "## A head\n\nA paragraph with **bold**, `code`.\n\n- one\n- two\n\n```py\nprint(1)\n```\n\n"
        "| a | b |\n|---|---|\n| 1 | 2 |\n\n"
    ),
    "code": "    total = compute(first, second)  # and so on\n",
    "list": "- An item of a list that has many.\n",
    "table": "| one | **two** | three |\n",
}
BEGINNINGS = {"code": "```py\n", "table": "| a | b | c |\n|---|---|---|\n"}

STREAM = """async ([beginning, shape, tokens]) => {
  const text = (beginning + shape.repeat(tokens)).slice(0, tokens * 4.5);
  const markdown = make();
  const scroller = document.getElementById("box");
  Object.assign(scroller.style, { height: "30rem", overflowY: "auto" });
  const tasks = [];
  const note = (list) => tasks.push(...list.getEntries().map((task) => Math.round(task.duration)));
  const observer = new PerformanceObserver(note);
  observer.observe({ type: "longtask" });
  const size = 4.5;
  const times = [];
  await new Promise((finished) => {
    let token = 0;
    const frame = () => {
      for (let time = 0; time < 100 && token < tokens; time++, token++) {
        markdown.append(text.slice(token * size, (token + 1) * size));
      }
      if (token === tokens) markdown.end();
      const from = performance.now();
      const drawn = markdown.draw();
      scroller.scrollTop = scroller.scrollHeight;
      times.push(performance.now() - from);
      if (token === tokens && drawn) finished();
      else requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame);
  });
  await new Promise((later) => setTimeout(later, 100)); // the observer is told afterwards
  observer.disconnect();
  times.sort((a, b) => a - b);
  return { tasks, median: times[times.length >> 1], longest: times.at(-1), shown: markdown.element.textContent.length };
}"""


@pytest.mark.parametrize("shape", SHAPES)
async def test_no_task_is_long_while_twenty_thousand_tokens_come(
    browser: Browser, page: Page, server: ScriptedServer, shape: str
) -> None:
    await open_markdown(page, server)
    await browser.start_tracing(page=page, categories=TASKS)
    seen = await page.evaluate(STREAM, [BEGINNINGS.get(shape, ""), SHAPES[shape], TOKENS])
    longest = longest_task_ms(await browser.stop_tracing())
    print(f"{shape}: longest task {longest:.0f} ms of processor time; as the performance API has it: {seen}")
    assert seen["shown"] > TOKENS
    assert longest < 50


async def test_the_heap_holds_a_few_times_the_text(page: Page, server: ScriptedServer) -> None:
    await open_markdown(page, server)
    devtools = await page.context.new_cdp_session(page)

    async def heap() -> int:
        await devtools.send("HeapProfiler.collectGarbage")
        used: int = (await devtools.send("Runtime.getHeapUsage"))["usedSize"]
        return used

    await page.evaluate(STREAM, ["", SHAPES["paragraph"], 100])
    before = await heap()
    await page.evaluate(STREAM, ["", SHAPES["paragraph"], TOKENS])
    assert await heap() - before < 10 * TOKENS * 4.5
    await page.evaluate("make()")
    assert await heap() - before < 100_000
