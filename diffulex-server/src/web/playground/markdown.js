// The little Markdown that models write, as elements.
//
// In: the text of a finished answer. Out: nodes whose text was set as text, so that nothing in an answer is ever read as
// HTML. Never here: links, images, tables, raw HTML; they stay as they are written.

import { node } from "./dom.js";

const FENCE = /^ {0,3}(```+|~~~+)\s*[\w+#.-]*\s*$/;
const HEADING = /^ {0,3}(#{1,6})\s+(.+?)\s*#*$/;
const ITEM = /^ {0,3}(?:[-*+]|(\d{1,9})[.)])\s+(.*)$/;

/** Code, bold, italics: a sign opens before a letter and closes behind one, so that `3 * 4 * 5` stays as it is. Spans are
 *  at most 2,000 characters long, which keeps the search short. */
const INLINE = new RegExp(
  [
    "(?<!`)(`+)(?!`)(?<code>.{1,2000}?)(?<!`)\\1(?!`)",
    "\\*\\*(?=\\S)(?<bold>.{1,2000}?)(?<=\\S)\\*\\*",
    "(?<!\\w)__(?=\\S)(?<bold2>.{1,2000}?)(?<=\\S)__(?!\\w)",
    "(?<![\\w*])\\*(?=[^\\s*])(?<italic>.{1,2000}?)(?<=[^\\s*])\\*(?![\\w*])",
    "(?<!\\w)_(?=[^\\s_])(?<italic2>.{1,2000}?)(?<=[^\\s_])_(?!\\w)",
  ].join("|"),
  "gs",
);

/** The nodes of `text`. A paragraph keeps its line breaks. */
export function render(text) {
  const lines = text.split("\n");
  const blocks = [];
  let paragraph = [];
  const endParagraph = () => {
    if (paragraph.length) blocks.push(filled("p", paragraph.join("\n")));
    paragraph = [];
  };
  for (let i = 0; i < lines.length; i += 1) {
    const line = lines[i];
    const fence = line.match(FENCE);
    const heading = line.match(HEADING);
    if (fence) {
      endParagraph();
      const end = lines.findIndex((other, j) => j > i && other.trim().startsWith(fence[1]));
      const code = lines.slice(i + 1, end < 0 ? lines.length : end).join("\n");
      const block = node("pre");
      block.append(node("code", "", code));
      blocks.push(block);
      i = end < 0 ? lines.length : end;
    } else if (heading) {
      endParagraph();
      // The page has the first two levels itself.
      blocks.push(filled(`h${Math.min(6, heading[1].length + 2)}`, heading[2]));
    } else if (ITEM.test(line)) {
      endParagraph();
      const end = lines.findIndex((other, j) => j > i && !ITEM.test(other));
      blocks.push(listOf(lines.slice(i, end < 0 ? lines.length : end)));
      i = (end < 0 ? lines.length : end) - 1;
    } else if (line.trim() === "") {
      endParagraph();
    } else {
      paragraph.push(line);
    }
  }
  endParagraph();
  return blocks;
}

function listOf(lines) {
  const items = lines.map((line) => line.match(ITEM));
  const first = items[0][1];
  const list = node(first === undefined ? "ul" : "ol");
  if (first !== undefined) list.start = Number(first);
  list.append(...items.map((item) => filled("li", item[2])));
  return list;
}

function filled(tag, text) {
  const made = node(tag);
  made.append(...inline(text));
  return made;
}

function inline(text) {
  const parts = [];
  let from = 0;
  for (const match of text.matchAll(INLINE)) {
    const { code, bold, bold2, italic, italic2 } = match.groups;
    parts.push(text.slice(from, match.index));
    if (code !== undefined) parts.push(node("code", "", code));
    else if (bold ?? bold2) parts.push(filled("strong", bold ?? bold2));
    else parts.push(filled("em", italic ?? italic2));
    from = match.index + match[0].length;
  }
  parts.push(text.slice(from));
  return parts.filter((part) => part !== "");
}
