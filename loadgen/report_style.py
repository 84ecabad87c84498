"""The look of the plots in a report: colours in a light and a dark room, and what all of them have in common.

Knows plotly's layout and nothing of what is drawn.
"""

import math
from typing import Any

import plotly.graph_objects as go
from plotly.colors import sample_colorscale
from plotly.subplots import make_subplots

# Okabe and Ito's palette, which most colour-blind people can tell apart; its vermilion is kept for what is late.
BLUE, ORANGE, GREEN, PURPLE, SKY, OLIVE = "#0072b2", "#b67700", "#008f68", "#b0578d", "#5aa9dd", "#8c7a00"
LATE = "#d55e00"
WAITING = "#aab2bb"
INK, FAINT, RULE = "#1d2329", "#5b6570", "#dfe3e8"
SERIES = (BLUE, GREEN, PURPLE, ORANGE, SKY, OLIVE)
"""For things of one kind without an order."""

IN_THE_DARK = {
    BLUE: "#4ba6e0",
    ORANGE: "#f0b840",
    GREEN: "#2cc498",
    PURPLE: "#e394c4",
    SKY: "#9dd6f9",
    OLIVE: "#d9c94a",
    LATE: "#f0772b",
    WAITING: "#5d6771",
    INK: "#e6e9ec",
    FAINT: "#9aa4ae",
    RULE: "#2a3138",
}
"""What the page's script puts in the place of each colour. It holds the steps of `ordered` once they were asked for."""
_STEPS = 12


def _viridis(low: float, high: float) -> list[str]:
    shades = sample_colorscale("Viridis", [low + (high - low) * step / (_STEPS - 1) for step in range(_STEPS)])
    return ["#" + "".join(f"{int(float(part)):02x}" for part in shade[4:-1].split(",")) for shade in shades]


_ORDERED = _viridis(0.0, 0.82)
IN_THE_DARK |= dict(zip(_ORDERED, _viridis(0.28, 1.0), strict=True))


def ordered(count: int) -> list[str]:
    """Colours for things with an order, the first the lowest."""
    return [_ORDERED[round(number * (_STEPS - 1) / max(1, count - 1))] for number in range(count)]


def figure(rows: int = 1) -> go.Figure:
    """An empty one, `rows` panels one upon the other with the same horizontal axis."""
    made = make_subplots(rows=rows, cols=1, shared_xaxes=True, vertical_spacing=0.1)
    made.update_layout(
        template=go.layout.Template(),
        font={"family": 'system-ui, -apple-system, "Segoe UI", Roboto, sans-serif', "size": 12, "color": INK},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        margin={"l": 8, "r": 14, "t": 8, "b": 8},
        legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "traceorder": "normal"},
        uirevision="kept",
        hovermode="closest",
    )
    axis = {
        "gridcolor": RULE,
        "zeroline": False,
        "linecolor": FAINT,
        "tickcolor": FAINT,
        "automargin": True,
        "title": {"font": {"color": FAINT}, "standoff": 8},
    }
    made.update_xaxes(showline=True, ticks="outside", **axis)
    made.update_yaxes(**axis)
    return made


def logarithmic(low: float, high: float) -> dict[str, Any]:
    """An axis from `low` to `high`, both above 0, with plain numbers at it and few enough for a narrow screen."""
    bottom, top = math.floor(math.log10(low)), math.ceil(math.log10(high))
    steps = (1,) if top - bottom > 3 else (1, 2, 5)
    ticks = [step * 10.0**power for power in range(bottom, top + 1) for step in steps]
    return {
        "type": "log",
        "range": [math.log10(low), math.log10(high)],
        "tickvals": ticks,
        "ticktext": [f"{tick:,.10g}" for tick in ticks],
    }
