"use strict";
// Tabs, panels and colours, and what happens when the page is opened.

const THEMES = [["light dark", "◐", "as the system"], ["light", "☀", "light"], ["dark", "☾", "dark"]];

function showTab(name) {
  for (const each of ["chat", "images"]) {
    find(each).hidden = each !== name;
    find(`${each}-tab`).setAttribute("aria-selected", each === name);
    find(`${each}-tab`).tabIndex = each === name ? 0 : -1;
  }
  document.body.dataset.tab = name;
}

// On a phone, the list and the settings have the same place.
function showList(open) {
  if (open) showSettings(false);
  find("list").classList.toggle("open", open);
  find("open-list").setAttribute("aria-expanded", open);
}

function showSettings(open) {
  if (open) showList(false);
  find("settings").hidden = !open;
  find("open-settings").setAttribute("aria-expanded", open);
}

function showTheme(index) {
  const [scheme, sign, name] = THEMES[index] ?? THEMES[0];
  document.documentElement.style.colorScheme = scheme;
  find("theme").textContent = sign;
  find("theme").setAttribute("aria-label", `Colours: ${name}`);
}

async function loadModels() {
  try {
    const { data } = await (await call("v1/models")).json();
    const images = data.find((model) => model.classes);
    const options = data.filter((model) => model !== images).map((model) =>
      element("option", { value: model.id, title: `Context of ${model.context_window} tokens` }, model.id));
    find("model").replaceChildren(...options);
    find("tabs").hidden = !images;
    if (images) fillClasses(images.classes);
  } catch (error) {
    failures.set(current, error.message);
    drawMessages();
  }
}

find("chat-tab").onclick = () => showTab("chat");
find("images-tab").onclick = () => showTab("images");
find("tabs").onkeydown = (event) => {
  if (!["ArrowLeft", "ArrowRight"].includes(event.key)) return;
  const other = document.activeElement === find("chat-tab") ? "images" : "chat";
  showTab(other);
  find(`${other}-tab`).focus();
};
find("open-list").onclick = () => showList(!find("list").classList.contains("open"));
find("open-settings").onclick = () => showSettings(find("settings").hidden);
find("theme").onclick = () => {
  const next = (kept.read("theme", 0) + 1) % THEMES.length;
  kept.write("theme", next);
  showTheme(next);
};

showTheme(kept.read("theme", 0));
showTab("chat");
showSettings(matchMedia("(min-width: 75rem)").matches);
drawSettings();
loadConversations();
openConversation(conversations.get(kept.read("current", "")) ?? newest());
loadModels();
