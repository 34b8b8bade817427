"use strict";
// The images tab: a grid of one class, or of any, drawn from a seed.

let drawing = null;

function fillClasses(names) {
  const options = names.map((name) => element("option", { value: name }, name));
  find("image-class").replaceChildren(element("option", { value: "" }, "any"), ...options);
}

async function generateImages() {
  // The seed is drawn here, so that it can be shown and the grid be made again.
  const seed = find("image-seed").value || String(crypto.getRandomValues(new Uint32Array(1))[0]);
  const name = find("image-class").value;
  const body = { prompt: name, n: Number(find("image-count").value), seed: Number(seed) };
  if (find("image-steps").value) body.steps = Number(find("image-steps").value);
  drawing = new AbortController();
  const status = find("image-status");
  const started = performance.now();
  status.className = "";
  status.textContent = "Generating…";
  find("image-send").hidden = !(find("image-stop").hidden = false);
  try {
    const { data } = await (await call("v1/images/generations", body, drawing.signal)).json();
    find("grid").replaceChildren(...data.map((image, index) => drawImage(image.b64_json, index, name, seed)));
    const seconds = ((performance.now() - started) / 1000).toFixed(2);
    status.textContent = `${data.length} ${data.length === 1 ? "image" : "images"} of ${name || "any class"}, seed ${seed}, in ${seconds} s. Choose one to save it.`;
  } catch (error) {
    status.textContent = drawing.signal.aborted ? "Stopped." : error.message;
    status.className = drawing.signal.aborted ? "" : "error";
  }
  find("image-send").hidden = !(find("image-stop").hidden = true);
}

function drawImage(base64, index, name, seed) {
  const src = `data:image/png;base64,${base64}`;
  const alt = `${name || "any class"}, image ${index + 1} of seed ${seed}`;
  const save = element("a", { href: src, download: `${name || "any"}-${seed}-${index + 1}.png` }, element("img", { src, alt }));
  return element("div", { role: "listitem" }, save);
}

find("images-form").onsubmit = (event) => {
  event.preventDefault();
  generateImages();
};
find("image-stop").onclick = () => drawing?.abort();
