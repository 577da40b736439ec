// Clients of npm against the real server: the tests of contract.py, for each client on each interface.
// Needs `npm ci` and the binary in DIFFULEX_BIN.

import assert from "node:assert/strict";

import { generateText as generate5, streamText as stream5 } from "ai5";
import { generateText as generate6, streamText as stream6 } from "ai6";
import { generateText, streamText } from "ai";
import OpenAI from "openai";

import { KEY, adding, contract, failure, installed, servers, waitFor, whole } from "./harness.mjs";

const QUESTION = "12 + 30 = ?";
// An answer of 385 tokens. It arrives in one piece where the client reads late: the server joins what waits.
const COUNT = "count from 1 to 99";

const user = (prompt) => [{ role: "user", content: prompt }];

// Each client on each interface, in each version: `text` is the whole answer, `pieces` yields it as it comes, both at temperature 0.
// `extra` are fields of the body.
const CLIENTS = [
  {
    packages: ["openai", "openai6", "openai5"],
    interface: "chat",
    make: ({ OpenAI }, { url, key }) => new OpenAI({ baseURL: `${url}/v1`, apiKey: key, maxRetries: 0 }),
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
    packages: ["openai", "openai6", "openai5"],
    interface: "responses",
    make: ({ OpenAI }, { url, key }) => new OpenAI({ baseURL: `${url}/v1`, apiKey: key, maxRetries: 0 }),
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
    packages: ["@anthropic-ai/sdk", "@anthropic-ai/sdk0"],
    interface: "messages",
    make: ({ Anthropic }, { url, key }) => new Anthropic({ baseURL: url, apiKey: key, maxRetries: 0 }),
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
    packages: ["ollama", "ollama05"],
    interface: "chat",
    make: ({ Ollama }, { url, key }) => new Ollama({ host: url, headers: { authorization: `Bearer ${key}` } }),
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
  ...aiSdk("responses", ["@ai-sdk/openai", "@ai-sdk/openai3", "@ai-sdk/openai2"], ({ createOpenAI }, settings) =>
    createOpenAI(settings),
  ),
  // It takes only the events that it knows.
  ...aiSdk("messages", ["@ai-sdk/anthropic", "@ai-sdk/anthropic3", "@ai-sdk/anthropic2"], ({ createAnthropic }, settings) =>
    createAnthropic(settings),
  ).map((calls) => ({ ...calls, lacks: ["denoise"] })),
  ...aiSdk(
    "chat",
    ["@ai-sdk/openai-compatible", "@ai-sdk/openai-compatible2", "@ai-sdk/openai-compatible1"],
    ({ createOpenAICompatible }, settings) => createOpenAICompatible({ name: "diffulex", ...settings }),
  ),
  {
    packages: ["@openai/agents"],
    interface: "responses",
    ...agents((library, client, model) => new library.OpenAIResponsesModel(client, model)),
  },
  {
    packages: ["@openai/agents"],
    interface: "chat",
    ...agents((library, client, model) => new library.OpenAIChatCompletionsModel(client, model)),
  },
  {
    packages: ["@langchain/openai"],
    interface: "chat",
    make: (library, at) => ({ library, at }),
    chat: ({ library, at }, model, maxTokens) =>
      new library.ChatOpenAI({
        model,
        maxTokens,
        temperature: 0,
        maxRetries: 0,
        apiKey: at.key,
        configuration: { baseURL: `${at.url}/v1` },
        modelKwargs: at.extra,
      }),
    async text(client, model, prompt, maxTokens) {
      return (await this.chat(client, model, maxTokens).invoke(prompt)).text;
    },
    async *pieces(client, model, prompt, maxTokens) {
      for await (const chunk of await this.chat(client, model, maxTokens).stream(prompt)) yield chunk.text;
    },
  },
];

// Providers of the AI SDK, newest first, each with the SDK of its time.
function aiSdk(interfaceName, packages, create) {
  const sdks = [
    [generateText, streamText],
    [generate6, stream6],
    [generate5, stream5],
  ];
  const settings = (client, model, prompt, maxOutputTokens) => ({
    model: client(model),
    prompt,
    maxOutputTokens,
    temperature: 0,
    maxRetries: 0,
  });
  return sdks.map(([generate, stream], nth) => ({
    packages: [packages[nth]],
    interface: interfaceName,
    make: (library, { url, key, extra }) => create(library, { baseURL: `${url}/v1`, apiKey: key, fetch: adding(extra) }),
    async text(...call) {
      return (await generate(settings(...call))).text;
    },
    async *pieces(client, model, prompt, maxTokens) {
      const left = new AbortController();
      const call = { ...settings(client, model, prompt, maxTokens), abortSignal: left.signal, onError: () => {} };
      try {
        for await (const part of stream(call).fullStream) {
          if (part.type === "error") throw part.error;
          if (part.type === "text-delta") yield part.text;
        }
      } finally {
        left.abort();
      }
    },
  }));
}

// OpenAI's agents SDK over one of its models.
function agents(modelOf) {
  const agent = ({ library, at }, model, maxTokens) => {
    library.setTracingDisabled(true);
    const client = new OpenAI({ baseURL: `${at.url}/v1`, apiKey: at.key, maxRetries: 0 });
    const modelSettings = { temperature: 0, maxTokens, providerData: at.extra };
    return new library.Agent({ name: "a", model: modelOf(library, client, model), modelSettings });
  };
  return {
    make: (library, at) => ({ library, at }),
    async text(client, model, prompt, maxTokens) {
      return (await client.library.run(agent(client, model, maxTokens), prompt)).finalOutput;
    },
    async *pieces(client, model, prompt, maxTokens) {
      const left = new AbortController();
      const run = await client.library.run(agent(client, model, maxTokens), prompt, { stream: true, signal: left.signal });
      try {
        for await (const event of run) if (event.data?.type === "output_text_delta") yield event.data.delta;
        await run.completed;
      } finally {
        left.abort();
      }
    },
  };
}

const started = servers();

for (const calls of CLIENTS)
  for (const folder of calls.packages) {
    const { library, ...named } = await installed(folder);
    const make = (at = started.open, key = "none", extra = {}) => calls.make(library, { url: at.url, key, extra });
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
    contract(named, calls, features);
  }
