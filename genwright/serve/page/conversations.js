"use strict";
// Conversations, kept in the browser, each under its own name so that two tabs do not overwrite each other's.

const conversations = new Map(); // id -> conversation
let current = null;

function newConversation() {
  const empty = [...conversations.values()].find((each) => !each.messages.length);
  const conversation = empty ?? { id: crypto.getRandomValues(new Uint32Array(2)).join("-"), system: current?.system ?? "", messages: [], changed: 0 };
  conversations.set(conversation.id, conversation);
  return conversation;
}

function loadConversations() {
  for (const name of kept.names("conversation.")) {
    const found = kept.read(name, null);
    if (found?.id && Array.isArray(found.messages)) conversations.set(found.id, found);
  }
}

function saveConversation(conversation) {
  if (!conversations.has(conversation.id)) return;
  conversation.changed = Date.now();
  const written = kept.write(`conversation.${conversation.id}`, conversation);
  if (!written) failures.set(conversation, "This browser's storage is full, so that this conversation is not kept; delete others or export it.");
}

function removeConversation(conversation) {
  if (!confirm(`Delete “${titleOf(conversation)}”?`)) return;
  stopAnswer(conversation);
  conversations.delete(conversation.id);
  kept.remove(`conversation.${conversation.id}`);
  if (conversation === current) openConversation(newest());
  else drawConversations();
}

const byTime = () => [...conversations.values()].sort((a, b) => (b.changed || Infinity) - (a.changed || Infinity));
const newest = () => byTime()[0] ?? newConversation();

function titleOf(conversation) {
  const first = conversation.messages[0]?.content.trim().split("\n")[0] ?? "";
  return first ? Array.from(first).slice(0, 60).join("") : "New conversation";
}

function drawConversations() {
  const rows = byTime().map((conversation) => {
    const title = titleOf(conversation);
    const open = button(title, () => { openConversation(conversation); showList(false); });
    if (conversation === current) open.setAttribute("aria-current", "page");
    return element("li", {}, open, button("✕", () => removeConversation(conversation), `Delete ${title}`));
  });
  find("conversations").replaceChildren(...rows);
}

function openConversation(conversation) {
  current = conversation;
  kept.write("current", conversation.id);
  find("system").value = conversation.system;
  drawConversations();
  drawMessages(true);
}

// The messages as the API has them.
function apiMessages(conversation) {
  const messages = conversation.messages.map(({ role, content }) => ({ role, content }));
  return conversation.system.trim() ? [{ role: "system", content: conversation.system }, ...messages] : messages;
}

function exportMarkdown() {
  const parts = apiMessages(current).map(({ role, content }) => `## ${role}\n\n${content}\n`);
  download("conversation.md", "text/markdown", `# ${titleOf(current)}\n\n${parts.join("\n")}`);
}

function exportJson() {
  download("conversation.json", "application/json", JSON.stringify({ messages: apiMessages(current) }, null, 2));
}

find("new-chat").onclick = () => { openConversation(newConversation()); showList(false); find("prompt").focus(); };
find("export-markdown").onclick = exportMarkdown;
find("export-json").onclick = exportJson;
find("system").oninput = () => { current.system = find("system").value; saveConversation(current); };
addEventListener("storage", (event) => {
  // Another tab has changed a conversation; the one that is open here stays as it is.
  const id = event.key?.startsWith("genwright.conversation.") ? event.key.slice(23) : current?.id; // none while the page is being loaded
  if (id === current?.id) return;
  const found = kept.read(`conversation.${id}`, null);
  if (found) conversations.set(id, found);
  else conversations.delete(id);
  drawConversations();
});
