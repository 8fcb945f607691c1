// Vercel's AI SDK (`ai`) with its providers `@ai-sdk/openai` and `@ai-sdk/openai-compatible` against a
// served model: vercel_ai.mjs URL [tools]
//
// Each check asks as an application would, by chat completions and by responses, which is the default of
// `@ai-sdk/openai`. With `tools`, the model's chat template must describe functions. Any difference ends
// with code 1.

import assert from "node:assert/strict";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { embedMany, generateText, Output, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const prompt = "Name the capital of France, and say one thing about it.";
const limits = { temperature: 0, maxOutputTokens: 24, maxRetries: 0 };
// No field in which a small model may continue for ever.
const City = z.object({ name: z.enum(["Paris", "Rome"]), is_capital: z.boolean() });

async function checkText(model) {
  const whole = await generateText({ model, system: "Be brief.", prompt, ...limits });
  assert.ok(whole.text.trim());
  assert.ok(["stop", "length"].includes(whole.finishReason), whole.finishReason);
  assert.ok(whole.usage.inputTokens > 0 && whole.usage.outputTokens > 0, JSON.stringify(whole.usage));
  assert.deepEqual(whole.warnings ?? [], []);
  const stream = streamText({ model, system: "Be brief.", prompt, ...limits });
  let streamed = "";
  for await (const delta of stream.textStream) streamed += delta;
  assert.equal(streamed, whole.text);
  assert.equal(await stream.finishReason, whole.finishReason);
  assert.equal((await stream.usage).outputTokens, whole.usage.outputTokens);
}

async function checkStructured(model) {
  const request = { model, prompt: "Describe Paris as JSON.", ...limits, maxOutputTokens: 100 };
  const { output } = await generateText({ ...request, output: Output.object({ schema: City }) });
  assert.ok(City.safeParse(output).success, JSON.stringify(output));
  const stream = streamText({ ...request, output: Output.object({ schema: City }) });
  let last;
  for await (const partial of stream.partialOutputStream) last = partial;
  assert.deepEqual(last, output);
}

async function checkTools(model) {
  const cities = [];
  const get_weather = tool({
    description: "Returns the weather of a city.",
    inputSchema: z.object({ city: z.enum(["Oslo", "Rome"]) }),
    execute: async ({ city }) => { cities.push(city); return "4 degrees and rain"; },
  });
  const request = {
    model, prompt: "What is the weather in Oslo?", tools: { get_weather }, ...limits, maxOutputTokens: 100,
  };
  const called = await generateText({ ...request, toolChoice: "required" });
  assert.equal(called.finishReason, "tool-calls");
  assert.equal(called.toolCalls[0].toolName, "get_weather");
  assert.deepEqual(cities, called.toolCalls.map(({ input }) => input.city));
  assert.equal(called.toolResults[0].output, "4 degrees and rain");

  const stream = streamText({ ...request, toolChoice: { type: "tool", toolName: "get_weather" } });
  const kinds = [];
  for await (const part of stream.fullStream) kinds.push(part.type);
  for (const kind of ["tool-input-start", "tool-input-delta", "tool-call", "tool-result"]) {
    assert.ok(kinds.includes(kind), kinds.join(" "));
  }
  assert.ok(["Oslo", "Rome"].includes((await stream.toolCalls)[0].input.city));

  // The first step calls the function, the second one has its result.
  const steps = await generateText({
    ...request, stopWhen: stepCountIs(2),
    prepareStep: ({ stepNumber }) => ({ toolChoice: stepNumber === 0 ? "required" : "none" }),
  });
  assert.equal(steps.steps.length, 2);
  const inputs = (calls) => calls.map(({ input }) => input);
  assert.deepEqual(inputs(steps.steps[0].toolCalls), inputs(called.toolCalls));
  assert.deepEqual(steps.steps[1].toolCalls, []);
}

async function checkEmbeddings(model) {
  const { embeddings } = await embedMany({ model, values: ["a kernel", "a nut"], maxRetries: 0 });
  assert.equal(embeddings.length, 2);
  for (const vector of embeddings) {
    const norm = vector.reduce((sum, element) => sum + element * element, 0);
    assert.ok(Math.abs(norm - 1) < 1e-5, `${norm}`);
  }
}

const [url, mode] = process.argv.slice(2);
const baseURL = `${url}/v1`;
const name = (await (await fetch(`${baseURL}/models`)).json()).data[0].id;
const openai = createOpenAI({ baseURL, apiKey: "none" });
const compatible = createOpenAICompatible({
  name: "tandem", baseURL, includeUsage: true, supportsStructuredOutputs: true,
});
const models = { responses: openai(name), chat: openai.chat(name), compatible: compatible(name) };
for (const [api, model] of Object.entries(models)) {
  console.log(`ai, ${api}`);
  if (mode === "tools") {
    await checkTools(model);
  } else {
    await checkText(model);
    await checkStructured(model);
  }
}
if (mode !== "tools") {
  await checkEmbeddings(openai.textEmbeddingModel(name));
  await checkEmbeddings(compatible.textEmbeddingModel(name));
}
console.log("Vercel AI: as expected");
