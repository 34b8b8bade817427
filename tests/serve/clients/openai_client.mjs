// openai for Node against the server whose address is the argument.
import assert from "node:assert/strict";
import OpenAI from "openai";

const client = new OpenAI({ baseURL: `${process.argv[2]}/v1`, apiKey: "none", maxRetries: 0 });
const options = {
  model: "smollm2",
  messages: [{ role: "user", content: "What is the capital of France?" }],
  temperature: 0,
  max_tokens: 100,
};
const city = {
  type: "object",
  properties: { city: { type: "string", maxLength: 20 } },
  required: ["city"],
  additionalProperties: false,
};
const tools = [{ type: "function", function: { name: "get_weather", parameters: city } }];
const forced = { ...options, tools, tool_choice: "required", parallel_tool_calls: false };

const answer = await client.chat.completions.create(options);
const text = answer.choices[0].message.content;
assert.match(text, /Paris/);
let streamed = "";
let usage = null;
for await (const piece of await client.chat.completions.create({
  ...options,
  stream: true,
  stream_options: { include_usage: true },
})) {
  streamed += piece.choices[0]?.delta.content ?? "";
  usage = piece.usage ?? usage;
}
assert.equal(streamed, text);
assert.equal(usage.completion_tokens, answer.usage.completion_tokens);

const call = (await client.chat.completions.create(forced)).choices[0].message.tool_calls[0];
assert.deepEqual(Object.keys(JSON.parse(call.function.arguments)), ["city"]);
const final = await client.chat.completions.stream(forced).finalChatCompletion();
assert.equal(final.choices[0].message.tool_calls[0].function.arguments, call.function.arguments);

const form = { type: "json_schema", json_schema: { name: "city", schema: city } };
const json = (await client.chat.completions.create({ ...options, response_format: form })).choices[0].message.content;
assert.deepEqual(Object.keys(JSON.parse(json)), ["city"]);

const told = await client.chat.completions.create({ ...options, logprobs: true, top_logprobs: 2 });
assert.ok(told.choices[0].logprobs.content.every((each) => each.top_logprobs.length === 2));
const vectors = await client.embeddings.create({ model: "smollm2", input: ["a", "b"] });
assert.equal(vectors.data[0].embedding.length, vectors.data[1].embedding.length);
const images = await client.images.generate({ model: "emoji", prompt: "", n: 2 });
assert.ok(images.data.length === 2 && images.data[0].b64_json);
const response = await client.responses.create({ model: "smollm2", input: "What is the capital of France?" });
assert.ok(response.output_text);

const refused = client.chat.completions.create({ ...options, temperature: -3 });
await assert.rejects(refused, (error) => error instanceof OpenAI.BadRequestError && error.param === "temperature");
await assert.rejects(client.chat.completions.create({ ...options, model: "other" }), OpenAI.NotFoundError);
