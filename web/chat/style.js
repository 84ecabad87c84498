// How the widget looks: one sheet, made once and shared by every <rota-chat> of a page. Within its shadow root it touches
// nothing of the page, and nothing of the page touches it but the custom properties and parts it offers.
//
// A sheet made by a script needs no `style-src` of the page it stands on.

import { markdownStyle } from "./markdown.js";

let made = null;

export function sheets() {
  made ??= [STYLE, markdownStyle].map((css) => {
    const sheet = new CSSStyleSheet();
    // Many a page makes its root smaller to reckon in tenths; what is read here keeps its size.
    sheet.replaceSync(css.replace(/(-?\d*\.?\d+)rem\b/g, "calc($1 * var(--rota-size, max(1rem, 16px)))"));
    return sheet;
  });
  return made;
}

const STYLE = `
  :host {
    /* Ink on paper for what is said; marigold for whose turn it is, and for nothing else. A page changes them by --rota-…. */
    --paper: var(--rota-paper, light-dark(#f8f8f5, #13151c));
    --raised: var(--rota-raised, light-dark(#ffffff, #1c1f29));
    --ink: var(--rota-ink, light-dark(#1c2030, #e9eaf0));
    --ink-soft: var(--rota-ink-soft, light-dark(#565c6e, #a2a8ba));
    --rule: var(--rota-rule, light-dark(#dddcd4, #2b2f3c));
    --edge: var(--rota-edge, light-dark(#878a9b, #6d7388));
    --blue: var(--rota-accent, light-dark(#2f46c4, #9fb0ff));
    --on-blue: var(--rota-on-accent, light-dark(#ffffff, #12163a));
    --turn: var(--rota-turn, light-dark(#f0a81c, #f6bb48));
    --alarm: var(--rota-alarm, light-dark(#a62b1f, #ff9c8c));
    --shadow: 0 8px 28px -12px light-dark(#1c203030, #0009);
    --sunk: color-mix(in srgb, var(--paper), var(--ink) 5%);
    --alarm-paper: color-mix(in srgb, var(--paper), var(--alarm) 9%);
    --measure: var(--rota-measure, 44rem);
    --side: clamp(1rem, 4cqi, 2rem);
    --sans: var(--rota-font, -apple-system, "Segoe UI", Roboto, "Noto Sans", "Liberation Sans", sans-serif);
    --serif: var(--rota-font-display, ui-serif, "Iowan Old Style", Palatino, Georgia, serif);
    --mono: var(--rota-font-mono, ui-monospace, Menlo, Consolas, monospace);
    display: block;
    position: relative;
    block-size: 100%;
    min-block-size: 18rem;
    overflow: hidden;
    border-radius: var(--rota-radius, 0);
    container: rota / inline-size;
    background: var(--paper);
    color: var(--ink);
    font: 1rem/1.6 var(--sans);
    text-align: start;
  }
  :host([hidden]), [hidden] { display: none !important; }

  :host, *, ::before, ::after { box-sizing: border-box; }
  button, input, textarea { font: inherit; color: inherit; }
  button { border: 0; padding: 0; background: none; text-align: start; cursor: pointer; }
  button:disabled { cursor: default; }
  :focus-visible { outline: 3px solid var(--blue); outline-offset: 2px; }

  /* What several have in common. */
  .turns, .suggestions, .talks-list { list-style: none; margin: 0; padding: 0; }
  .quiet, .action, .latest {
    display: flex; align-items: center; gap: .4rem; min-height: 2.5rem; padding: .2rem .9rem; border: 1px solid var(--rule); border-radius: 2rem;
    background: var(--raised); font-size: .9rem;
  }
  .round, .edit, .remove { flex: none; display: grid; place-items: center; width: 2.2rem; height: 2.2rem; border-radius: 50%; }
  .edit:hover, .remove:hover, .talk:hover { background: var(--sunk); }
  .model, .state, .count, .doing, .empty-lead, .turn-number, .aside, .progress, .end-text, .facts, .copy, .hint, .edit, .remove, .editing { color: var(--ink-soft); }
  .action, .notice, .facts, .count, .turn-number { font-variant-numeric: tabular-nums; }
  .icon { width: 1.1rem; height: 1.1rem; fill: none; stroke: currentColor; stroke-width: 1.9; stroke-linecap: round; stroke-linejoin: round; }
  .filled .icon { fill: currentColor; }
  .copy .icon, .edit .icon, .remove .icon { width: .95rem; height: .95rem; stroke-width: 1.6; }
  .unseen { position: absolute; width: 1px; height: 1px; margin: -1px; overflow: hidden; clip-path: inset(50%); white-space: nowrap; }
  .skip { position: absolute; z-index: 3; inset: -4rem auto auto 1rem; padding: .5rem 1rem; border-radius: .6rem; background: var(--raised); color: var(--blue); }
  .skip:focus { inset-block-start: .75rem; }

  /* The ring: six turns, one of them now. */
  .ring { width: 1.5rem; height: 1.5rem; fill: none; stroke-width: 5.5; flex: none; }
  .ring-others { stroke: var(--blue); stroke-dasharray: 7 3 7 3 7 3 7 3 7 13; stroke-dashoffset: -51.5; }
  .ring-turn { stroke: var(--turn); stroke-dasharray: 7 53; stroke-dashoffset: -41.5; }

  /* --- top --- */

  .frame { block-size: 100%; display: grid; grid-template: auto minmax(0, 1fr) auto / minmax(0, 1fr); }
  .top {
    position: relative; display: flex; align-items: center; gap: .1rem 1rem; border-bottom: 1px solid var(--rule);
    padding: max(.7rem, env(safe-area-inset-top)) max(1rem, env(safe-area-inset-right)) .7rem max(1rem, env(safe-area-inset-left));
  }
  .brand { display: flex; align-items: center; gap: .6rem; min-width: 0; flex: 1; }
  .name, ::slotted([slot="heading"]) { margin: 0; font: 600 1.3rem/1 var(--sans); letter-spacing: -.03em; }
  .model { padding-inline-start: .75rem; border-inline-start: 1px solid var(--rule); font-size: .85rem; }
  .model, .talk-title { min-width: 0; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
  .top-end { display: flex; align-items: center; gap: .9rem; min-height: 2.5rem; }
  .state { display: flex; align-items: center; gap: .5rem; font-size: .85rem; white-space: nowrap; }
  .state-dot { flex: none; width: .6rem; height: .6rem; border-radius: 50%; border: 2px solid var(--edge); }
  .state:is([data-state="ready"], [data-state="resting"]) .state-dot { background: var(--turn); border-color: var(--turn); }
  .state[data-state="answering"] .state-dot { background: var(--blue); border-color: var(--blue); }
  .state[data-state="queued"] .state-dot { border-color: var(--turn); }
  .state[data-state="offline"] .state-dot { border-color: var(--alarm); }
  .quiet:hover { border-color: var(--edge); }
  .quiet[data-unread]::after { content: ""; width: .5rem; height: .5rem; border-radius: 50%; background: var(--turn); }

  .talks {
    position: absolute; z-index: 4; inset-block-start: calc(100% + .4rem); inset-inline-end: 1rem; width: min(26rem, calc(100% - 2rem)); max-height: 22rem;
    overflow-y: auto; padding: .4rem; border: 1px solid var(--rule); border-radius: 1rem; background: var(--raised); box-shadow: var(--shadow);
  }
  .talks-list li { display: flex; align-items: center; gap: .2rem; }
  .talk { flex: 1; min-width: 0; display: grid; padding: .5rem .7rem; border-radius: .7rem; line-height: 1.4; }
  .talk[aria-current] { background: var(--sunk); font-weight: 600; }
  .doing { font-size: .82rem; font-weight: 400; }
  .remove:hover { color: var(--alarm); }

  /* --- the conversation --- */

  .scroll { overflow: hidden auto; padding: 0 var(--side); display: flex; flex-direction: column; }
  .scroll:focus-visible { outline-offset: -3px; }
  .panel, .turns { width: 100%; max-width: var(--measure); }
  .panel { margin: auto; padding: 2rem 0; }
  .turns { margin: 0 auto; }
  .empty-title { margin: 0 0 .6rem; font: 400 clamp(1.7rem, 6cqi, 3rem)/1.1 var(--serif); text-wrap: balance; }
  .empty-lead { display: block; margin: 0 0 1.75rem; font-size: 1.06rem; }
  .suggestions { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(18rem, 100%), 1fr)); gap: .7rem; }
  .suggestions button { width: 100%; height: 100%; min-height: 3.4rem; padding: .75rem 1rem; line-height: 1.4; border: 1px solid var(--rule); border-radius: .9rem; background: var(--raised); }
  .suggestions button:hover, .action:hover { border-color: var(--blue); }
  .key-row { display: flex; gap: .6rem; max-width: 30rem; }
  .key-row > * { min-width: 0; padding: .6rem 1rem; border-radius: .8rem; }
  .key-row input { flex: 1; border: 1px solid var(--edge); background: var(--raised); }
  .key-problem { min-height: 1.6em; margin: .7rem 0 0; color: var(--alarm); }

  .turn { display: grid; grid-template-columns: 2.4rem minmax(0, 1fr); padding: 1.9rem 0 2rem; }
  .turn + .turn { border-top: 1px solid var(--rule); }
  .turn.again { padding-top: .4rem; border-top: 0; }
  .turn.again .asked, .turn.again .turn-number::after { display: none; }
  .turn:has(+ .again) { padding-bottom: .8rem; }
  .turn-number { font: 400 1.15rem/1.5rem var(--serif); padding-top: .1rem; }
  .turn:last-child .turn-number::after { content: ""; display: block; width: .9rem; height: 3px; margin-top: .3rem; border-radius: 2px; background: var(--turn); }
  .asked { display: flex; align-items: flex-start; gap: .6rem; margin: 0 0 .9rem; }
  .question { flex: 1; min-width: 0; margin: 0; font: 600 1.08rem/1.5 var(--sans); white-space: pre-wrap; overflow-wrap: anywhere; }
  .question-text { display: block; unicode-bidi: plaintext; }
  .question-text.long { max-height: 9rem; overflow-y: auto; font-weight: 400; }
  .edit { margin-top: -.25rem; opacity: 0; }
  .edit:hover, .copy:hover, .action:hover { color: var(--blue); }
  .turn:is(:hover, :focus-within, :last-child) .edit { opacity: 1; }
  [data-running] .edit { visibility: hidden; }
  .answer { font-size: 1.0625rem; line-height: 1.68; overflow-wrap: anywhere; }
  .turn[data-phase="decoding"] .markdown > :last-child > :last-child:is(p, h3, h4, h5, h6)::after {
    content: ""; display: inline-block; width: .5em; height: 1.05em; margin-inline-start: .15em; vertical-align: -.16em; border-radius: 2px; background: var(--turn);
    animation: breathe 1.2s ease-in-out infinite;
  }
  .turn:is([data-ending="failed"], [data-ending="lost"]) .answer { padding-inline-start: 1rem; border-inline-start: 3px solid var(--alarm); color: var(--ink-soft); }
  .turn:has(+ .again) .facts, :host(:not([figures])) :is(.facts, .model) { display: none; }

  .aside { margin: -.3rem 0 .8rem; font-size: .9rem; font-style: italic; }
  .progress { display: flex; align-items: center; flex-wrap: wrap; gap: .35rem .7rem; min-height: 1.7rem; }
  .progress-text { max-width: calc(100% - 2rem); }
  .progress .ring { width: 1.25rem; height: 1.25rem; }
  .progress .ring-others { stroke: var(--rule); stroke-dasharray: 7 3; stroke-dashoffset: -1.5; }
  .progress .ring-turn { transform-origin: 50% 50%; animation: turns 1.8s steps(6) infinite; }
  .turn[data-phase="queued"] .progress .ring-turn { animation-duration: 6s; }
  .answer:not([hidden]) ~ .progress { margin-top: .8rem; }
  .line { display: flex; gap: .3rem; }
  .line i { width: 1.3rem; height: .5rem; border-radius: 1rem; background: var(--rule); box-shadow: inset 0 0 0 1px var(--edge); }
  .line i:last-child { background: var(--turn); box-shadow: none; }
  .meter { flex: 1 0 100%; max-width: 20rem; height: .35rem; border: 0; border-radius: 1rem; overflow: hidden; background: var(--rule); appearance: none; }
  .meter::-webkit-progress-bar { background: var(--rule); }
  .meter::-webkit-progress-value { background: var(--turn); }
  .meter::-moz-progress-bar { background: var(--turn); }

  .end, .foot { display: flex; flex-wrap: wrap; align-items: center; gap: .4rem 1rem; margin-top: .8rem; }
  .answer[hidden] + .end { margin-top: 0; }
  .end-text { margin: 0; font-size: .95rem; overflow-wrap: anywhere; }
  .turn:is([data-ending="failed"], [data-ending="lost"], [data-ending="refused"]) .end { padding: .7rem .9rem; border-radius: .8rem; background: var(--alarm-paper); }
  .turn:is([data-ending="failed"], [data-ending="lost"]) .end-text { color: var(--alarm); }
  .turn[data-ending="refused"] .end { background: var(--sunk); }
  .turn[data-ending="refused"] .end-text { color: var(--ink); }
  .end-actions { display: flex; flex-wrap: wrap; gap: .5rem; }
  .end-actions:empty, .doing:empty { display: none; }
  .action { border-color: var(--edge); }
  .action[aria-disabled="true"] { color: var(--ink-soft); border-style: dashed; cursor: default; }
  .copy { display: flex; align-items: center; gap: .35rem; min-height: 2rem; margin-inline-start: auto; border-radius: .4rem; font-size: .85rem; }
  .facts { flex: 1 1 9rem; min-width: 0; margin: 0; font-size: .78rem; }

  /* --- the message box --- */

  .bottom {
    position: relative; width: 100%; max-width: calc(var(--measure) + 2 * var(--side)); margin: 0 auto;
    padding: .3rem max(var(--side), env(safe-area-inset-right)) max(.7rem, env(safe-area-inset-bottom)) max(var(--side), env(safe-area-inset-left));
  }
  .composer {
    display: flex; align-items: flex-end; gap: .5rem; padding: .45rem; padding-inline-start: 1.1rem; border: 1px solid var(--edge); border-radius: 1.6rem;
    background: var(--raised); box-shadow: var(--shadow);
  }
  .composer:focus-within { outline: 2px solid var(--blue); outline-offset: -1px; }
  textarea { flex: 1; min-width: 0; max-height: min(14rem, 34dvh); padding: .5rem 0; border: 0; resize: none; background: none; line-height: 1.5; overflow-y: auto; }
  textarea:focus-visible { outline: none; }
  textarea::placeholder { color: var(--ink-soft); opacity: 1; }
  .solid { background: var(--blue); color: var(--on-blue); }
  .solid:hover:enabled { background: color-mix(in srgb, var(--blue), var(--ink) 20%); }
  .solid:disabled { background: var(--sunk); color: var(--ink-soft); }
  .round { width: 2.5rem; height: 2.5rem; }
  .hint, .kept { margin: .5rem 0 0; text-align: center; font-size: .78rem; }
  .kept { font-size: .88rem; }
  .kept:not([hidden]) + .hint { display: none; }
  .hint kbd { font: inherit; font-weight: 600; }
  .notice, .editing { display: flex; flex-wrap: wrap; gap: .1rem .8rem; margin: 0 0 .6rem; padding: .5rem 1rem; border-radius: .9rem; background: var(--sunk); font-size: .92rem; }
  .notice { background: var(--alarm-paper); color: var(--alarm); }
  .link { font-weight: 600; text-decoration: underline; }
  .editing .link { color: var(--blue); }
  .latest { position: absolute; z-index: 2; inset: -3rem auto auto 50%; transform: translateX(-50%); box-shadow: var(--shadow); }

  @keyframes turns { to { transform: rotate(360deg); } }
  @keyframes breathe { 50% { opacity: .25; } }

  @container rota (max-width: 640px) {
    .top { flex-wrap: wrap; column-gap: .6rem; }
    .top-end { display: contents; }
    .brand { flex: 1 1 50%; min-height: 2.75rem; }
    .state { order: 2; flex: 1 1 50%; }
    ::slotted([slot="actions"]) { order: 3; }
    .name-of, .hint { display: none; }
    .quiet { width: 2.75rem; padding: 0; justify-content: center; }
    .turn { grid-template-columns: minmax(0, 1fr); padding: 1.3rem 0 1.5rem; }
    .turn-number { display: flex; align-items: center; gap: .6rem; font-size: 1rem; }
    .turn:last-child .turn-number::after { margin: 0; }
    .action, .copy, .quiet, .round { min-height: 2.75rem; }
    .round { width: 2.75rem; }
  }
  @media (hover: none) {
    .hint { display: none; }
    .edit { opacity: 1; }
  }
  @media (prefers-reduced-motion: reduce) {
    *, ::before, ::after { animation: none !important; transition: none !important; }
  }
  @media (forced-colors: active) {
    textarea::placeholder { color: GrayText; }
    .ring-others, .ring-turn { stroke: CanvasText; }
    .line i:last-child, .state-dot { background: Highlight; forced-color-adjust: none; }
  }
`;
