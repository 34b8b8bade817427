"use strict";
// Markdown as nodes. Every character remembers its place in the source, so that the token it belongs to is known.

const DEEPEST = 12; // nesting of quotes, lists and emphasis; what is deeper is plain text

class Piece {
  constructor(text, places) {
    this.text = text;
    this.places = places;
  }

  static whole(text) {
    return new Piece(text, Array.from({ length: text.length }, (_, place) => place));
  }

  slice(start, end) {
    return new Piece(this.text.slice(start, end), this.places.slice(start, end));
  }

  lines() {
    const found = [];
    let start = 0;
    for (const line of this.text.split("\n")) {
      found.push(this.slice(start, start + line.length));
      start += line.length + 1;
    }
    return found;
  }

  static join(lines) {
    const places = [];
    lines.forEach((line, index) => {
      if (index) places.push((places.at(-1) ?? -1) + 1);
      for (const place of line.places) places.push(place);
    });
    return new Piece(lines.map((line) => line.text).join("\n"), places);
  }
}

const INLINE_RULES = [
  /\\(?<escaped>[!-/:-@[-`{-~])/,
  /(?<!`)(?<ticks>`+)(?!`)(?<code>[^]{1,2000}?)(?<!`)\k<ticks>(?!`)/,
  /!?\[(?<label>[^\[\]]{1,500})\]\((?<href>[^\s()]{1,2000}(?:\([^\s()]{0,200}\)[^\s()]{0,200})?)(?:\s+"[^"]{0,200}")?\)/,
  /(?<!\*)\*\*(?=\S)(?<strong>[^]{1,2000}?)(?<=\S)\*\*(?!\*)/,
  /(?<!\w)__(?=\S)(?<strong2>[^]{1,2000}?)(?<=\S)__(?!\w)/,
  /(?<!\*)\*(?![\s*])(?<em>[^]{1,2000}?)(?<![\s*])\*(?!\*)/,
  /(?<![\w_])_(?![\s_])(?<em2>[^]{1,2000}?)(?<![\s_])_(?![\w_])/,
  /(?<!~)~~(?=\S)(?<del>[^]{1,2000}?)(?<=\S)~~/,
  /(?<url>https?:\/\/[^\s<>"'`()\[\]*]{1,2000}(?<![.,;:!?]))/,
];
const INLINE = new RegExp(INLINE_RULES.map((rule) => rule.source).join("|"), "dg");
const INLINE_TAGS = { strong: "strong", strong2: "strong", em: "em", em2: "em", del: "del" };

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^\s`]*)[^`]*$/;
const HEADING = /^ {0,3}(#{1,6})\s+(?=\S)/;
const RULE = /^ {0,3}([-*_])( *\1){2,} *$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])(?: +|$)/;
const DIVIDER = /^ *\|?(?: *:?-+:? *\|)+(?: *:?-+:? *)?$/;
const STARTS = [FENCE, HEADING, RULE, QUOTE, ITEM];

const HASH_COMMENTS = /^(py|python|sh|bash|shell|zsh|ruby|rb|perl|r|yaml|yml|toml|make|makefile|dockerfile|ini|conf)$/i;
const WORDS =
  "and as assert async await bool break case catch class const continue def default del do elif else enum export extends false " +
  "finally fn for from func function if impl import in int interface is lambda let match mut new nil none not null or package " +
  "pass private pub public raise return self static struct super switch this throw true try type use using var void while with yield";
const CODE_RULE = (hash) => new RegExp(
  `(?<comment>${hash ? "#.*" : "//.*|/\\*[^]*?\\*/"})|(?<string>"(?:[^"\\\\\\n]|\\\\.)*"|'(?:[^'\\\\\\n]|\\\\.)*')` +
  `|(?<number>\\b\\d[\\w.]*)|\\b(?<word>${WORDS.replaceAll(" ", "|")})\\b`, "gi");

// `emit(piece)` makes the nodes of a plain text.
class Markdown {
  constructor(emit) {
    this.emit = emit;
  }

  // The blocks of lines, each with its text and a function that makes its node.
  blocks(lines, depth = 0) {
    const found = [];
    for (let i = 0; i < lines.length;) {
      if (!lines[i].text.trim()) {
        i += 1;
        continue;
      }
      const [end, make] = this.block(lines, i, depth);
      found.push({ text: lines.slice(i, end).map((line) => line.text).join("\n"), make });
      i = end;
    }
    return found;
  }

  // Where the block that starts at line i ends, and the function that makes its node.
  block(lines, i, depth) {
    const text = lines[i].text;
    let end = i + 1;
    let match;
    if ((match = FENCE.exec(text))) {
      const [, fence, language] = match;
      const closing = new RegExp(`^ {0,3}\\${fence[0]}{${fence.length},} *$`);
      while (end < lines.length && !closing.test(lines[end].text)) end += 1;
      const body = Piece.join(lines.slice(i + 1, end));
      return [Math.min(end + 1, lines.length), () => this.code(body, language)];
    }
    if ((match = HEADING.exec(text))) {
      return [end, () => this.inline(element(`h${Math.min(match[1].length + 2, 6)}`), lines[i].slice(match[0].length))];
    }
    if (RULE.test(text)) return [end, () => element("hr")];
    if (depth < DEEPEST && QUOTE.test(text)) {
      while (end < lines.length && QUOTE.test(lines[end].text)) end += 1;
      const inner = lines.slice(i, end).map((line) => line.slice(QUOTE.exec(line.text)[0].length));
      return [end, () => element("blockquote", {}, ...this.nodes(inner, depth + 1))];
    }
    if (depth < DEEPEST && ITEM.test(text)) return this.list(lines, i, depth);
    if (text.includes("|") && DIVIDER.test(lines[i + 1]?.text ?? "")) {
      end = i + 2;
      while (end < lines.length && lines[end].text.includes("|")) end += 1;
      return [end, () => this.table(lines.slice(i, end))];
    }
    while (end < lines.length && lines[end].text.trim() && !STARTS.some((start) => start.test(lines[end].text))) end += 1;
    return [end, () => this.inline(element("p"), Piece.join(lines.slice(i, end)))];
  }

  nodes(lines, depth) {
    return this.blocks(lines, depth).map((block) => block.make());
  }

  list(lines, i, depth) {
    const ordered = /\d/.test(ITEM.exec(lines[i].text)[2]);
    const items = [];
    const first = ordered ? parseInt(ITEM.exec(lines[i].text)[2], 10) : 1;
    while (i < lines.length) {
      const match = ITEM.exec(lines[i].text);
      if (!match || /\d/.test(match[2]) !== ordered || RULE.test(lines[i].text)) break;
      const indent = match[0].length;
      const inner = [lines[i].slice(indent)];
      for (i += 1; i < lines.length; i += 1) {
        const line = lines[i].text;
        const spaces = line.length - line.trimStart().length;
        const deeper = spaces > match[1].length;
        const blankBefore = !lines[i - 1].text.trim();
        if (line.trim() && !deeper && (blankBefore || STARTS.some((start) => start.test(line)))) break;
        inner.push(lines[i].slice(Math.min(spaces, indent)));
      }
      items.push(inner);
    }
    const make = () => {
      const list = element(ordered ? "ol" : "ul", {}, ...items.map((inner) => element("li", {}, ...this.nodes(inner, depth + 1))));
      if (ordered) list.start = first;
      return list;
    };
    return [i, make];
  }

  table(lines) {
    const cells = (line) => {
      const found = [];
      let start = /^ *\|?/.exec(line.text)[0].length;
      for (const match of line.text.slice(start).matchAll(/((?:[^|\\]|\\.)*)(\||$)/g)) {
        if (match[0]) found.push(line.slice(start, start + match[1].length));
        start += match[0].length;
      }
      return found;
    };
    const row = (line, tag) => element("tr", {}, ...cells(line).map((cell) => this.inline(element(tag), cell)));
    const body = element("tbody", {}, ...lines.slice(2).map((line) => row(line, "td")));
    return element("div", { className: "table" }, element("table", {}, element("thead", {}, row(lines[0], "th")), body));
  }

  inline(parent, piece, depth = 0) {
    let done = 0;
    for (const match of depth < DEEPEST ? piece.text.matchAll(INLINE) : []) {
      parent.append(...this.emit(piece.slice(done, match.index)));
      done = match.index + match[0].length;
      const group = (name) => piece.slice(...match.indices.groups[name]);
      const { href, url } = match.groups;
      const tag = Object.keys(INLINE_TAGS).find((name) => match.groups[name] !== undefined);
      if (match.groups.escaped) parent.append(...this.emit(group("escaped")));
      else if (match.groups.code) parent.append(element("code", {}, ...this.emit(group("code"))));
      else if (href && isSafe(href)) parent.append(this.inline(link(href), group("label"), depth + 1));
      else if (url && isSafe(url)) parent.append(link(url, ...this.emit(group("url"))));
      else if (tag) parent.append(this.inline(element(INLINE_TAGS[tag]), group(tag), depth + 1));
      else parent.append(...this.emit(piece.slice(match.index, done)));
    }
    parent.append(...this.emit(piece.slice(done)));
    return parent;
  }

  code(piece, language) {
    const code = element("code");
    let done = 0;
    for (const match of language ? piece.text.matchAll(CODE_RULE(HASH_COMMENTS.test(language))) : []) {
      code.append(...this.emit(piece.slice(done, match.index)));
      done = match.index + match[0].length;
      const kind = Object.keys(match.groups).find((name) => match.groups[name] !== undefined);
      code.append(element("span", { className: kind }, ...this.emit(piece.slice(match.index, done))));
    }
    code.append(...this.emit(piece.slice(done)));
    const copy = button("Copy", () => copyText(piece.text, copy), "Copy code");
    return element("div", { className: "code" }, element("div", { className: "bar" }, language || "text", copy), element("pre", { tabIndex: 0 }, code));
  }
}

function link(href, ...children) {
  return element("a", { href, target: "_blank", rel: "noopener noreferrer" }, ...children);
}

function isSafe(href) {
  try {
    return ["http:", "https:", "mailto:"].includes(new URL(href).protocol);
  } catch {
    return false;
  }
}
