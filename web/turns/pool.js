// The KV pool over time: each request's blocks in its colour, what is cached above them, what is free above that.
//
// Draws on any pen. Blocks that several requests share are counted for each of them; here they share the height.

import { placeOf } from "./history.js";
import { roundUp } from "./scale.js";
import { count, number } from "./words.js";

const DIM = 0.22;

/** How many blocks the panel should reach: all there are, or, where few are taken, a round number above these. */
export function wantedBlocks(history, time) {
  let [most, total] = [0, 0];
  const { pools } = history;
  for (let place = Math.max(placeOf(pools, time.from) - 1, 0); place < pools.length && pools[place].at <= time.to; place += 1) {
    most = Math.max(most, pools[place].used + pools[place].cached);
    total = Math.max(total, pools[place].total);
  }
  if (total === 0) return null;
  const wanted = roundUp(Math.max(most, total / 100, 1));
  return wanted < total / 2 ? wanted : total;
}

/** `blocks`: how many the panel reaches. */
export function drawPool(pen, { history, layout, theme, focus, touched, blocks }) {
  const { time, pool: panel } = layout;
  const place = {
    x: time.left, y: panel.top, width: time.width, height: panel.height, end: time.endPixel,
    key: `${focus} ${time.perPixel} ${blocks}`, changed: time.x(touched) - 1,
  };
  pen.group(() => "KV pool: blocks in use by request, cached, free", () =>
    pen.strip("pool", place, (from) => {
      const look = { history, theme, panel, focus, blocks };
      for (const { x, right, sample } of stretches(history, time, from)) drawSample(pen, x, right, sample, look);
    }));
  pen.frame(time.left, panel.top, time.width, panel.height, theme.edge);
  if (blocks === null) return;
  pen.words(time.left - 6, panel.top + 8, number(blocks), theme.inkSoft, { anchor: "end" });
  pen.words(time.left - 6, panel.bottom, "0", theme.inkSoft, { anchor: "end" });
}

/** Samples in view at and behind `from`, each as far as the next one, whole pixels. */
function stretches(history, time, from) {
  const { pools } = history;
  const found = [];
  const last = Math.min(time.x(history.at ?? 0), time.right);
  for (let place = Math.max(placeOf(pools, time.time(from)) - 1, 0); place < pools.length && pools[place].at <= time.to; place += 1) {
    const next = pools[place + 1];
    const x = Math.max(time.x(pools[place].at), time.left);
    const right = next === undefined ? last : Math.min(time.x(next.at), last);
    if (right > x) found.push({ x, right, sample: pools[place] });
  }
  return found;
}

function drawSample(pen, x, right, { cached, used, total, held }, { history, theme, panel, focus, blocks: most }) {
  const perBlock = panel.height / Math.max(most ?? total, 1);
  const sum = held.reduce((all, [, blocks]) => all + blocks, 0);
  const share = sum > used ? used / sum : 1;
  let blocks = 0;
  let low = panel.bottom;
  const upTo = (whole, colour, alpha) => {
    blocks = whole;
    const high = Math.max(Math.round(panel.bottom - blocks * perBlock), panel.top);
    if (high >= low) return;
    pen.fill(x, high, right - x, low - high, colour, { alpha });
    low = high;
  };
  for (const [key, its] of held) upTo(blocks + its * share, theme.hueOf(history, key), focus === null || focus === key ? 1 : DIM);
  upTo(Math.max(used, blocks), theme.edge, focus === null ? 1 : DIM);
  upTo(blocks + cached, theme.cached, 1);
  upTo(Math.max(total, blocks), theme.sunk, 1);
}

/** "free 812, cached 96, used 340 of 1,248 blocks of 32 tokens" */
export function poolWords(pool, hello) {
  const sizes = `free ${number(pool.free)}, cached ${number(pool.cached)}, used ${number(pool.used)}`;
  const each = hello === null ? "" : ` of ${count(hello.block_tokens, "token")}`;
  return `${sizes} of ${count(pool.total, "block")}${each}`;
}
