"use strict";
// Nodes are made from texts, never from HTML, so that nothing a model writes can become an element.

const find = (id) => document.getElementById(id);

function element(tag, properties = {}, ...children) {
  const { aria = {}, data = {}, ...rest } = properties;
  const node = Object.assign(document.createElement(tag), rest);
  for (const [name, value] of Object.entries(aria)) node.setAttribute(`aria-${name}`, value);
  Object.assign(node.dataset, data);
  node.append(...children);
  return node;
}

// `name` is what screen readers say, where the text on the button alone does not tell.
function button(text, onclick, name = text) {
  return element("button", { type: "button", onclick, aria: { label: name } }, text);
}

async function copyText(text, pressed) {
  if (navigator.clipboard) {
    await navigator.clipboard.writeText(text);
  } else {
    // Browsers have no clipboard on pages without TLS from other machines.
    const area = element("textarea", { value: text, className: "unseen" });
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  const before = pressed.textContent;
  pressed.textContent = "Copied";
  setTimeout(() => { pressed.textContent = before; }, 1200);
}

function download(name, type, text) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  element("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

// What the browser keeps. Storage that is full must not stop a conversation: `write` returns whether there was room.
const kept = {
  read(name, otherwise) {
    try {
      return JSON.parse(localStorage.getItem(`genwright.${name}`)) ?? otherwise;
    } catch {
      return otherwise;
    }
  },
  write(name, value) {
    try {
      localStorage.setItem(`genwright.${name}`, JSON.stringify(value));
      return true;
    } catch {
      return false;
    }
  },
  remove(name) {
    localStorage.removeItem(`genwright.${name}`);
  },
  names(prefix) {
    const start = `genwright.${prefix}`;
    return Object.keys(localStorage).filter((name) => name.startsWith(start)).map((name) => name.slice(10));
  },
};
