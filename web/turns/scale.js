// From times and milliseconds to pixels, and where the gridlines stand. Plain numbers.

const STEPS_S = [1, 2, 5, 10, 15, 30, 60, 120, 300];
const CALM_S = 4; // a scale shrinks only after it has been too large for so long
const OUTLIER = 8;

/** The time axis: `span` seconds that end at `end`, on `width` pixels from `left`. Whole pixels, at places that are fixed to
 *  the time, so that a picture which moves on does not flicker. */
export function timeScale(end, span, left, width) {
  const perPixel = span / width;
  const endPixel = Math.floor(end / perPixel);
  const right = left + width;
  return {
    left,
    right,
    width,
    perPixel,
    endPixel,
    from: (endPixel - width) * perPixel,
    to: (endPixel + 1) * perPixel,
    x: (time) => right - (endPixel - Math.floor(time / perPixel)),
    time: (x) => (endPixel - (right - x)) * perPixel,
  };
}

/** Times of the gridlines, so that labels stand at least `apart` pixels from one another. */
export function timeTicks({ from, to, perPixel }, apart) {
  const step = STEPS_S.find((each) => each / perPixel >= apart) ?? STEPS_S.at(-1);
  const ticks = [];
  for (let at = Math.ceil(from / step) * step; at <= to; at += step) ticks.push(at);
  return ticks;
}

/** What a scale may reach, in tens, and how many gridlines part it. */
const TOPS = [[1, 4], [1.5, 3], [2, 4], [3, 3], [4, 4], [5, 5], [6, 3], [8, 4], [10, 4]];

/** The next round number that is not below `value`. */
export function roundUp(value) {
  const magnitude = 10 ** Math.floor(Math.log10(value));
  const [factor] = TOPS.find(([each]) => each * magnitude >= value * 0.999999);
  return factor * magnitude;
}

/** Milliseconds of the gridlines, three to five of them, the last at `top`, which is round. */
export function msTicks(top) {
  const first = top / 10 ** Math.floor(Math.log10(top) + 1e-9);
  const [, lines] = TOPS.find(([each]) => Math.abs(each - first) < 1e-6) ?? [1, 4];
  return Array.from({ length: lines }, (_, place) => ((place + 1) * top) / lines);
}

/** What the steps' scale should reach, in milliseconds: the tallest, unless one alone would flatten all others. */
export function wantedTop(heights) {
  if (heights.length === 0) return null;
  const sorted = [...heights].sort((one, other) => one - other);
  const tallest = sorted.at(-1);
  const usual = sorted[Math.floor((sorted.length - 1) * 0.95)];
  return roundUp(Math.max(sorted.length >= 20 && tallest > OUTLIER * usual ? 2.5 * usual : tallest, 1));
}

/** Follows `wanted` at once upwards, and downwards only when it has stayed lower for a while. `state` is what the last call
 *  gave, null at first. `wanted` null: there is nothing to be scaled. */
export function calm(state, wanted, now) {
  if (wanted === null) return state;
  if (state === null || wanted >= state.top) return { top: wanted, lowerSince: null };
  const since = state.lowerSince ?? now;
  return now - since >= CALM_S ? { top: wanted, lowerSince: null } : { top: state.top, lowerSince: since };
}
