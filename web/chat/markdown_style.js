// How an answer's Markdown looks. Colours and the fixed-width font come from the widget's custom properties.

export const markdownStyle = `
.markdown {
  white-space: normal; overflow-wrap: anywhere; min-width: 0;
  > div > *, li > *, blockquote > * { margin-block: .75em 0; }
  > :first-child > :first-child, blockquote > :first-child { margin-block-start: 0; }
  > div > .more, :is(li, blockquote) > .more { margin-block-start: 0; }
  :is(p, h3, h4, h5, h6, li, th, td) { unicode-bidi: plaintext; text-align: start; }
  :is(a, code, em, strong, del) { unicode-bidi: isolate; }
  :is(h3, h4, h5, h6) { margin-block: 1.25em 0; line-height: 1.35; font-weight: 650; }
  h3 { font-size: 1.2em; }
  h4 { font-size: 1.1em; }
  :is(h5, h6) { font-size: 1em; }
  :is(ul, ol) { padding-inline-start: 1.6em; }
  li > :is(p, ul, ol) { margin-block-start: .3em; }
  li > :first-child { margin-block-start: 0; }
  li + li { margin-block-start: .3em; }
  li::marker { color: var(--ink-soft); }
  blockquote { margin-inline: 0; padding-inline-start: 1em; border-inline-start: 3px solid var(--edge); color: var(--ink-soft); }
  hr { margin-block: 1.5em .75em; border: 0; border-block-start: 1px solid var(--rule); }
  a { color: var(--blue); text-decoration: underline; }
  code { font: .9em/1.5 var(--mono); }
  :not(pre) > code {
    padding: .1em .3em; border-radius: .3em; background: var(--sunk); box-decoration-break: clone;
  }
  .code { border: 1px solid var(--rule); border-radius: .7em; background: var(--sunk); overflow: hidden; unicode-bidi: isolate; }
  .code-head {
    display: flex; align-items: center; justify-content: space-between; gap: 1em; padding: .2em .4em .2em .9em;
    border-block-end: 1px solid var(--rule); color: var(--ink-soft); font-size: .8em;
  }
  .code-language { min-width: 0; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; unicode-bidi: isolate; }
  .code-copy {
    flex: none; min-height: 2.2em; padding: .2em .7em; border: 1px solid transparent; border-radius: .5em; background: none; color: inherit;
    font: inherit; cursor: pointer;
  }
  .code-copy:hover { border-color: var(--edge); background: var(--raised); color: var(--ink); }
  pre { margin: 0; padding: .8em .9em; overflow-x: auto; white-space: pre; overflow-wrap: normal; tab-size: 4; }
  pre code { display: block; width: max-content; min-width: 100%; font-size: .875em; }
  pre span { display: block; min-height: 1lh; }
  .table { overflow-x: auto; }
  table { border-collapse: collapse; min-width: min(100%, 20em); font-size: .95em; overflow-wrap: normal; }
  :is(th, td) { padding: .4em .8em; border-block-end: 1px solid var(--rule); vertical-align: top; max-width: 24em; }
  td { overflow-wrap: break-word; }
  th { border-block-end-color: var(--edge); font-weight: 650; }
  .centre { text-align: center; }
  .far { text-align: end; }
  :is(a, button, pre, .table):focus-visible { outline: 3px solid var(--blue); outline-offset: 2px; }
  :is(pre, .table):focus-visible { outline-offset: -3px; }
}
`;
