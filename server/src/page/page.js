// The server's own page: a chat over /v1/chat/completions, and the server's metrics.
"use strict";

const METRICS_INTERVAL_MS = 1000;
const element = (id) => document.getElementById(id);
/** Messages of the chat so far, without the system prompt. */
let messages = [];
/** Aborts the answer that is being received. */
let running = null;
let lastMetrics = null;

function headers() {
  const key = element("key").value;
  return { "Content-Type": "application/json", ...(key && { Authorization: `Bearer ${key}` }) };
}

/** Returns a server's error as one sentence, and asks for the key if one is missing. */
async function errorText(response) {
  if (response.status === 401) element("key_row").hidden = false;
  try {
    return (await response.json()).error.message;
  } catch {
    return `the server answered with status ${response.status}`;
  }
}

/** Adds a message to the page and returns the node of its text. */
function show(role, text) {
  const node = document.createElement("div");
  node.className = `message ${role}`;
  const content = document.createElement("div");
  content.textContent = text;
  node.append(content);
  element("messages").append(node);
  node.scrollIntoView({ block: "end" });
  return content;
}

/** Adds text to the thoughts that precede an answer. */
function showThought(content, text) {
  let details = content.parentNode.querySelector("details");
  if (!details) {
    details = document.createElement("details");
    details.append(Object.assign(document.createElement("summary"), { textContent: "Thoughts" }));
    details.append(document.createElement("div"));
    content.before(details);
  }
  details.lastChild.textContent += text;
}

/** Yields the objects of a stream of server-sent events. */
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let buffered = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    buffered += value;
    const parts = buffered.split("\n\n");
    buffered = parts.pop();
    for (const part of parts) {
      const data = part.replace(/^data: /, "");
      if (data === "[DONE]") return;
      if (part.startsWith("data: ")) yield JSON.parse(data);
    }
  }
}

function request(chat) {
  const system = element("system").value.trim();
  const body = {
    messages: system ? [{ role: "system", content: system }, ...chat] : chat,
    stream: true,
    stream_options: { include_usage: true },
  };
  for (const field of ["temperature", "max_tokens"]) {
    const value = element(field).valueAsNumber;
    if (!Number.isNaN(value)) body[field] = value;
  }
  return body;
}

function showSpeed(usage, began, first, last) {
  const seconds = (last - first) / 1000;
  const tokens = usage.completion_tokens - 1;
  element("first_token").textContent = `${((first - began) / 1000).toFixed(2)} s`;
  element("speed").textContent = seconds > 0 ? `${(tokens / seconds).toFixed(1)} tokens/s` : "–";
  const cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
  element("prompt").textContent = `${usage.prompt_tokens} tokens, ${cached} cached`;
}

/** Receives the answer to a chat into `content`; returns its text. */
async function receive(chat, content) {
  const began = performance.now();
  let [text, first, last] = ["", null, null];
  const response = await fetch("v1/chat/completions", {
    method: "POST",
    headers: headers(),
    body: JSON.stringify(request(chat)),
    signal: running.signal,
  });
  if (!response.ok) throw new Error(await errorText(response));
  for await (const event of events(response.body)) {
    if (event.error) throw new Error(event.error.message);
    const delta = event.choices?.[0]?.delta;
    if (delta?.content || delta?.reasoning_content) {
      last = performance.now();
      first ??= last;
    }
    if (delta?.reasoning_content) showThought(content, delta.reasoning_content);
    if (delta?.content) {
      text += delta.content;
      content.textContent = text;
      content.scrollIntoView({ block: "end" });
    }
    if (event.usage && first !== null) showSpeed(event.usage, began, first, last);
  }
  return text;
}

async function ask(text) {
  running = new AbortController();
  element("send").hidden = true;
  element("stop").hidden = false;
  // A new chat may begin before this answer has ended.
  const chat = messages;
  chat.push({ role: "user", content: text });
  show("user", text);
  const content = show("assistant", "");
  try {
    chat.push({ role: "assistant", content: await receive(chat, content) });
  } catch (error) {
    if (error.name === "AbortError") {
      chat.push({ role: "assistant", content: content.textContent });
    } else {
      // The message is back in the form, to be sent again.
      chat.pop();
      element("text").value ||= text;
      show("error", `No answer: ${error.message}`);
    }
  }
  running = null;
  element("send").hidden = false;
  element("stop").hidden = true;
}

/** Returns the metrics that have one value, by name. */
function parseMetrics(text) {
  const lines = text.split("\n").filter((line) => line.startsWith("tandem_") && !line.includes("{"));
  return Object.fromEntries(
    lines.map((line) => {
      const [name, value] = line.split(" ");
      return [name.replace("tandem_", ""), Number(value)];
    }),
  );
}

/** Returns the seconds that each lane was busy, by its name. */
function parseLanes(text) {
  const lines = text.matchAll(/^tandem_lane_busy_seconds_total\{lane="([^"]*)"\} (\S+)$/gm);
  return new Map([...lines].map(([, name, seconds]) => [name, Number(seconds)]));
}

/** Shows the share of the last `seconds` in which each lane was busy. */
function showLanes(lanes, before, seconds) {
  const rows = [...lanes].flatMap(([name, busy]) => {
    const share = Math.min(1, Math.max(0, busy - (before.get(name) ?? busy)) / seconds);
    const cell = (tag, properties) => Object.assign(document.createElement(tag), properties);
    return [
      cell("span", { className: "name", textContent: name }),
      cell("meter", { value: share, title: name }),
      cell("span", { className: "share", textContent: `${(100 * share).toFixed(0)}%` }),
    ];
  });
  if (rows.length) element("lanes").replaceChildren(...rows);
}

function showMetrics(found, lanes) {
  const now = performance.now();
  if (lastMetrics) {
    const tokens = found.generation_tokens_total - lastMetrics.found.generation_tokens_total;
    const seconds = (now - lastMetrics.now) / 1000;
    element("throughput").textContent = `${(tokens / seconds).toFixed(1)} tokens/s`;
    showLanes(lanes, lastMetrics.lanes, seconds);
  }
  lastMetrics = { found, lanes, now };
  const [running, waiting] = [found.num_requests_running, found.num_requests_waiting];
  element("requests").textContent = `${running} running, ${waiting} waiting`;
  element("kv").textContent = `${(100 * found.kv_cache_usage_perc).toFixed(1)}%`;
  const queries = found.prefix_cache_queries_total;
  element("prefix").textContent = queries
    ? `${((100 * found.prefix_cache_hits_total) / queries).toFixed(0)}% of prompt tokens`
    : "–";
  element("steps").textContent = found.engine_steps_total;
  element("restarts").textContent = found.engine_restarts_total;
}

async function refresh() {
  try {
    const response = await fetch("metrics", { headers: headers() });
    if (!response.ok) throw new Error(await errorText(response));
    const text = await response.text();
    showMetrics(parseMetrics(text), parseLanes(text));
    if (!element("model").textContent) await showModel();
    element("state").textContent = "ready";
  } catch (error) {
    element("state").textContent = error.message;
    lastMetrics = null;
  }
  setTimeout(refresh, METRICS_INTERVAL_MS);
}

async function showModel() {
  const response = await fetch("v1/models", { headers: headers() });
  const model = response.ok && (await response.json()).data[0];
  if (model) element("model").textContent = `${model.id}, context ${model.max_model_len}`;
  const found = await fetch("placement", { headers: headers() });
  if (found.ok) showPlacement((await found.json()).placement);
}

function showPlacement(placement) {
  const cell = (tag, text) => Object.assign(document.createElement(tag), { textContent: text });
  const rows = placement.flatMap(({ name, value }) => [cell("dt", name), cell("dd", value)]);
  element("placement").replaceChildren(...rows);
}

element("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = element("text").value.trim();
  if (!text || running) return;
  element("text").value = "";
  ask(text);
});
element("text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    element("ask").requestSubmit();
  }
});
element("stop").addEventListener("click", () => running?.abort());
element("new").addEventListener("click", () => {
  running?.abort();
  messages = [];
  element("messages").replaceChildren();
  element("text").focus();
});
refresh();
