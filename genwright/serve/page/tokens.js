"use strict";
// Log-probabilities of an answer's tokens: kept while the page is open, and shown for the token that is pointed at.

const logprobsOf = new WeakMap(); // message -> Tokens

class Tokens {
  constructor() {
    this.entries = [];
    this.owner = []; // the token of each character
    this.decoder = new TextDecoder();
  }

  add(entries) {
    for (const entry of entries) {
      // A character whose bytes are in several tokens belongs to the last of them.
      const text = this.decoder.decode(new Uint8Array(entry.bytes), { stream: true });
      for (let i = 0; i < text.length; i += 1) this.owner.push(this.entries.length);
      this.entries.push(entry);
    }
  }
}

// The nodes of a piece of text: one for each token in it, if they are known.
function emitter(tokens) {
  return (piece) => {
    if (!piece.text) return [];
    if (!tokens) return [piece.text];
    const found = [];
    for (let start = 0, end = 1; start < piece.text.length; start = end, end += 1) {
      const token = tokens.owner[piece.places[start]];
      while (end < piece.text.length && tokens.owner[piece.places[end]] === token) end += 1;
      const text = piece.text.slice(start, end);
      found.push(token === undefined ? text : element("span", { className: "token", data: { token } }, text));
    }
    return found;
  };
}

const percent = (logprob) => `${(100 * Math.exp(logprob)).toPrecision(3)} %`;
const visible = (text) => text.replaceAll("\n", "⏎").replaceAll(" ", "␣") || "∅";

function showToken(message, index, node) {
  const entry = logprobsOf.get(message)?.entries[index];
  if (!entry) return hideToken();
  const row = (each) => element("tr", { className: each.id === entry.id ? "chosen" : "" },
    element("td", {}, visible(each.token)), element("td", {}, percent(each.logprob)), element("td", {}, each.logprob.toFixed(3)));
  const others = entry.top_logprobs.some((each) => each.id === entry.id) ? entry.top_logprobs : [...entry.top_logprobs, entry];
  const head = element("tr", {}, ...["token", "probability", "log"].map((title) => element("th", { scope: "col" }, title)));
  const box = find("token");
  box.replaceChildren(element("table", {}, element("thead", {}, head), element("tbody", {}, ...others.map(row))));
  box.hidden = false;
  document.querySelector(".token.shown")?.classList.remove("shown");
  node.classList.add("shown");
  const at = node.getClientRects()[0] ?? node.getBoundingClientRect();
  const below = at.bottom + 6 + box.offsetHeight < innerHeight;
  box.style.top = `${below ? at.bottom + 6 : Math.max(4, at.top - box.offsetHeight - 6)}px`;
  box.style.left = `${Math.max(4, Math.min(at.left, innerWidth - box.offsetWidth - 4))}px`;
}

function hideToken() {
  find("token").hidden = true;
  document.querySelector(".token.shown")?.classList.remove("shown");
}

// Pointer, finger and arrow keys choose a token of the answer that `body` shows.
function watchTokens(body, message) {
  const show = (event) => {
    const node = event.target.closest(".token");
    if (node) showToken(message, Number(node.dataset.token), node);
    else hideToken();
  };
  body.addEventListener("pointerover", show);
  body.addEventListener("click", show);
  body.addEventListener("pointerleave", hideToken);
  body.addEventListener("blur", hideToken);
  body.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step || event.target !== body) return;
    const nodes = [...body.querySelectorAll(".token")];
    const node = nodes[Math.max(0, nodes.findIndex((each) => each.classList.contains("shown")) + step)];
    if (!node) return;
    event.preventDefault();
    node.scrollIntoView({ block: "nearest" });
    showToken(message, Number(node.dataset.token), node);
  });
}
