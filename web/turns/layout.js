// Where on the sheet each panel of the picture stands. Plain numbers; knows nothing of what is drawn there.

import { timeScale } from "./scale.js";

const FEW_ROWS = 4; // room is kept for so many lives, so that the first ones do not push the page about
const MOST_ROWS = 64;
const COMPACT_BELOW = 640;
const PATIENT_LIVES_PX = 620;

/** Panels from top to bottom, in CSS pixels: each {top, height, bottom}; `time` is the axis they share.
 *
 *  `rows` maps the rows of those lives that are in view to 0, 1, 2, …; more than 64 are not drawn. */
export function layOut({ width, end, span, lives, legendLines = 1 }) {
  const compact = width < COMPACT_BELOW;
  const left = compact ? 44 : 58;
  const margin = compact ? 10 : 176;
  const time = timeScale(end, span, left, Math.max(Math.floor(width - left - margin), 40));
  const used = [...new Set(lives.map(({ row }) => row))].sort((one, other) => one - other);
  const rows = new Map(used.slice(0, MOST_ROWS).map((row, place) => [row, place]));
  const many = Math.max(rows.size, FEW_ROWS);
  const rowHeight = Math.max(9, Math.min(compact ? 20 : 24, Math.floor(PATIENT_LIVES_PX / many)));

  const legend = panel(10, legendLines * 18);
  const steps = panel(legend.bottom + 28, compact ? 150 : 210);
  const leftOut = panel(steps.bottom + 3, 16);
  const pool = panel(leftOut.bottom + 48, compact ? 80 : 96);
  const bars = panel(pool.bottom + 32, many * rowHeight);
  return { width, height: bars.bottom + 26, compact, time, rows, rowHeight, legend, steps, leftOut, pool, bars };
}

function panel(top, height) {
  return { top, height, bottom: top + height };
}

/** The top of a life's row, or null if it has none in this picture. */
export function topOfRow(layout, life) {
  const place = layout.rows.get(life.row);
  return place === undefined ? null : layout.bars.top + place * layout.rowHeight;
}
