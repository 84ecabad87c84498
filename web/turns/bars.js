// Lives: one bar a request over the same time axis, from its arrival to its end, with first token and worst gap.
//
// Draws on any pen. What a bar is made of is said by lives.js.

import { nameOf } from "./history.js";
import { endOf, gapOf, isOver, spansOf, ttftOf } from "./lives.js";
import { topOfRow } from "./layout.js";
import { duration, number } from "./words.js";

const BADLY = new Set(["cancelled", "deadline", "failed"]);
const DIM = 0.25;
const SIGNS = { met: " ✓", missed: " ✗", open: "", none: "" };

export function drawBars(pen, { history, layout, theme, focus, now, lives }) {
  const { time, bars, rowHeight } = layout;
  for (const { life, top, before, after } of placed(lives, layout, now)) {
    const bar = { top: top + Math.max(Math.round(rowHeight * 0.2), 1), height: Math.max(Math.round(rowHeight * 0.6), 5) };
    const alpha = focus === null || focus === life.key ? 1 : DIM;
    const name = nameOf(history, life.key);
    pen.group(() => barTitle(life, name, now), () => {
      pen.clipped(time.left, top, layout.width - time.left, rowHeight, () => {
        drawSpans(pen, life, { bar, time, colour: theme.hueOf(history, life.key), theme, alpha, now });
        drawEnd(pen, life, { bar, time, theme, now });
      });
      if (rowHeight >= 11) drawWords(pen, life, { name, bar, layout, theme, now, before, after });
    });
  }
  pen.line([[time.left, bars.bottom + 0.5], [time.right, bars.bottom + 0.5]], theme.edge);
}

/** Each life with its row's top, and where in that row the bar before it ends and the one after it begins. */
function placed(lives, layout, now) {
  const { time, width } = layout;
  const found = [];
  for (const life of lives) { // by row, then by time
    const top = topOfRow(layout, life);
    if (top === null) continue;
    const last = found.at(-1);
    const sameRow = last !== undefined && last.life.row === life.row;
    if (sameRow) last.after = time.x(life.received_at);
    found.push({ life, top, before: sameRow ? time.x(endOf(last.life, now)) : 0, after: width });
  }
  return found;
}

/** The name before the bar, the figures behind it, each where there is room. */
function drawWords(pen, life, { name, bar, layout, theme, now, before, after }) {
  const { time, compact } = layout;
  const y = bar.top + bar.height - 2;
  const at = Math.max(time.x(life.received_at), time.left) - 5;
  if (at - pen.measure(name, { bold: true }) > before + 2) pen.words(at, y, name, theme.ink, { anchor: "end", bold: true });
  if (compact) return;
  const text = figures(life, now);
  const wide = pen.measure(text);
  const behind = time.x(endOf(life, now)) + 8;
  const from = behind + wide > time.right ? time.right + 8 : behind; // beside the line of now, never across it
  const room = after === layout.width ? after : after - 30; // the next one has a name, too
  if (from > time.left && from + wide < room) pen.words(from, y, text, theme.inkSoft);
}

function drawSpans(pen, life, { bar, time, colour, theme, alpha, now }) {
  const { top, height } = bar;
  const middle = Math.round(top + height / 2) + 0.5;
  for (const { what, from, to } of spansOf(life, now)) {
    if (to < time.from || from > time.to) continue;
    const x = Math.max(time.x(from), time.left - 4);
    const width = Math.max(Math.min(time.x(to), time.right) - x, 1);
    switch (what) {
      case "waiting":
        pen.frame(x, top, width, height, colour, { alpha });
        break;
      case "prefill":
      case "prefilling":
        pen.fill(x, top, width, height, colour, { hatched: true, alpha });
        break;
      case "decode":
        pen.fill(x, top, width, height, colour, { alpha });
        break;
      default: // off the device: what lies below is taken away, and a line goes on
        pen.fill(x, top, width, height, theme.raised);
        pen.line([[x, middle], [x + width, middle]], colour, { thick: 2, dash: what === "preempted" ? [4, 3] : [1, 3], alpha });
    }
  }
}

function drawEnd(pen, life, { bar, time, theme, now }) {
  const { top, height } = bar;
  const due = life.ttft_target_ms === null || life.first_seen_running ? null : time.x(life.received_at + life.ttft_target_ms / 1000);
  const late = ttftOf(life, now).verdict === "missed";
  if (due !== null && (late || due <= time.x(endOf(life, now)))) {
    if (late) pen.line([[due + 0.5, top - 2], [due + 0.5, top + height + 2]], theme.alarm, { thick: 2 });
    else pen.line([[due + 0.5, top - 3], [due + 0.5, top + 3]], theme.ink);
  }
  if (!isOver(life)) return;
  const x = time.x(endOf(life, now));
  if (life.state === "refused" || BADLY.has(life.reason)) {
    const [half, y] = [Math.min(height / 2, 4), top + height / 2];
    for (const turn of [1, -1]) pen.line([[x + 2, y - half * turn], [x + 2 + 2 * half, y + half * turn]], theme.alarm, { thick: 2 });
  } else {
    pen.fill(x, top - 1, 2, height + 2, theme.ink);
  }
}

/** Behind a bar: how soon, how evenly, and how far. Words and signs, not colour. */
function figures(life, now) {
  if (life.state === "refused") return "refused";
  const [ttft, gap] = [ttftOf(life, now), gapOf(life)];
  const parts = [];
  if (ttft.ms !== null) parts.push(`first ${duration(ttft.ms)}${SIGNS[ttft.verdict]}`);
  else if (ttft.verdict === "missed") parts.push("first ✗");
  if (gap.ms !== null) parts.push(`gap ${duration(gap.ms)}${SIGNS[gap.verdict]}`);
  if (!isOver(life)) {
    if (life.state === "queued") parts.unshift(life.position === null ? "waiting" : `waiting, place ${number(life.position)}`);
    if (life.state === "preempted") parts.unshift("preempted");
    if (life.state === "prefilling" && life.input_tokens > 0) {
      parts.unshift(`read ${Math.floor((100 * life.prefilled_tokens) / life.input_tokens)}%`);
    }
  }
  return parts.join(" · ");
}

function barTitle(life, name, now) {
  return `${name}: ${life.state}, ${figures(life, now)}`;
}
