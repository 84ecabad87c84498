// The picture's colours, read from the page's style, so that both are light or dark together. Knows no page beyond one element of it.

const HUES = 10;

export function readTheme(element) {
  const style = getComputedStyle(element);
  const colour = (name) => style.getPropertyValue(name).trim();
  const hues = Array.from({ length: HUES }, (_, place) => colour(`--hue-${place + 1}`));
  return {
    raised: colour("--raised"),
    sunk: colour("--sunk"),
    ink: colour("--ink"),
    inkSoft: colour("--ink-soft"),
    rule: colour("--rule"),
    edge: colour("--edge"),
    turn: colour("--turn"),
    alarm: colour("--alarm"),
    cached: colour("--cached"),
    hues,
    hueOf: (history, key) => hues[history.hues.get(key) ?? (key - 1) % HUES],
  };
}
