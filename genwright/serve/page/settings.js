"use strict";
// Sampling settings, of all conversations; an empty field is left to the server.

const FIELDS = [
  // name, label, least, most, step
  ["temperature", "Temperature", 0, 100, 0.05],
  ["top_p", "Top p", 0, 1, 0.01],
  ["top_k", "Top k", 0, 1e6, 1],
  ["min_p", "Min p", 0, 1, 0.01],
  ["repetition_penalty", "Repetition penalty", 0.01, 100, 0.01],
  ["presence_penalty", "Presence penalty", -2, 2, 0.1],
  ["frequency_penalty", "Frequency penalty", -2, 2, 0.1],
  ["seed", "Seed", 0, Number.MAX_SAFE_INTEGER, 1],
  ["max_completion_tokens", "Most tokens", 1, 1e9, 1],
];
const ALTERNATIVES = 5; // shown beside a token's own log-probability
const settings = { logprobs: true, ...kept.read("settings", {}) };

function drawSettings() {
  const inputs = FIELDS.map(([name, label, min, max, step]) => {
    const value = settings[name] ?? "";
    const input = element("input", { type: "number", name, min, max, step: "any", value, placeholder: "default" });
    input.oninput = () => {
      const number = input.value === "" ? undefined : Number(input.value);
      changeSetting(name, number);
    };
    input.addEventListener("keydown", (event) => stepBy(event, input, step));
    return element("label", {}, label, input);
  });
  const stop = element("textarea", { rows: 1, name: "stop", value: settings.stop ?? "", placeholder: "one per line" });
  stop.oninput = () => changeSetting("stop", stop.value);
  find("fields").replaceChildren(...inputs, element("label", { className: "wide" }, "Stop texts", stop));
  find("schema").value = settings.schema ?? "";
  find("logprobs").checked = settings.logprobs;
  showSchema();
}

// Up and down change a number by the field's own step, from any value.
function stepBy(event, input, step) {
  const sign = { ArrowUp: 1, ArrowDown: -1 }[event.key];
  if (!sign) return;
  event.preventDefault();
  const next = Math.min(input.max, Math.max(input.min, Number(input.value) + sign * step));
  input.value = Number(next.toFixed(6));
  input.oninput();
}

function changeSetting(name, value) {
  settings[name] = value;
  kept.write("settings", settings);
  if (name === "schema") showSchema();
}

function showSchema() {
  const { error, schema } = readSchema();
  find("schema-error").textContent = error ?? "";
  find("schema-error").hidden = !error;
  find("constrained").hidden = !schema;
}

function readSchema() {
  const text = (settings.schema ?? "").trim();
  if (!text) return {};
  try {
    const schema = JSON.parse(text);
    if (schema && typeof schema === "object" && !Array.isArray(schema)) return { schema };
    return { error: "The schema must be a JSON object." };
  } catch (error) {
    return { error: `The schema is not JSON: ${error.message}` };
  }
}

// The fields of a request that the settings decide; throws if the schema cannot be sent.
function requestFields() {
  const found = {};
  for (const [name] of FIELDS) if (typeof settings[name] === "number") found[name] = settings[name];
  const stop = (settings.stop ?? "").split("\n").filter(Boolean);
  if (stop.length) found.stop = stop;
  if (settings.logprobs) Object.assign(found, { logprobs: true, top_logprobs: ALTERNATIVES });
  const { error, schema } = readSchema();
  if (error) throw new Error(error);
  if (schema) found.response_format = { type: "json_schema", json_schema: { name: "answer", schema } };
  return found;
}

find("schema").oninput = () => changeSetting("schema", find("schema").value);
find("logprobs").onchange = () => changeSetting("logprobs", find("logprobs").checked);
find("reset").onclick = () => {
  for (const name of Object.keys(settings)) delete settings[name];
  changeSetting("logprobs", true);
  drawSettings();
};
