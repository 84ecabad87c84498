// The steps: one column each, as wide and as high as the time it took, its parts stacked.
//
// Draws on any pen. Steps closer than a pixel share a column, and the tallest is seen: a long one is never hidden.

import { placeOf } from "./history.js";
import { msTicks } from "./scale.js";
import { count, duration, number } from "./words.js";

const LONGEST_S = 120; // a step that began so long before the picture may still reach into it
const NUMBER_APART = 64;
const DIM = 0.22;

/** The columns in view, from left to right: [{x, width, step}]. */
export function columnsIn(history, time) {
  const { steps } = history;
  const columns = [];
  let last = null;
  for (let place = placeOf(steps, time.from - LONGEST_S); place < steps.length && steps[place].at <= time.to; place += 1) {
    const step = steps[place];
    if (step.end < time.from) continue;
    const x = time.x(step.at);
    const width = Math.max(Math.round(step.took_ms / 1000 / time.perPixel), 1);
    if (last !== null && last.x === x) {
      if (step.took_ms > last.step.took_ms) Object.assign(last, { step, width });
      continue;
    }
    if (last !== null && last.x + last.width > x) last.width = x - last.x;
    columns.push((last = { x, width, step }));
  }
  return columns;
}

/** `focus`: the key of a request that stands out, or null. `top`: milliseconds at the upper edge. `touched`: the time from
 *  which on something has changed since it was last drawn. */
export function drawSteps(pen, { history, layout, theme, top, focus, columns, touched }) {
  const { steps, time } = layout;
  drawScale(pen, layout, theme, top);
  const perMs = steps.height / top;
  const place = {
    x: time.left, y: steps.top - 8, width: time.width, height: steps.height + 8, end: time.endPixel,
    key: `${top} ${focus} ${time.perPixel}`, changed: time.x(touched) - 1,
  };
  pen.strip("steps", place, (from) => {
    for (const column of columns) {
      if (column.x + column.width <= from) continue;
      pen.group(() => `Step ${number(column.step.step)}, ${duration(column.step.took_ms)}`, () =>
        drawColumn(pen, column, { history, theme, perMs, panel: steps, focus }));
    }
  });
}

function drawColumn(pen, { x, width, step }, { history, theme, perMs, panel, focus }) {
  const drawn = width >= 4 ? width - 1 : width; // a hair between neighbours
  let sum = 0;
  let low = panel.bottom;
  for (const part of step.parts) {
    sum += part.share_ms;
    const high = Math.max(Math.round(panel.bottom - sum * perMs), panel.top);
    if (high < low) {
      const alpha = focus === null || focus === part.key ? 1 : DIM;
      pen.fill(x, high, drawn, low - high, theme.hueOf(history, part.key), { hatched: part.kind === "prefill", alpha });
      low = high;
    }
  }
  const whole = Math.max(Math.round(panel.bottom - step.took_ms * perMs), panel.top);
  if (whole < low) pen.fill(x, whole, drawn, low - whole, theme.edge, { alpha: focus === null ? 1 : DIM });
  if (step.took_ms * perMs > panel.height + 1) {
    const middle = x + drawn / 2;
    pen.shape([[middle - 4, panel.top - 1], [middle + 4, panel.top - 1], [middle, panel.top - 7]], theme.ink);
  }
}

function drawScale(pen, { steps, time }, theme, top) {
  const unit = top < 1000 ? { ms: 1, name: "ms" } : { ms: 1000, name: "s" };
  for (const tick of [0, ...msTicks(top)]) {
    const y = Math.round(steps.bottom - (tick / top) * steps.height) + 0.5;
    pen.line([[time.left, y], [time.right, y]], tick === 0 ? theme.edge : theme.rule);
    const value = Number((tick / unit.ms).toPrecision(3));
    pen.words(time.left - 6, y + 3.5, tick === top ? `${value} ${unit.name}` : `${value}`, theme.inkSoft, { anchor: "end" });
  }
}

/** Steps that were run and not sent: a grey mark where they were, and how many, summed where numbers would not fit. */
export function drawLeftOut(pen, { history, layout, theme }) {
  const { time, leftOut } = layout;
  const groups = new Map();
  for (let place = history.leftOut.length - 1; place >= 0; place -= 1) {
    const { from, to, steps, ms } = history.leftOut[place];
    if (to < time.from) break;
    if (from > time.to) continue;
    const middle = Math.floor((from + to) / 2 / (time.perPixel * NUMBER_APART)); // fixed to the time, so that sums stay
    const group = groups.get(middle) ?? { from, to, steps: 0, ms: 0 };
    groups.set(middle, { from: Math.min(from, group.from), to: Math.max(to, group.to), steps: group.steps + steps, ms: group.ms + ms });
  }
  pen.clipped(time.left, leftOut.top, time.width + 1, leftOut.height, () => {
    for (const { from, to, steps, ms } of groups.values()) {
      const [x, right] = [time.x(from), Math.max(time.x(to), time.x(from) + 2)];
      pen.group(() => `${count(steps, "step")} not shown one by one, ${duration(ms)} in all`, () => {
        pen.fill(x, leftOut.top, right - x - 1, 3, theme.edge);
        pen.words((x + right) / 2, leftOut.bottom - 1, `+${number(steps)}`, theme.inkSoft, { size: 10, anchor: "middle" });
      });
    }
  });
}
