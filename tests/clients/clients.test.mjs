// Clients of npm against the real server: the tests of contract.py, for each client on each interface.
// Needs `npm ci` and the binary in DIFFULEX_BIN.

import assert from "node:assert/strict";
import { describe, test } from "node:test";

import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import Anthropic from "@anthropic-ai/sdk";
import { generateText, streamText } from "ai";
import { Ollama } from "ollama";
import OpenAI from "openai";

import { KEY, adding, failure, nameOf, note, servers, waitFor, whole } from "./harness.mjs";

const QUESTION = "12 + 30 = ?";
// An answer of 385 tokens. It arrives in one piece where the client reads late: the server joins what waits.
const COUNT = "count from 1 to 99";

const user = (prompt) => [{ role: "user", content: prompt }];

// Each client on each interface: `text` is the whole answer, `pieces` yields it as it comes, both at temperature 0.
// `extra` are fields of the body.
const CLIENTS = [
  {
    package: "openai",
    interface: "chat",
    make: ({ url, key }) => new OpenAI({ baseURL: `${url}/v1`, apiKey: key, maxRetries: 0 }),
    async text(client, model, prompt, max_tokens) {
      const reply = await client.chat.completions.create({ model, messages: user(prompt), max_tokens, temperature: 0 });
      return reply.choices[0].message.content;
    },
    async *pieces(client, model, prompt, max_tokens, extra) {
      const body = { model, messages: user(prompt), max_tokens, temperature: 0, stream: true, ...extra };
      for await (const chunk of await client.chat.completions.create(body)) yield chunk.choices[0].delta.content ?? "";
    },
  },
  {
    package: "openai",
    interface: "responses",
    make: ({ url, key }) => new OpenAI({ baseURL: `${url}/v1`, apiKey: key, maxRetries: 0 }),
    async text(client, model, input, max_output_tokens) {
      return (await client.responses.create({ model, input, max_output_tokens, temperature: 0 })).output_text;
    },
    async *pieces(client, model, input, max_output_tokens, extra) {
      // The helper that keeps a copy of the response, and throws if the events do not fit it.
      const stream = client.responses.stream({ model, input, max_output_tokens, temperature: 0, ...extra });
      try {
        for await (const event of stream) if (event.type === "response.output_text.delta") yield event.delta;
      } finally {
        stream.abort();
      }
    },
  },
  {
    package: "@anthropic-ai/sdk",
    interface: "messages",
    make: ({ url, key }) => new Anthropic({ baseURL: url, apiKey: key, maxRetries: 0 }),
    async text(client, model, prompt, max_tokens) {
      return (await client.messages.create({ model, messages: user(prompt), max_tokens })).content[0].text;
    },
    async *pieces(client, model, prompt, max_tokens, extra) {
      const stream = client.messages.stream({ model, messages: user(prompt), max_tokens, ...extra });
      try {
        for await (const event of stream) if (event.type === "content_block_delta") yield event.delta.text;
      } finally {
        stream.abort();
      }
    },
  },
  {
    package: "ollama",
    interface: "chat",
    make: ({ url, key }) => new Ollama({ host: url, headers: { authorization: `Bearer ${key}` } }),
    async text(client, model, prompt, num_predict) {
      const options = { num_predict, temperature: 0 };
      return (await client.chat({ model, messages: user(prompt), options })).message.content;
    },
    async *pieces(client, model, prompt, num_predict, extra) {
      const options = { num_predict, temperature: 0, ...extra };
      const stream = await client.chat({ model, messages: user(prompt), options, stream: true });
      try {
        for await (const part of stream) yield part.message.content;
      } finally {
        stream.abort();
      }
    },
  },
  {
    package: "@ai-sdk/openai",
    interface: "responses",
    make: ({ url, key, extra }) => createOpenAI({ baseURL: `${url}/v1`, apiKey: key, fetch: adding(extra) }),
    ...aiSdk((client, model) => client(model)),
  },
  {
    package: "@ai-sdk/openai-compatible",
    interface: "chat",
    make: ({ url, key, extra }) =>
      createOpenAICompatible({ name: "diffulex", baseURL: `${url}/v1`, apiKey: key, fetch: adding(extra) }),
    ...aiSdk((client, model) => client(model)),
  },
];

function aiSdk(modelOf) {
  const settings = (client, model, prompt, maxOutputTokens) => ({
    model: modelOf(client, model),
    prompt,
    maxOutputTokens,
    temperature: 0,
    maxRetries: 0,
  });
  return {
    async text(...call) {
      return (await generateText(settings(...call))).text;
    },
    async *pieces(client, model, prompt, maxTokens) {
      const left = new AbortController();
      const call = { ...settings(client, model, prompt, maxTokens), abortSignal: left.signal, onError: () => {} };
      try {
        for await (const part of streamText(call).fullStream) {
          if (part.type === "error") throw part.error;
          if (part.type === "text-delta") yield part.text;
        }
      } finally {
        left.abort();
      }
    },
  };
}

const started = servers();

for (const calls of CLIENTS) {
  const name = nameOf(calls.package);
  const make = (at = started.open, key = "none", extra = {}) => calls.make({ url: at.url, key, extra });
  const text = (prompt, n = 32) => calls.text(make(), started.open.model, prompt, n);
  const pieces = (prompt, n = 32, extra = {}) => calls.pieces(make(started.open, "none", extra), started.open.model, prompt, n, extra);
  const features = {
    async plain() {
      assert.match(await text(QUESTION), /42/);
    },
    async stream() {
      const answer = await text(COUNT, 400);
      let most = 0;
      for (let i = 0; i < 20 && most < 2; i++) {
        const all = (await whole(pieces(COUNT, 400))).filter(Boolean);
        assert.equal(all.join(""), answer);
        most = Math.max(most, all.length);
      }
      assert.ok(most > 1, "one piece");
    },
    async abort() {
      const left = await started.open.metric("client_disconnects_total");
      // A client that reads late may come too late to leave; it tries again then.
      for (let i = 0; i < 20 && (await started.open.metric("client_disconnects_total")) === left; i++) {
        for await (const _ of pieces("tell me a story", 1900, { ignore_eos: true })) break;
        await waitFor("free pages", async () => (await started.open.metric("num_requests_running")) === 0);
      }
      assert.ok((await started.open.metric("client_disconnects_total")) > left);
    },
    async error() {
      for (const act of [() => calls.text(make(), "nobody", "hi", 8), () => whole(calls.pieces(make(), "nobody", "hi", 8, {}))]) {
        const { status, message } = await failure(act);
        assert.equal(status, 404);
        assert.match(message, /nobody/);
      }
    },
    async Unicode() {
      const prompt = "repeat: größe 你好 🙂";
      const answer = await text(prompt, 48);
      assert.equal((await whole(pieces(prompt, 48))).join(""), answer);
      assert.ok(!answer.includes("\ufffd"));
    },
    async "wrong key"() {
      const { status } = await failure(() => calls.text(make(started.guarded, "wrong"), started.guarded.model, "hi", 8));
      assert.equal(status, 401);
      assert.match(await calls.text(make(started.guarded, KEY), started.guarded.model, QUESTION, 32), /42/);
    },
    async "too long"() {
      const { status, message } = await failure(() => text("word ".repeat(5000)));
      assert.equal(status, 400);
      assert.match(message, /tokens/);
    },
    async denoise() {
      const metric = 'stream_frames_sent_total\\{mode="denoise"\\}';
      const sent = await started.open.metric(metric);
      const all = await whole(pieces(COUNT, 400, { stream_mode: "denoise" }));
      assert.equal(all.join(""), await text(COUNT, 400));
      assert.ok((await started.open.metric(metric)) > sent + 2);
    },
  };
  describe(`${name}, ${calls.interface}`, () => {
    for (const [feature, check] of Object.entries(features)) {
      test(feature, async () => {
        await check();
        note(name, calls.interface, feature);
      });
    }
  });
}
