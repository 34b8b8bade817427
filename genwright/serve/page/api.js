"use strict";
// Requests to the server. A key is asked for when the server wants one, and kept until the tab is closed.

const KEY = "genwright.key";
let askedForKey = null;

function askForKey(reason) {
  askedForKey ??= new Promise((resolve, reject) => {
    const dialog = find("key-dialog");
    find("key-error").textContent = sessionStorage.getItem(KEY) ? reason : "";
    find("key").value = "";
    find("key-form").onsubmit = (event) => {
      event.preventDefault();
      sessionStorage.setItem(KEY, find("key").value.trim());
      resolve();
      dialog.close();
    };
    dialog.onclose = () => {
      askedForKey = null;
      reject(new Error(reason));
    };
    dialog.showModal();
  });
  return askedForKey;
}

// Paths are relative, so that the page also works below a proxy's path. Errors are the server's sentences.
async function call(path, body = null, signal = null) {
  for (;;) {
    const headers = { accept: "application/json" };
    const key = sessionStorage.getItem(KEY);
    if (body) headers["content-type"] = "application/json";
    if (key) headers.authorization = `Bearer ${key}`;
    const request = { method: body ? "POST" : "GET", headers, signal, cache: "no-store" };
    if (body) request.body = JSON.stringify(body);
    let response;
    try {
      response = await fetch(path, request);
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Error("The server cannot be reached.");
    }
    if (response.ok) return response;
    const found = await response.json().catch(() => null);
    const sentence = found?.error?.message ?? `The server answered with status ${response.status}.`;
    if (response.status !== 401) throw new Error(sentence);
    await askForKey(sentence);
  }
}

// The JSON values of a streamed answer.
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = ""; ;) {
    const { value, done } = await reader.read();
    if (done) throw new Error("The connection was closed before the answer ended.");
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data: ")) continue;
      if (line === "data: [DONE]") return;
      const event = JSON.parse(line.slice(6));
      if (event.error) throw new Error(event.error.message);
      yield event;
    }
  }
}
