// Of which moment the pool, the waiting room and the list of lives tell, where that is not plainly now: words, "" for now.
//
// Plain data in, text out. The pool stands beside the picture and is of its right edge; of the others only the newest is known.

import { clock } from "./words.js";

/** `heardAt`: of the newest frame, or null. `current`: frames come. `end`: where the picture stands still, or null. */
export function momentsOf({ heardAt, current, end }) {
  if (heardAt === null) return { pool: "", waiting: "", lives: "" };
  const heard = current ? "" : `As at ${clock(heardAt)}, when last heard.`;
  if (end === null) return { pool: heard, waiting: heard, lives: heard };
  const newest = heard || "As it is now, not at the moment shown.";
  return { pool: `At the moment shown, ${clock(Math.min(end, heardAt))}.`, waiting: newest, lives: heard || "As they are now, not at the moment shown." };
}
