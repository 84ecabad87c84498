// The numbers behind what is pointed at, as words: plain data in, plain data out.
//
// A readout is {title, key, lines: [{term, text, verdict?}], parts: [{key, name, text}], note}. `key` is the request it is about, or
// null; page.js makes nodes of it.

import { nameOf, poolAt, titleOf } from "./history.js";
import { endOf, gapOf, isSetAside, ttftOf } from "./lives.js";
import { poolWords } from "./pool.js";
import { clock, count, duration, number, stateOf } from "./words.js";

/** Of {step}, {life} or {pool, at}. `run` is the page's own request behind a life, if it is one. */
export function describe(history, selected, now, run = null) {
  if (selected.step !== undefined) return ofStep(history, selected.step);
  if (selected.life !== undefined) return ofLife(history, selected.life, now, run);
  return ofPool(history, selected.pool, selected.at);
}

function ofStep(history, step) {
  const pool = poolAt(history, step.at);
  return {
    title: `Step ${number(step.step)}`,
    key: null,
    lines: [
      { term: "Time", text: `${duration(step.took_ms)}, begun at ${exact(step.at)}` },
      { term: "Ran", text: `${ranWords(step)}` },
      ...(pool === null ? [] : [{ term: "Pool then", text: poolWords(pool, history.hello) }]),
    ],
    parts: step.parts.map((part) => ({ key: part.key, name: nameOf(history, part.key), text: partWords(part), kind: part.kind })),
    note: null,
  };
}

function ranWords({ parts }) {
  const sum = (kind) => parts.filter((part) => part.kind === kind).reduce((all, { tokens }) => all + tokens, 0);
  const [read, written] = [sum("prefill"), sum("decode")];
  const said = [];
  if (read > 0) said.push(`${count(read, "token")} read (prefill)`);
  if (written > 0) said.push(`a next token for ${count(written, "answer")} (decode)`);
  return said.length === 0 ? "nothing that is known" : said.join(" and ");
}

function partWords({ kind, start, tokens, share_ms }) {
  const what = kind === "prefill" ? `prefill ${count(tokens, "token")} from` : "decode at";
  return `${what} position ${number(start)}: ${duration(share_ms)}`;
}

/** One line for who steps from column to column by keyboard or ear. */
export function stepSentence(history, step) {
  const most = 6;
  const parts = step.parts.slice(0, most).map((part) => `${titleOf(history, part.key)} ${partWords(part)}`);
  const more = step.parts.length > most ? [`and ${count(step.parts.length - most, "other")}`] : [];
  return [`Step ${number(step.step)}, ${duration(step.took_ms)}`, ...parts, ...more].join("; ");
}

function ofLife(history, life, now, run) {
  const lines = [{ term: "State", text: stateOf(life, isSetAside(life, history.steps.at(-1))) }];
  const add = (term, text, verdict) => lines.push({ term, text, ...(verdict ? { verdict } : {}) });
  if (life.position !== null) add("In line", placeWords(life));
  add("Arrived", life.first_seen_running ? `before anybody watched; seen since ${clock(life.received_at)}` : exact(life.received_at));
  if (life.input_tokens !== null) add("Prompt", promptWords(life));
  add("Answer", life.max_output_tokens === null ? count(life.output_tokens, "token")
    : `${number(life.output_tokens)} of at most ${count(life.max_output_tokens, "token")}`);
  const [ttft, gap] = [ttftOf(life, now), gapOf(life)];
  if (!life.first_seen_running) add("First token (TTFT)", figureWords(ttft), ttft.verdict);
  add("Worst gap", figureWords(gap), gap.verdict);
  if (life.preemptions > 0) add("Preempted", count(life.preemptions, "time"));
  const held = poolAt(history, now)?.held.find(([key]) => key === life.key);
  if (life.ended_at === null && held !== undefined) add("Memory", count(held[1], "KV block"));
  if (!life.first_seen_running) add(life.ended_at === null ? "So far" : "In all", duration((endOf(life, now) - life.received_at) * 1000));
  return {
    title: title(titleOf(history, life.key)),
    key: life.key,
    lines,
    parts: [],
    note: run !== null && run.text !== "" ? `“${run.text}${run.cut ? "…" : ""}”` : null,
  };
}

function promptWords({ input_tokens, prefilled_tokens, cached_tokens }) {
  const read = prefilled_tokens >= input_tokens ? "all read" : `${number(prefilled_tokens)} read`;
  const cached = cached_tokens > 0 ? `, ${number(cached_tokens)} of them found in the cache` : "";
  return `${count(input_tokens, "token")}, ${read}${cached}`;
}

export function placeWords({ position, estimated_wait_ms }) {
  const where = position === null ? "let in, waits for its first step" : position === 1 ? "next" : `place ${number(position)}`;
  return estimated_wait_ms === null ? where : `${where}, about ${duration(estimated_wait_ms)} to wait`;
}

/** "340 ms, met (target 5.0 s)" */
export function figureWords({ ms, targetMs, verdict }) {
  const target = targetMs === null ? "no target" : `target ${duration(targetMs)}`;
  if (ms === null) return verdict === "missed" ? `none yet: missed (${target})` : `none yet (${target})`;
  if (verdict === "none") return `${duration(ms)} (${target})`;
  return `${duration(ms)}, ${verdict} (${target})`;
}

function ofPool(history, pool, at) {
  const shared = pool.held.reduce((sum, [, blocks]) => sum + blocks, 0) > pool.used;
  return {
    title: "KV pool",
    key: null,
    lines: [
      { term: "At", text: exact(at) },
      { term: "Blocks", text: poolWords(pool, history.hello) },
    ],
    parts: pool.held.map(([key, blocks]) => ({ key, name: nameOf(history, key), text: `holds ${count(blocks, "block")}`, kind: "decode" })),
    note: shared ? "Shared blocks are counted for each request that holds them." : null,
  };
}

function exact(at) {
  return `${clock(at)}.${String(Math.floor((at % 1) * 1000)).padStart(3, "0")}`;
}

function title(text) {
  return text[0].toUpperCase() + text.slice(1);
}
