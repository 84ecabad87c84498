// The whole picture, on any pen: legend, steps, pool, lives, and what is pointed at.
//
// Pure: from the history and a view to calls on a pen. Knows no page and no time but what it is given.

import { drawBars } from "./bars.js";
import { drawLeftOut, drawSteps } from "./columns.js";
import { placeOf, poolAt } from "./history.js";
import { endOf } from "./lives.js";
import { topOfRow } from "./layout.js";
import { drawPool } from "./pool.js";
import { timeTicks } from "./scale.js";
import { clock, count, duration, number } from "./words.js";

const NEAR_PX = 8;
const LEGEND = [
  ["hatched", "prefill: reading a prompt"],
  ["plain", "decode: writing a token"],
  ["frame", "waiting"],
  ["dashes", "preempted"],
  ["tick", "first token due"],
  ["cached", "cached blocks"],
  ["triangle", "step cut off at the top"],
];

/** Draws it all. `columns` are the steps in view (columns.js) and `lives` the lives in view. `selected` is {step} or {life} or
 *  {pool, at} or null; `live` says that the right edge is now. */
export function draw(pen, picture) {
  drawLegend(pen, picture);
  drawTimes(pen, picture);
  drawSteps(pen, picture);
  drawLeftOut(pen, picture);
  drawPool(pen, picture);
  drawBars(pen, picture);
  drawAbsences(pen, picture);
  drawTitles(pen, picture);
  drawSelected(pen, picture);
  if (picture.live) drawNow(pen, picture);
}

// --- what frames it --------------------------------------------------------------------------------------------------

/** How many lines the legend needs at this width, by a pen's measure. */
export function legendLines(measure, width) {
  return 1 + Math.max(...legendPlaces(measure, width).map(({ line }) => line));
}

function legendPlaces(measure, width) {
  let [x, line] = [12, 0];
  return LEGEND.map(([sign, text]) => {
    const wide = 18 + measure(text, {}) + 16;
    if (x > 12 && x + wide - 16 > width - 4) [x, line] = [12, line + 1];
    const placed = { sign, text, x, line };
    x += wide;
    return placed;
  });
}

function drawLegend(pen, { layout, theme }) {
  const colour = theme.hues[0];
  for (const { sign, text, x, line } of legendPlaces((words, style) => pen.measure(words, style), layout.width)) {
    const y = layout.legend.top + line * 18;
    if (sign === "hatched") pen.fill(x, y, 12, 12, colour, { hatched: true });
    if (sign === "plain") pen.fill(x, y, 12, 12, colour);
    if (sign === "frame") pen.frame(x, y, 12, 12, colour);
    if (sign === "dashes") pen.line([[x, y + 6.5], [x + 12, y + 6.5]], colour, { thick: 2, dash: [4, 3] });
    if (sign === "tick") pen.line([[x + 6.5, y], [x + 6.5, y + 12]], theme.ink);
    if (sign === "triangle") pen.shape([[x + 2, y + 9], [x + 10, y + 9], [x + 6, y + 3]], theme.ink);
    if (sign === "cached") pen.fill(x, y, 12, 12, theme.cached);
    pen.words(x + 18, y + 10, text, theme.inkSoft);
  }
}

function drawTimes(pen, { layout, theme }) {
  const { time, leftOut, steps, bars } = layout;
  for (const at of timeTicks(time, layout.compact ? 76 : 92)) {
    const x = time.x(at) + 0.5;
    pen.line([[x, steps.top], [x, bars.bottom]], theme.rule);
    if (x < time.left + 22 || x > time.right - 26) continue;
    for (const y of [leftOut.bottom + 12, bars.bottom + 16]) pen.words(x, y, clock(at), theme.inkSoft, { size: 10.5, anchor: "middle" });
  }
}

function drawTitles(pen, { history, layout, theme, now, lives, columns, blocks }) {
  const { time, steps, pool, bars, compact } = layout;
  const title = (text, { top }) => pen.words(compact ? 8 : time.left, top - 10, text, theme.ink, { size: 12, bold: true });
  title("Steps: how long each took", steps);
  title(poolTitle(history, layout, blocks), pool);
  const hidden = lives.filter((life) => topOfRow(layout, life) === null).length;
  const more = hidden > 0 ? `; ${number(hidden)} more in the list` : "";
  title(`Lives: one bar a request${compact ? "" : ", from its arrival to its end"}${more}`, bars);
  if (compact) return;
  const x = time.right + 12;
  const list = (lines, { top }) => lines.forEach((text, line) => pen.words(x, top + 12 + line * 17, text, theme.inkSoft));
  const last = columns.at(-1)?.step;
  if (last !== undefined) {
    const ran = new Set(last.parts.map(({ key }) => key)).size;
    list([`step ${number(last.step)}`, duration(last.took_ms), `${count(ran, "request")} in it`], steps);
  }
  const held = poolShown({ history, layout, now });
  if (held === null) return;
  const { free, cached, used, total } = held;
  list([`${number(free)} free`, `${number(cached)} cached`, `${number(used)} used`, `of ${count(total, "block")}`], pool);
}

/** How the pool is at the right edge; null where nothing is known. */
export function poolShown({ history, layout, now }) {
  return poolAt(history, Math.min(now, layout.time.to));
}

/** Says so where the panel does not reach to the top of the memory. */
function poolTitle(history, { time, compact }, blocks) {
  const total = poolAt(history, time.to)?.total ?? 0;
  if (blocks === null || blocks >= total) return "KV pool: who holds the memory, in blocks";
  if (compact) return `KV pool: the first ${number(blocks)} blocks`;
  return `KV pool: who holds the memory, the first ${number(blocks)} of ${count(total, "block")}`;
}

/** Times of which nothing is known, or in which nothing could run. */
function drawAbsences(pen, { history, layout, theme }) {
  const { time, steps, bars } = layout;
  const marks = [
    ...history.away.map(({ from, to }) => ({ from, to, text: "not connected" })),
    ...history.downs.map(({ from, to }) => ({ from, to: to ?? history.at, text: "worker down" })),
    ...history.missed.map(({ at, frames }) => ({ from: at, to: at, text: `${count(frames, "frame")} lost` })),
  ];
  for (const { from, to, text } of marks) {
    if (to < time.from || from > time.to) continue;
    const x = Math.max(time.x(from), time.left);
    const width = Math.max(Math.min(time.x(to), time.right) - x, 2);
    pen.group(() => text, () => {
      pen.fill(x, steps.top, width, bars.bottom - steps.top, theme.edge, { alpha: 0.22 });
      pen.line([[x + 0.5, steps.top], [x + 0.5, bars.bottom]], theme.edge, { dash: [3, 3] });
      if (x + pen.measure(text) + 8 < layout.width) pen.words(x + 5, steps.top + 11, text, theme.ink);
    });
  }
}

function drawNow(pen, { layout, theme }) {
  const { time, steps, bars, leftOut, compact } = layout;
  pen.fill(time.right, steps.top, 2, bars.bottom - steps.top, theme.turn);
  const where = compact ? { anchor: "end" } : { anchor: "start" };
  for (const y of [leftOut.bottom + 12, bars.bottom + 16]) {
    pen.words(compact ? layout.width - 3 : time.right + 6, y, "now", theme.ink, { size: 10.5, bold: true, ...where });
  }
}

// --- pointing --------------------------------------------------------------------------------------------------------

function drawSelected(pen, { selected, layout, theme, now }) {
  const { time, steps, bars, pool } = layout;
  if (selected?.life !== undefined) {
    const top = topOfRow(layout, selected.life);
    if (top === null) return;
    const x = Math.max(time.x(selected.life.received_at) - 2, time.left - 2);
    const right = Math.min(time.x(endOf(selected.life, now)) + 2, time.right + 2);
    if (right > x) pen.frame(x, top + 1, right - x, layout.rowHeight - 2, theme.ink, { thick: 1.5 });
    return;
  }
  const at = selected?.step?.at ?? selected?.at;
  if (at === undefined || at < time.from || at > time.to) return;
  const x = time.x(at);
  const width = selected.step === undefined ? 1 : Math.max(Math.round(selected.step.took_ms / 1000 / time.perPixel), 1);
  pen.line([[x - 0.5, steps.top], [x - 0.5, bars.bottom]], theme.ink, { alpha: 0.55 });
  if (width > 1) pen.line([[x + width - 0.5, steps.top], [x + width - 0.5, bars.bottom]], theme.ink, { alpha: 0.55 });
  const mark = selected.step === undefined ? pool.top : steps.bottom;
  pen.shape([[x + width / 2 - 5, mark + 7], [x + width / 2 + 5, mark + 7], [x + width / 2, mark + 1]], theme.ink);
}

/** What is at this place: {step}, {life}, {pool, at}, or null. */
export function find({ history, layout, columns, lives, now }, x, y) {
  const { time, steps, leftOut, pool, bars, rowHeight } = layout;
  if (x < time.left - NEAR_PX || x > layout.width) return null;
  if (y >= bars.top && y < bars.bottom) return lifeNear(lives, layout, x, Math.floor((y - bars.top) / rowHeight), now);
  if (x > time.right + NEAR_PX) return null;
  if (y >= pool.top && y < pool.bottom) {
    const at = Math.min(time.time(x), now);
    const found = poolAt(history, at);
    return found === null ? null : { pool: found, at };
  }
  if (y >= steps.top - NEAR_PX && y < leftOut.bottom) return stepNear(columns, x);
  return null;
}

function stepNear(columns, x) {
  let best = null;
  let nearest = NEAR_PX;
  for (const { x: left, width, step } of columns) {
    const far = x < left ? left - x : Math.max(x - (left + width - 1), 0);
    if (far < nearest || (far === nearest && best !== null && far === 0)) [best, nearest] = [step, far];
  }
  return best === null ? null : { step: best };
}

function lifeNear(lives, layout, x, row, now) {
  const { time, rows } = layout;
  let best = null;
  let nearest = layout.compact ? 24 : 150; // as far as its figures reach
  for (const life of lives) {
    if (rows.get(life.row) !== row) continue;
    const [left, right] = [time.x(life.received_at), time.x(endOf(life, now))];
    const far = x < left ? (left - x) * 6 : Math.max(x - right, 0);
    if (far < nearest) [best, nearest] = [life, far];
  }
  return best === null ? null : { life: best };
}

/** The step before (`by` -1) or after (`by` 1) this one; from null, the newest or the first up to `until`. */
export function stepBeside(history, step, by, until) {
  const { steps } = history;
  if (step === null) return steps[placeOf(steps, until) - 1] ?? null;
  let place = placeOf(steps, step.at);
  while (place < steps.length && steps[place] !== step && steps[place].at === step.at) place += 1;
  return steps[place + by] ?? null;
}
