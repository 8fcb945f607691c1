// The `openai` package of Node against a served model: openai_node.mjs URL [tools]
//
// Each check asks as an application would and compares what the client's own types hold. With `tools`,
// the model's chat template must describe functions. Any difference ends with code 1.

import assert from "node:assert/strict";
import OpenAI from "openai";
import { zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";

const QUESTION = [{ role: "user", content: "Name the capital of France, and say one thing about it." }];
const GREEDY = { temperature: 0, max_tokens: 24 };
// No field in which a small model may continue for ever.
const City = z.object({ name: z.enum(["Paris", "Rome"]), is_capital: z.boolean() });
const WEATHER = {
  type: "function",
  function: {
    name: "get_weather",
    description: "Returns the weather of a city.",
    parameters: {
      type: "object",
      properties: { city: { type: "string", enum: ["Oslo", "Rome"] } },
      required: ["city"],
      additionalProperties: false,
    },
  },
};

async function checkChat(client, model) {
  const answer = await client.chat.completions.create({ model, messages: QUESTION, ...GREEDY });
  const [choice] = answer.choices;
  assert.equal(choice.message.role, "assistant");
  assert.ok(choice.message.content.trim());
  assert.equal(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens);
  assert.ok(answer._request_id);
  return choice.message.content;
}

async function checkStream(client, model, text) {
  const stream = await client.chat.completions.create({
    model, messages: QUESTION, stream: true, stream_options: { include_usage: true }, ...GREEDY,
  });
  let streamed = "";
  let usage;
  for await (const event of stream) {
    streamed += event.choices[0]?.delta.content ?? "";
    usage ??= event.usage;
  }
  assert.equal(streamed, text);
  assert.ok(usage.completion_tokens > 0);
  const whole = await client.chat.completions.stream({ model, messages: QUESTION, ...GREEDY }).finalContent();
  assert.equal(whole, text);
}

async function checkAbort(client, model) {
  const stream = await client.chat.completions.create({
    model, messages: QUESTION, stream: true, max_tokens: 2000, ignore_eos: true,
  });
  let events = 0;
  for await (const _ of stream) {
    events += 1;
    if (events === 3) stream.controller.abort();
  }
  assert.equal(events, 3);
}

async function checkStructured(client, model) {
  const messages = [{ role: "user", content: "Describe Paris as JSON." }];
  const answer = await client.chat.completions.parse({
    model, messages, response_format: zodResponseFormat(City, "city"), temperature: 0, max_tokens: 100,
  });
  assert.deepEqual(Object.keys(answer.choices[0].message.parsed).sort(), ["is_capital", "name"]);
  const response = await client.responses.parse({
    model, input: messages, text: { format: zodTextFormat(City, "city") }, temperature: 0, max_output_tokens: 100,
  });
  assert.ok(City.safeParse(response.output_parsed).success, response.output_text);
}

async function checkResponses(client, model) {
  const limits = { temperature: 0, max_output_tokens: 24 };
  const whole = await client.responses.create({ model, input: QUESTION, ...limits });
  assert.ok(whole.output_text.trim());
  let streamed = "";
  for await (const event of await client.responses.create({ model, input: QUESTION, stream: true, ...limits })) {
    if (event.type === "response.output_text.delta") streamed += event.delta;
  }
  assert.equal(streamed, whole.output_text);
}

async function checkCompletions(client, model) {
  const request = { model, prompt: "One, two, three,", max_tokens: 8, temperature: 0 };
  const whole = (await client.completions.create(request)).choices[0].text;
  let streamed = "";
  for await (const event of await client.completions.create({ ...request, stream: true })) {
    streamed += event.choices[0].text;
  }
  assert.equal(streamed, whole);
}

async function checkEmbeddings(client, model) {
  const request = { model, input: ["a kernel", "a nut"] };
  const found = await client.embeddings.create(request);
  const floats = await client.embeddings.create({ ...request, encoding_format: "float" });
  for (const [index, item] of found.data.entries()) {
    const norm = item.embedding.reduce((sum, element) => sum + element * element, 0);
    assert.ok(Math.abs(norm - 1) < 1e-5, `${norm}`);
    for (const [place, element] of item.embedding.entries()) {
      assert.ok(Math.abs(element - floats.data[index].embedding[place]) < 1e-6);
    }
  }
}

async function checkErrors(client, model) {
  await assert.rejects(
    client.chat.completions.create({ model: "no-such-model", messages: QUESTION }),
    (error) => error instanceof OpenAI.NotFoundError && error.code === "model_not_found",
  );
  await assert.rejects(
    client.chat.completions.create({ model, messages: QUESTION, temperature: -1 }),
    (error) => error instanceof OpenAI.BadRequestError && error.param === "temperature",
  );
}

async function checkTools(client, model) {
  const request = {
    model, messages: [{ role: "user", content: "What is the weather in Oslo?" }], tools: [WEATHER],
    temperature: 0, max_tokens: 100,
  };
  const answer = await client.chat.completions.create({ ...request, tool_choice: "required" });
  const [choice] = answer.choices;
  assert.equal(choice.finish_reason, "tool_calls");
  const [call] = choice.message.tool_calls;
  assert.ok(["Oslo", "Rome"].includes(JSON.parse(call.function.arguments).city));
  const streamed = await client.chat.completions.stream({ ...request, tool_choice: "required" }).finalMessage();
  assert.equal(streamed.tool_calls[0].function.arguments, call.function.arguments);
  const result = { role: "tool", tool_call_id: call.id, content: "4 degrees and rain" };
  const followed = await client.chat.completions.create({
    ...request, messages: [...request.messages, choice.message, result],
  });
  assert.ok(followed.choices[0].message.content || followed.choices[0].message.tool_calls);

  // The runner calls the function once and then has the model answer without one.
  const cities = [];
  const runner = client.chat.completions.runTools({
    ...request,
    tool_choice: { type: "function", function: { name: "get_weather" } },
    tools: [{
      type: "function",
      function: {
        ...WEATHER.function,
        parse: JSON.parse,
        function: ({ city }) => { cities.push(city); return "4 degrees and rain"; },
      },
    }],
  });
  await runner.done();
  assert.deepEqual(cities, [JSON.parse(call.function.arguments).city]);

  const responses = await client.responses.create({
    model, input: request.messages, temperature: 0, max_output_tokens: 100, tool_choice: "required",
    tools: [{ type: "function", strict: true, ...WEATHER.function }],
  });
  assert.equal(responses.output.at(-1).type, "function_call");
  assert.ok(JSON.parse(responses.output.at(-1).arguments).city);
}

const [url, mode] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });
const model = (await client.models.list()).data[0].id;
if (mode === "tools") {
  await checkTools(client, model);
} else {
  const text = await checkChat(client, model);
  await checkStream(client, model, text);
  await checkAbort(client, model);
  await checkStructured(client, model);
  await checkResponses(client, model);
  await checkCompletions(client, model);
  await checkEmbeddings(client, model);
  await checkErrors(client, model);
}
console.log("openai of Node: as expected");
