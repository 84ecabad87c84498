// Puts text on the clipboard. Knows nothing of turns.

const SHOWN_MS = 2000;

/** Copies `text`, and says so: on `label` for a while, and by `say` to a listener. `element` holds the text, `what` it is. */
export async function copyAndSay(text, element, label, what, say) {
  const copied = await copy(text, element);
  label.textContent = copied ? "Copied" : "Selected";
  say(copied ? "Copied." : `The ${what} could not be copied, but it is selected.`);
  setTimeout(() => (label.textContent = "Copy"), SHOWN_MS);
}

/** True once it is there. A page from plain http on another machine has no `navigator.clipboard`; the older way works there,
 *  by copying what is selected: `element`, which holds `text`. Where even that is not allowed, it stays selected. */
async function copy(text, element) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copySelected(text, element);
  }
}

function copySelected(text, element) {
  const selection = getSelection();
  selection.selectAllChildren(element);
  const asText = (event) => {
    event.clipboardData.setData("text/plain", text);
    event.preventDefault();
  };
  document.addEventListener("copy", asText);
  const copied = document.execCommand("copy");
  document.removeEventListener("copy", asText);
  if (copied) selection.removeAllRanges();
  return copied;
}
