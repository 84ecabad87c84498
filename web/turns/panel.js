// The readout: what is pointed at, in numbers. Makes nodes of what readout.js says, text only.

/** `panel`: the elements {readout-title, readout-lines, readout-parts, readout-note, readout-hint, unpin}. */
export function showReadout(panel, readout, { pinned, hueOf }) {
  panel["readout-hint"].hidden = readout !== null;
  panel.unpin.hidden = !pinned;
  panel["readout-title"].textContent = readout?.title ?? "Point at anything";
  panel["readout-lines"].replaceChildren(...(readout?.lines ?? []).flatMap(lineNodes));
  panel["readout-parts"].replaceChildren(...(readout?.parts ?? []).map((part) => partNode(part, hueOf)));
  panel["readout-parts"].hidden = !(readout?.parts.length > 0);
  panel["readout-note"].textContent = readout?.note ?? "";
  panel["readout-note"].hidden = !readout?.note;
}

function lineNodes({ term, text, verdict }) {
  const name = document.createElement("dt");
  name.textContent = term;
  const value = document.createElement("dd");
  value.textContent = text;
  if (verdict !== undefined) value.dataset.verdict = verdict;
  return [name, value];
}

function partNode({ key, name, text, kind }, hueOf) {
  const item = document.createElement("li");
  const swatch = document.createElement("span");
  swatch.className = kind === "prefill" ? "swatch hatched" : "swatch";
  swatch.style.setProperty("--colour", hueOf(key));
  const label = document.createElement("b");
  label.textContent = name;
  const words = document.createElement("span");
  words.textContent = text;
  item.append(swatch, label, words);
  return item;
}
