// Which minute is looked at: the newest, moving on, or one that stands still. Plain data.
//
// `end` is the right edge in Unix seconds while the view stands still, and null while it follows what happens.

export function newView() {
  return { span: 60, end: null };
}

export function isLive(view) {
  return view.end === null;
}

export function endOfView(view, now) {
  return view.end ?? now;
}

export function pause(view, now) {
  view.end ??= now;
}

export function resume(view) {
  view.end = null;
}

/** Moves a view by seconds, back if negative, within what is kept. It then stands still, until `resume`. */
export function scrollBy(view, seconds, now, oldest) {
  moveTo(view, endOfView(view, now) + seconds, now, oldest);
}

export function moveTo(view, end, now, oldest) {
  const earliest = oldest === null ? now : Math.min(oldest + view.span * 0.9, now);
  view.end = Math.min(Math.max(end, earliest), now);
}

/** So that `time` is in sight, with some room around it. */
export function reveal(view, time, now, oldest) {
  const end = endOfView(view, now);
  const room = view.span * 0.1;
  if (time > end - room * 0.2) moveTo(view, time + room, now, oldest);
  else if (time < end - view.span + room * 0.5) moveTo(view, time + view.span - room, now, oldest);
  else pause(view, now);
}

/** Another span; the right edge stays, or, where something is looked at, that stays where it is. */
export function zoom(view, span, now, oldest, around = null) {
  if (around !== null && view.end !== null) {
    const place = (view.end - around) / view.span;
    view.span = span;
    moveTo(view, around + place * span, now, oldest);
    return;
  }
  view.span = span;
}
