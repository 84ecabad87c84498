"""What tests look at in the page again and again: the focus, what a turn offers, whether it is too wide."""

from playwright.async_api import Locator, Page


async def focused(page: Page) -> str | None:
    """The id, or else the words, of what has the focus; within the widget too."""
    found: str | None = await page.evaluate(
        """() => {
            let focused = document.activeElement;
            while (focused.shadowRoot?.activeElement) focused = focused.shadowRoot.activeElement;
            return focused.id || focused.getAttribute("aria-label") || focused.textContent.trim();
        }"""
    )
    return found


def offered(page: Page) -> Locator:
    return page.locator(".end-actions button")


async def expect_no_sideways_scroll(page: Page) -> None:
    too_wide = """() => {
        const widget = document.querySelector("rota-chat").shadowRoot;
        const named = [".scroll", ".turns", ".top", ".bottom"].map((name) => [name, widget.querySelector(name)]);
        return [["html", document.documentElement], ...named]
            .filter(([, element]) => element !== null && element.scrollWidth > element.clientWidth)
            .map(([name]) => name);
    }"""
    assert await page.evaluate(too_wide) == []
