// The canvas: when it is drawn again, which part of the past it shows, and what is pointed at on it.
//
// Draws only when something has changed, at most once a frame (twice a second where less motion is wanted). Knows what a
// pointer and a key do to the view. What the picture looks like is drawing.js.

import { columnsIn } from "./columns.js";
import { draw, find, legendLines, poolShown, stepBeside } from "./drawing.js";
import { livesBetween, oldest } from "./history.js";
import { layOut } from "./layout.js";
import { CanvasPen, SvgPen } from "./pens.js";
import { wantedBlocks } from "./pool.js";
import { calm, wantedTop } from "./scale.js";
import { readTheme } from "./theme.js";
import { endOfView, isLive, moveTo, newView, pause, resume, reveal, scrollBy, zoom } from "./view.js";
import { clock } from "./words.js";

const DRAG_FROM_PX = 5;
const CALM_MS = 500;
const EMPTY_MS = 100; // what the steps' scale reaches while there are none
const PAGE = 0.5; // of the span, that Page Up and Page Down move

export class Picture {
  #canvas;
  #pen;
  #history;
  #onSelect;
  #onView;
  #onDrawn;
  #view = newView();
  #theme = null;
  #width = 0;
  #scale = null; // of milliseconds, and of blocks: scale.calm
  #blocks = null;
  #offset = null; // server's clock minus ours, in seconds; null: time stands still
  #drawn = ""; // what the last drawing was of
  #last = null; // the last picture
  #changes = 0;
  #timer = null;
  #pointer = null; // {x, y} of a mouse over the canvas
  #drag = null;
  #pointed = null; // {step} | {key} | {pool, at}
  #pinned = null;
  #lessMotion = matchMedia("(prefers-reduced-motion: reduce)");

  /** `onSelect(selected, {pinned})` when something else is pointed at, or its numbers may have changed; `onView()` when the
   *  view was paused, moved or resumed; `onDrawn(pool)` when it was drawn, with the pool of its right edge. */
  constructor({ canvas, history, onSelect, onView, onDrawn }) {
    this.#canvas = canvas;
    this.#pen = new CanvasPen(canvas.getContext("2d", { alpha: false }));
    this.#history = history;
    this.#onSelect = onSelect;
    this.#onView = onView;
    this.#onDrawn = onDrawn;
    new ResizeObserver(() => this.changed()).observe(canvas);
    const repaint = () => {
      this.#theme = null;
      this.changed();
    };
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
    this.#lessMotion.addEventListener("change", repaint);
    document.addEventListener("visibilitychange", () => this.changed());
    this.#listen();
    this.changed();
  }

  get view() {
    return this.#view;
  }

  get live() {
    return isLive(this.#view);
  }

  /** Unix seconds at the server, as well as it can be told. */
  get now() {
    const newest = this.#history.at ?? Date.now() / 1000;
    return this.#offset === null ? newest : Math.max(newest, performance.now() / 1000 + this.#offset);
  }

  /** The lives in view. */
  get lives() {
    const end = endOfView(this.#view, this.now);
    return livesBetween(this.#history, end - this.#view.span, end);
  }

  /** Something that is drawn has changed. */
  changed() {
    this.#changes += 1;
    this.#schedule();
  }

  /** A frame of that time has just come; the first after a hello sets the clock anew. */
  heard(at, { first = false } = {}) {
    const offset = at - performance.now() / 1000;
    if (first || this.#offset === null || offset > this.#offset) this.#offset = offset;
    this.changed();
  }

  /** The feed is lost: time stands still until the next frame. */
  freeze() {
    this.#offset = null;
    this.changed();
  }

  // --- the view ------------------------------------------------------------------------------------------------------

  pause() {
    pause(this.#view, this.now);
    this.#moved();
  }

  resume() {
    resume(this.#view);
    this.#moved();
  }

  span(seconds) {
    zoom(this.#view, seconds, this.now, oldest(this.#history), this.#shown()?.step?.at ?? null);
    this.#scale = null;
    this.#moved();
  }

  #scroll(seconds) {
    scrollBy(this.#view, seconds, this.now, oldest(this.#history));
    this.#moved();
  }

  #moved() {
    this.#onView();
    this.changed();
  }

  // --- pointing ------------------------------------------------------------------------------------------------------

  /** Keeps a request pointed at, or with null nothing. */
  pin(key) {
    this.#pinned = key === null ? null : { key };
    this.#pointed = null;
    this.#say();
  }

  #shown() {
    const shown = this.#pinned ?? this.#pointed;
    if (shown?.key === undefined) return shown;
    const life = this.#history.lives.get(shown.key);
    return life === undefined ? null : { life };
  }

  #say() {
    this.#onSelect(this.#shown(), { pinned: this.#pinned !== null });
    this.changed();
  }

  #point(found) {
    const pointed = found?.life === undefined ? found : { key: found.life.key };
    const same = pointed?.step === this.#pointed?.step && pointed?.key === this.#pointed?.key && pointed?.at === this.#pointed?.at;
    this.#pointed = pointed;
    if (!same && this.#pinned === null) this.#say();
  }

  #pinAt(x, y) {
    const found = this.#last === null ? null : find(this.#last, x, y);
    this.#pointed = null;
    this.#pinned = found?.life === undefined ? found : { key: found.life.key };
    this.#say();
  }

  #stepBy(by) {
    const from = this.#pinned?.step ?? this.#pointed?.step ?? null;
    const step = stepBeside(this.#history, from, by, endOfView(this.#view, this.now));
    if (step === null) return;
    const pinned = this.#pinned !== null;
    [this.#pointed, this.#pinned] = pinned ? [null, { step }] : [{ step }, null];
    reveal(this.#view, step.at, this.now, oldest(this.#history));
    this.#moved();
    this.#say();
  }

  #listen() {
    const canvas = this.#canvas;
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      this.#drag = { x: event.clientX, end: endOfView(this.#view, this.now), moving: false };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => this.#pointerMoved(event));
    canvas.addEventListener("pointerup", (event) => {
      if (this.#drag !== null && !this.#drag.moving) this.#pinAt(event.offsetX, event.offsetY);
      this.#drag = null;
    });
    canvas.addEventListener("pointercancel", () => (this.#drag = null));
    canvas.addEventListener("pointerleave", () => {
      this.#pointer = null;
      this.#point(null);
    });
    canvas.addEventListener("wheel", (event) => {
      const along = event.shiftKey && event.deltaX === 0 ? event.deltaY : event.deltaX;
      // A wheel that turns downwards scrolls the page, as everywhere.
      if (event.ctrlKey || along === 0 || Math.abs(along) < (event.shiftKey ? 0 : Math.abs(event.deltaY))) return;
      event.preventDefault();
      this.#scroll(along * (this.#last?.layout.time.perPixel ?? 0));
    }, { passive: false });
    canvas.addEventListener("keydown", (event) => this.#keyDown(event));
  }

  #pointerMoved(event) {
    const drag = this.#drag;
    if (drag !== null) {
      const moved = event.clientX - drag.x;
      if (!drag.moving && Math.abs(moved) < DRAG_FROM_PX) return;
      drag.moving = true;
      moveTo(this.#view, drag.end - moved * (this.#last?.layout.time.perPixel ?? 0), this.now, oldest(this.#history));
      this.#moved();
      return;
    }
    if (event.pointerType !== "mouse") return;
    this.#pointer = { x: event.offsetX, y: event.offsetY };
    if (this.#last !== null) this.#point(find(this.#last, event.offsetX, event.offsetY));
  }

  #keyDown(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const { span } = this.#view;
    const along = { ArrowLeft: -1, ArrowRight: 1, ArrowDown: -1, ArrowUp: 1 }[event.key];
    if (along !== undefined) {
      if (event.shiftKey) this.#scroll((along * span) / 6);
      else this.#stepBy(along);
    } else if (event.key === "PageUp" || event.key === "PageDown") {
      this.#scroll((event.key === "PageUp" ? -PAGE : PAGE) * span);
    } else if (event.key === "Home") {
      moveTo(this.#view, -Infinity, this.now, oldest(this.#history));
      this.#moved();
    } else if (event.key === "End") {
      this.resume();
    } else if (event.key === "Enter") {
      this.#pinned = this.#pinned ?? this.#pointed;
      this.#say();
    } else if (event.key === "Escape") {
      this.#pointed = null;
      this.pin(null);
    } else {
      return;
    }
    event.preventDefault();
  }

  // --- drawing -------------------------------------------------------------------------------------------------------

  #schedule() {
    if (this.#timer !== null || document.hidden) return;
    const later = this.#lessMotion.matches ? (work) => setTimeout(work, CALM_MS) : requestAnimationFrame;
    this.#timer = later(() => {
      this.#timer = null;
      this.#drawIfNew();
      if (this.live && this.#offset !== null) this.#schedule();
    });
  }

  #drawIfNew() {
    this.#width = this.#canvas.clientWidth;
    if (this.#width === 0) return;
    const end = endOfView(this.#view, this.now);
    const pixel = Math.floor((end * this.#width) / this.#view.span);
    const key = `${pixel} ${this.#changes} ${this.#history.version} ${this.#width} ${devicePixelRatio}`;
    if (key === this.#drawn) return;
    this.#drawn = key;
    const picture = this.#picture(end);
    const { layout } = picture;
    this.#canvas.style.height = `${layout.height}px`;
    this.#pen.begin(layout.width, layout.height, devicePixelRatio, this.#theme.raised, layout.time.endPixel % 6);
    draw(this.#pen, picture);
    this.#history.touched = Infinity;
    this.#last = picture;
    this.#onDrawn(poolShown(picture));
    if (this.#pointer !== null && this.live) this.#point(find(picture, this.#pointer.x, this.#pointer.y));
  }

  #picture(end) {
    this.#theme ??= readTheme(this.#canvas);
    const [history, width] = [this.#history, this.#width];
    const lines = legendLines((text, style) => this.#pen.measure(text, style), width);
    const { lives } = this;
    const layout = layOut({ width, end, span: this.#view.span, lives, legendLines: lines });
    const columns = columnsIn(history, layout.time);
    const wanted = wantedTop(columns.map(({ step }) => step.took_ms));
    this.#scale = calm(this.#scale, wanted, performance.now() / 1000);
    this.#blocks = calm(this.#blocks, wantedBlocks(history, layout.time), performance.now() / 1000);
    const selected = this.#shown();
    return {
      history, layout, theme: this.#theme, selected, live: this.live && this.#offset !== null, columns, lives,
      now: end, // so that what still runs stands still with the picture
      top: this.#scale?.top ?? EMPTY_MS, blocks: this.#blocks?.top ?? null, touched: history.touched, focus: selected?.life?.key ?? null,
    };
  }

  /** What is seen now, as an SVG document: {name, text}. */
  svg() {
    const picture = this.#picture(endOfView(this.#view, this.now));
    const { width, height, time } = picture.layout;
    const { hello } = this.#history;
    const day = new Date(time.to * 1000);
    const range = `${day.toISOString().slice(0, 10)}, ${clock(time.from)} to ${clock(time.to)}`;
    const made = hello === null ? [] : [hello.model, `policy ${hello.policy}`, `${hello.device}, ${hello.kernels}`];
    const title = ["rota: whose turn it is", ...made, range].join(" · ");
    const pen = new SvgPen({
      width, height: height + 24, title, ground: this.#theme.raised, measure: (text, style) => this.#pen.measure(text, style),
    });
    draw(pen, picture);
    pen.words(12, height + 12, title, this.#theme.inkSoft);
    return { name: `rota-turns-${day.toISOString().slice(0, 19).replaceAll(":", "-")}.svg`, text: pen.document() };
  }
}
