"use strict";
// The chat: sends a conversation, draws the answer while it arrives, and lets messages be copied, edited and written again.

const SAVE_EVERY = 1000; // milliseconds, while an answer arrives
const running = new Map(); // conversation -> AbortController
const failures = new Map(); // conversation -> why its last answer failed
const touch = matchMedia("(pointer: coarse)").matches; // whose Enter starts a line, as there is no Shift to hold
const KEYS = "Enter sends it, Shift+Enter starts a line, Escape stops an answer, and ↑ edits your last message. ";
const HINT = `Write a message to start. ${touch ? "" : KEYS}Conversations are kept in this browser only.`;
const views = new WeakMap(); // message -> { node, body, blocks, stats }

async function answer(conversation) {
  failures.delete(conversation);
  const stopping = new AbortController();
  const message = { role: "assistant", content: "" };
  let body;
  try {
    const model = find("model").value || undefined; // the server's only one, if it was not reached before
    body = { model, messages: apiMessages(conversation), stream: true, stream_options: { include_usage: true }, ...requestFields() };
  } catch (error) {
    failures.set(conversation, error.message);
    drawMessages(true);
    return;
  }
  message.json = Boolean(body.response_format);
  if (!body.model) loadModels();
  conversation.messages.push(message);
  running.set(conversation, stopping);
  if (conversation === current) drawMessages(true);
  try {
    await receive(conversation, message, body, stopping.signal);
  } catch (error) {
    if (stopping.signal.aborted) message.stats = { ...message.stats, reason: "stopped" };
    else failures.set(conversation, error.message);
  }
  running.delete(conversation);
  if (!message.content) conversation.messages = conversation.messages.filter((each) => each !== message);
  saveConversation(conversation);
  if (conversation === current) {
    drawMessages();
    find("announcement").textContent = message.content;
  }
  drawConversations();
}

async function receive(conversation, message, body, signal) {
  const started = performance.now();
  const tokens = new Tokens();
  if (body.logprobs) logprobsOf.set(message, tokens);
  let pieces = 0;
  let first = 0;
  let saved = started;
  for await (const event of events(await call("v1/chat/completions", body, signal))) {
    const now = performance.now();
    const choice = event.choices[0];
    if (choice?.logprobs) tokens.add(choice.logprobs.content);
    if (choice?.delta.content) {
      pieces += 1;
      first ||= now;
      message.content += choice.delta.content;
    }
    // Without log-probabilities, the number of tokens is only known at the end.
    const count = event.usage?.completion_tokens ?? (tokens.entries.length || pieces);
    const last = event.usage ? message.stats?.last ?? now : now;
    message.stats = {
      first: first && first - started, last, tokens: count, exact: Boolean(event.usage || body.logprobs),
      rate: count > 1 && last > first ? (1000 * (count - 1)) / (last - first) : 0,
      reason: choice?.finish_reason ?? message.stats?.reason, usage: event.usage,
    };
    if (now - saved > SAVE_EVERY) {
      saveConversation(conversation);
      saved = now;
    }
    scheduleUpdate();
  }
}

function stopAnswer(conversation) {
  running.get(conversation)?.abort();
}

function send(text) {
  if (!text.trim() || running.has(current)) return false;
  current.messages.push({ role: "user", content: text });
  saveConversation(current);
  drawConversations();
  answer(current);
  return true;
}

// Drop a message and all after it, and answer what is left.
function answerAgain(index) {
  current.messages.length = index;
  answer(current);
}

function atEnd() {
  const log = find("messages");
  return log.scrollHeight - log.scrollTop - log.clientHeight < 80;
}

function drawMessages(follow = atEnd()) {
  hideToken();
  const busy = running.has(current);
  const nodes = current.messages.map((message, index) => drawMessage(message, index, busy));
  if (failures.has(current)) nodes.push(element("p", { className: "error", role: "alert" }, failures.get(current)));
  if (!busy && current.messages.at(-1)?.role === "user") nodes.push(button("Try again", () => answer(current), "Answer the last message"));
  if (!nodes.length) nodes.push(element("p", { className: "hint" }, HINT));
  const log = find("messages");
  const before = log.scrollTop;
  log.replaceChildren(...nodes);
  log.setAttribute("aria-busy", busy);
  find("send").hidden = busy;
  find("stop").hidden = !busy;
  log.scrollTop = follow ? log.scrollHeight : before;
}

function drawMessage(message, index, busy) {
  const user = message.role === "user";
  const body = element("div", { className: "body", tabIndex: user ? -1 : 0 });
  const stats = element("span", { className: "stats" });
  const copy = button("Copy", () => copyText(message.content, copy), "Copy message");
  const actions = element("div", { className: "actions" }, copy);
  const node = element("article", { className: message.role, aria: { label: user ? "You" : "Answer" } }, body, actions);
  if (!busy) actions.append(button("Edit", () => editMessage(message, index, node), "Edit message"));
  if (!busy && !user) actions.append(button("Regenerate", () => answerAgain(index), "Regenerate answer"));
  if (!user) actions.append(stats);
  if (user) body.textContent = message.content;
  else watchTokens(body, message);
  views.set(message, { body, stats, blocks: [] });
  if (!user) updateMessage(message);
  return node;
}

let scheduled = null;
function scheduleUpdate() {
  scheduled ??= requestAnimationFrame(() => {
    scheduled = null;
    if (!running.has(current)) return;
    const follow = atEnd();
    updateMessage(current.messages.at(-1));
    if (follow) find("messages").scrollTop = find("messages").scrollHeight;
  });
}

// Draw an answer; blocks that were complete before stay as they are, so that what is selected stays selected.
function updateMessage(message) {
  const { body, stats, blocks } = views.get(message);
  const markdown = new Markdown(emitter(logprobsOf.get(message)));
  const source = Piece.whole(message.content);
  const found = message.json
    ? [{ text: message.content, make: () => markdown.code(source, "json") }]
    : markdown.blocks(source.lines());
  let same = 0;
  while (same < Math.min(blocks.length - 1, found.length) && blocks[same].text === found[same].text) same += 1;
  for (const old of blocks.splice(same)) old.node.remove();
  for (const { text, make } of found.slice(same)) {
    const node = make();
    blocks.push({ text, node });
    body.append(node);
  }
  body.classList.toggle("waiting", !message.content);
  stats.textContent = describe(message.stats);
  const usage = message.stats?.usage;
  stats.title = usage ? `The prompt had ${usage.prompt_tokens} tokens, ${usage.prompt_tokens_details.cached_tokens} of them cached.` : "";
}

function describe(stats) {
  if (!stats?.tokens) return "";
  const parts = [`${stats.exact ? "" : "about "}${stats.tokens} ${stats.tokens === 1 ? "token" : "tokens"}`];
  if (stats.rate) parts.push(`${stats.rate.toFixed(1)} tokens/s`);
  parts.push(`first after ${(stats.first / 1000).toFixed(2)} s`);
  if (stats.reason === "stopped") parts.push("stopped");
  if (stats.reason === "length") parts.push("cut at the maximum length");
  return parts.join(" · ");
}

// A user's message is sent again and all after it dropped; an answer is only changed.
function editMessage(message, index, node) {
  const user = message.role === "user";
  const area = element("textarea", { value: message.content, rows: 4, aria: { label: "Edited message" } });
  const save = () => {
    if (!area.value.trim()) return;
    if (user) {
      current.messages.length = index;
      send(area.value);
      return;
    }
    logprobsOf.delete(message);
    message.content = area.value;
    saveConversation(current);
    drawMessages(false);
  };
  area.onkeydown = (event) => {
    if (event.key === "Escape") drawMessages(false);
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) save();
  };
  const actions = element("div", { className: "actions" }, button(user ? "Send" : "Save", save), button("Cancel", () => drawMessages(false)));
  node.replaceChildren(area, actions);
  node.classList.add("editing");
  area.focus();
}

find("composer").onsubmit = (event) => {
  event.preventDefault();
  if (send(find("prompt").value)) find("prompt").value = "";
};
find("stop").onclick = () => stopAnswer(current);
find("prompt").onkeydown = (event) => {
  if (event.isComposing) return;
  if (event.key === "Enter" && !event.shiftKey && !touch) {
    event.preventDefault();
    find("composer").requestSubmit();
  }
  if (event.key === "ArrowUp" && !event.target.value) {
    const articles = [...document.querySelectorAll("article.user")];
    articles.at(-1)?.querySelector("[aria-label='Edit message']")?.click();
  }
};
addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  hideToken();
  stopAnswer(current);
});
addEventListener("pagehide", () => { for (const conversation of running.keys()) saveConversation(conversation); });
