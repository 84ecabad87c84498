"""The element as a page around it sees it: attributes, methods, events, another site, and what it weighs."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from playwright.async_api import Browser, Page, expect
from websockets.asyncio.server import ServerConnection, serve
from websockets.http11 import Request, Response

from actors.pages import read_pages
from tests.web.conftest import watched_page
from tests.web.scripted_server import ScriptedServer, Socket, raw_reply, running

HEAR = """() => {
    window.heard = [];
    for (const type of ["rota-start", "rota-delta", "rota-finish", "rota-error"]) {
        document.addEventListener(type, ({ target, detail }) => window.heard.push([type, target.localName, detail]));
    }
}"""


@asynccontextmanager
async def host_page(html: str, policy: str) -> AsyncIterator[str]:
    """Another site with that one page; its origin."""

    def respond(_: ServerConnection, request: Request) -> Response:
        headers = {"Content-Type": "text/html; charset=utf-8", "Content-Security-Policy": policy}
        return raw_reply(200 if request.path == "/" else 404, html.encode(), headers)

    async with serve(never, "127.0.0.1", 0, process_request=respond) as listening:
        yield f"http://localhost:{next(iter(listening.sockets)).getsockname()[1]}"


async def never(_: ServerConnection) -> None:
    raise AssertionError("the host page has no socket")


async def test_instructions_go_with_every_request(page: Page, server: ScriptedServer) -> None:
    socket = await embedded(page, server, 'instructions="You sell laptops."')
    for _ in range(2):
        await page.get_by_label("Your message").fill("Which one?")
        await page.keyboard.press("Enter")
        answer = await socket.asked()
        assert answer.create["instructions"] == "You sell laptops."
        await answer.begin("That one.")
        await answer.complete()
        await expect(page.locator(".answer").last).to_have_text("That one.")
        await expect(page.get_by_role("button", name="Send")).to_be_visible()


async def test_the_page_asks_stops_and_resets_by_methods_and_hears_by_events(
    page: Page, server: ScriptedServer
) -> None:
    socket = await embedded(page, server, 'id="one"')
    await page.evaluate(HEAR)
    asked = asyncio.ensure_future(page.evaluate("document.querySelector('rota-chat').ask('Count.')"))
    answer = await socket.asked()
    assert answer.create["input"] == "Count."
    refused = "question => document.querySelector('rota-chat').ask(question).catch((error) => error.name)"
    assert await page.evaluate(refused, "More.") == "InvalidStateError"
    assert await page.evaluate(refused, " ") == "SyntaxError"
    await answer.begin("One")
    await expect(page.locator(".answer")).to_have_text("One")
    await page.evaluate("document.querySelector('rota-chat').stop()")
    assert (await socket.receive())["type"] == "response.cancel"
    await answer.cancelled()
    ended = await asked
    assert (ended["reason"], ended["text"], ended["code"]) == ("cancelled", "One", None)
    heard = await page.evaluate("window.heard")
    assert [(kind, target) for kind, target, _ in heard] == [
        ("rota-start", "rota-chat"),
        ("rota-delta", "rota-chat"),
        ("rota-finish", "rota-chat"),
    ]
    assert heard[0][2]["question"] == "Count."
    assert heard[1][2]["delta"] == "One"
    assert heard[2][2]["usage"]["output_tokens"] == 3
    assert len({detail["conversation"] for _, _, detail in heard}) == 1
    await page.evaluate("document.querySelector('rota-chat').reset()")
    await expect(page.locator(".empty")).to_be_visible()
    await page.reload()
    await server.socket()
    await expect(page.locator(".empty")).to_be_visible()


async def test_a_refusal_and_a_lost_socket_are_told_as_errors(page: Page, server: ScriptedServer) -> None:
    socket = await embedded(page, server)
    await page.evaluate(HEAR)
    await page.get_by_label("Your message").fill("Count.")
    await page.keyboard.press("Enter")
    await (await socket.asked()).refuse("server_overloaded", "The queue is full.", 1500)
    await expect(page.locator(".end-text")).to_have_text("The queue is full.")
    kind, _, detail = (await page.evaluate("window.heard"))[-1]
    assert (kind, detail["code"], detail["message"], detail["retryAfterMs"]) == (
        "rota-error",
        "server_overloaded",
        "The queue is full.",
        1500,
    )
    await page.get_by_label("Your message").fill("Count again.")
    await page.keyboard.press("Enter")
    lost = await socket.asked()
    await lost.begin("One")
    await expect(page.locator(".answer")).to_have_text(["", "One"])
    await socket.drop()
    await (await server.socket()).asked_to_resume(lost)
    await lost.forgotten()
    await expect(page.locator(".end-text").last).to_contain_text("connection was lost")
    kind, _, detail = (await page.evaluate("window.heard"))[-1]
    assert (kind, detail["reason"], detail["text"]) == ("rota-error", "lost", "One")


async def test_what_the_page_says_of_itself_is_shown_and_follows_it(page: Page, server: ScriptedServer) -> None:
    await embedded(page, server, 'heading="Shop" greeting="Ask about laptops" suggestions="Cheapest? | Lightest?"')
    await expect(page.get_by_role("heading", name="Shop")).to_be_visible()
    await expect(page.get_by_text("Ask about laptops")).to_be_visible()
    await expect(page.get_by_role("list", name="Suggestions").get_by_role("button")).to_have_text(
        ["Cheapest?", "Lightest?"]
    )
    await page.evaluate("document.querySelector('rota-chat').setAttribute('heading', '<b>Shop 2</b>')")
    await expect(page.get_by_role("heading", name="<b>Shop 2</b>")).to_be_visible()


async def test_a_key_of_the_page_is_used_and_its_reader_is_never_asked_for_one(
    page: Page, server: ScriptedServer
) -> None:
    server.key = "sk-right"
    await open_with(page, server, 'key="sk-wrong"')
    await expect(page.locator(".notice")).to_contain_text(
        "The server did not accept this page’s key, so nothing can be asked here."
    )
    await expect(page.get_by_label("Enter the key")).to_be_hidden()
    await page.evaluate("document.querySelector('rota-chat').setAttribute('key', 'sk-right')")
    await server.socket()
    await expect(page.locator(".state")).to_have_text("Your turn")


@pytest.mark.parametrize("wrong", ['src="mailto:someone"', 'key="not a token"', 'src="http://[half"'])
async def test_what_cannot_work_is_said(page: Page, server: ScriptedServer, wrong: str) -> None:
    await open_with(page, server, wrong)
    await expect(page.locator(".notice")).to_contain_text("This chat cannot connect")


async def test_whatever_ends_an_answer_settles_the_promise_of_it(page: Page, server: ScriptedServer) -> None:
    socket = await embedded(page, server)
    await page.evaluate(HEAR)
    asked = asyncio.ensure_future(page.evaluate("document.querySelector('rota-chat').ask('Count.')"))
    answer = await socket.asked()
    await answer.begin("One")
    await expect(page.locator(".answer")).to_have_text("One")
    await page.evaluate("document.querySelector('rota-chat').reset()")
    assert (await socket.receive())["type"] == "response.cancel"
    ended = await asked
    assert (ended["reason"], ended["text"]) == ("cancelled", "One")
    assert (await page.evaluate("window.heard"))[-1][0] == "rota-finish"
    await answer.cancelled()
    await expect(page.locator(".empty")).to_be_visible()
    server.key = "sk-right"
    await page.evaluate("document.querySelector('rota-chat').setAttribute('key', 'sk-wrong')")
    await expect(page.locator(".state")).to_have_text("Not let in")
    refused = await page.evaluate("document.querySelector('rota-chat').ask('Anyone?')")
    assert (refused["reason"], refused["code"]) == ("refused", "authentication_failed")
    await expect(page.locator(".end-text")).to_contain_text("did not accept this page’s key")


async def test_a_page_may_ask_again_in_the_moment_it_hears_of_a_lost_socket(page: Page, server: ScriptedServer) -> None:
    socket = await embedded(page, server)
    await page.evaluate("document.addEventListener('rota-error', ({ target }) => target.ask('Again?'), { once: true })")
    await page.get_by_label("Your message").fill("Count.")
    await page.keyboard.press("Enter")
    await socket.asked()
    await expect(page.locator(".progress")).to_have_text("Sent…")
    await socket.drop()
    answer = await (await server.socket()).asked()
    assert answer.create["input"] == "Again?"
    await answer.begin("Two")
    await expect(page.locator(".answer").last).to_have_text("Two")


async def test_what_was_never_sent_settles_too_when_the_element_goes(page: Page, server: ScriptedServer) -> None:
    server.up = False
    await open_with(page, server, "")
    await expect(page.locator(".state")).to_have_text("Offline")
    asked = asyncio.ensure_future(
        page.evaluate("(window.chat = document.querySelector('rota-chat'), window.chat.ask('Anyone?'))")
    )
    await expect(page.locator(".question-text")).to_have_text("Anyone?")
    await page.evaluate("window.chat.remove()")
    assert (await asked)["reason"] == "lost"


async def test_a_key_is_told_to_the_server_it_was_entered_for_and_to_no_other(
    page: Page, server: ScriptedServer
) -> None:
    server.key = "sk-right"
    await open_with(page, server, "")
    await page.get_by_label("Enter the key").fill("sk-right")
    await page.keyboard.press("Enter")
    await server.socket()
    async with running() as other:
        heard: list[str] = []
        other.hear = lambda request: heard.extend([*request.headers.values()])
        other.allowed_origin = server.origin
        server.host_policy = (
            "script-src 'self'"  # as of a page elsewhere: that of rota's own lets no other server be asked
        )
        await page.reload()
        await server.socket()
        await page.evaluate(
            "src => document.querySelector('rota-chat').setAttribute('src', src)", f"{other.origin}/v1/responses"
        )
        await other.socket()
        assert heard
        assert not any("sk-right" in value for value in heard)


async def test_attributes_that_cannot_work_can_be_mended(page: Page, server: ScriptedServer) -> None:
    await open_with(page, server, 'src="ftp://nowhere/x"')
    await expect(page.locator(".notice")).to_contain_text("cannot connect")
    await page.get_by_label("Your message").fill("Anyone?")
    await page.keyboard.press("Enter")
    await page.keyboard.press("Escape")
    await page.evaluate("document.querySelector('rota-chat').setAttribute('greeting', 'Hello?')")
    await expect(page.get_by_text("Hello?")).to_be_visible()
    await page.evaluate("document.querySelector('rota-chat').setAttribute('src', '/v1/responses')")
    socket = await server.socket()
    await expect(page.locator(".state")).to_have_text("Your turn")
    await page.evaluate("document.querySelector('rota-chat').setAttribute('src', 'ftp://nowhere/x')")
    assert await socket.close_code() == 1000
    await page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    await expect(page.locator(".notice")).to_contain_text("cannot connect")
    await expect(page.locator(".state")).to_have_text("Closed")


async def test_the_page_keeps_its_focus_and_its_place_unless_the_reader_is_in_the_chat(
    page: Page, server: ScriptedServer
) -> None:
    server.host_page = (
        '<!doctype html><html lang="en"><title>Host</title><script type="module" src="/rota-chat.js"></script>'
        '<input id="own" autofocus>' + "<p>Far away.</p>" * 100 + "<main><rota-chat></rota-chat></main></html>"
    )
    server.key = "sk-right"
    await page.goto(server.origin + "/host")
    await expect(page.locator(".state")).to_have_text("Key needed")
    here = "[document.activeElement.id, scrollY]"
    assert await page.evaluate(here) == ["own", 0]
    await page.evaluate("sessionStorage.setItem('rota.key:' + location.origin, 'sk-right')")
    await page.reload()
    socket = await server.socket()
    asked = asyncio.ensure_future(page.evaluate("document.querySelector('rota-chat').ask('Count.')"))
    answer = await socket.asked()
    assert await page.evaluate(here) == ["own", 0]
    await answer.begin("One")
    await answer.complete()
    await asked
    assert await page.evaluate(here) == ["own", 0]


@pytest.mark.parametrize(("root", "size"), [("62.5%", 17), ("100%", 17), ("200%", 34)])
async def test_a_small_root_makes_no_small_chat_and_a_large_one_is_followed(
    page: Page, server: ScriptedServer, root: str, size: int
) -> None:
    socket = await embedded(page, server)
    await page.evaluate("size => { document.documentElement.style.fontSize = size; }", root)
    await page.get_by_label("Your message").fill("Count.")
    await page.keyboard.press("Enter")
    await (await socket.asked()).begin("One")
    assert await page.locator(".answer").evaluate("answer => parseFloat(getComputedStyle(answer).fontSize)") == size


async def test_a_page_that_the_server_does_not_let_in_is_told_so(browser: Browser, server: ScriptedServer) -> None:
    html = (
        f'<!doctype html><html lang="en"><title>Shop</title><script type="module" src="{server.origin}/rota-chat.js">'
        "</script><main><rota-chat></rota-chat></main></html>"
    )
    page = await browser.new_page()
    warned: list[str] = []
    page.on("console", lambda message: warned.append(message.text) if message.type == "warning" else None)
    async with host_page(html, "") as origin:
        await page.goto(origin)
        await expect(page.locator(".notice")).to_contain_text("does not let this page in")
        assert f"--origins {origin}" in warned[0]
    await page.close()


async def test_taking_the_element_out_of_the_page_closes_its_socket(page: Page, server: ScriptedServer) -> None:
    socket = await embedded(page, server)
    await page.evaluate("document.querySelector('main').append(document.querySelector('rota-chat'))")  # only moved
    await expect(page.locator(".state")).to_have_text("Your turn")
    await page.evaluate("window.taken = document.querySelector('rota-chat'); window.taken.remove()")
    assert await socket.close_code() == 1000
    await page.evaluate("document.querySelector('main').append(window.taken)")
    await server.socket()
    await expect(page.locator(".state")).to_have_text("Your turn")


async def test_any_site_can_show_it_by_one_line_even_under_a_strict_policy(
    browser: Browser, server: ScriptedServer
) -> None:
    html = (
        f'<!doctype html><html lang="en"><title>Shop</title><script type="module" src="{server.origin}/rota-chat.js">'
        "</script><h1>Shop</h1><main><rota-chat></rota-chat></main></html>"
    )
    socket_origin = server.origin.replace("http:", "ws:")
    policy = (
        f"default-src 'none'; script-src {server.origin}; connect-src {server.origin} {socket_origin}; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    )
    async with host_page(html, policy) as origin, watched_page(browser) as page:
        server.allowed_origin = origin
        await page.goto(origin)
        socket = await server.socket()
        await page.get_by_label("Your message").fill("Hello?")
        await page.keyboard.press("Enter")
        answer = await socket.asked()
        await answer.begin("Hello.")
        await expect(page.locator(".answer")).to_have_text("Hello.")
        background = await page.locator("rota-chat").evaluate("widget => getComputedStyle(widget).backgroundColor")
        assert background == "rgb(248, 248, 245)"  # its own sheet came through


async def test_all_of_the_widget_is_one_script_under_30_kilobytes(page: Page, server: ScriptedServer) -> None:
    fetched: list[str] = []
    page.on("request", lambda request: fetched.append(request.url.removeprefix(server.origin)))
    await embedded(page, server)
    await expect(page.locator(".state")).to_have_text("Your turn")
    assert [path for path in fetched if path.endswith((".js", ".css"))] == ["/rota-chat.js"]
    assert len(read_pages()["/rota-chat.js"].gzipped) < 30_000


async def embedded(page: Page, server: ScriptedServer, attributes: str = "") -> Socket:
    """A page of the server with the element alone, connected."""
    await open_with(page, server, attributes)
    return await server.socket()


async def open_with(page: Page, server: ScriptedServer, attributes: str) -> None:
    server.host_page = (
        '<!doctype html><html lang="en"><title>Host</title><script type="module" src="/rota-chat.js"></script>'
        f"<main><rota-chat {attributes}></rota-chat></main></html>"
    )
    await page.goto(server.origin + "/host")
