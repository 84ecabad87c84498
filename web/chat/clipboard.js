// Puts text on the clipboard. Knows nothing of turns.

/** True once it is there. A page from plain http on another machine has no `navigator.clipboard`; the older way works there,
 *  by copying what is selected: `element`, which holds `text`. Where even that is not allowed, it stays selected. */
export async function copy(text, element) {
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
