// Clients of npm that embed, against the real server: the tests of EmbeddingContract in contract.py. Needs `npm ci` and the binary in
// DIFFULEX_BIN.

import assert from "node:assert/strict";

import { embedMany as embedMany5 } from "ai5";
import { embedMany as embedMany6 } from "ai6";
import { embedMany } from "ai";

import { KEY, contract, failure, installed, servers } from "./harness.mjs";

// Each client, in each version: `vectors` are the embeddings of several texts. One that `cuts` leaves it to the server to cut what is
// too long.
const CLIENTS = [
  {
    packages: ["openai", "openai6", "openai5"],
    interface: "embeddings",
    make: ({ OpenAI }, { url, key }) => new OpenAI({ baseURL: `${url}/v1`, apiKey: key, maxRetries: 0 }),
    // It asks for base64 where no format is given.
    vectors: async (client, model, input) => (await client.embeddings.create({ model, input })).data.map(({ embedding }) => embedding),
  },
  {
    packages: ["ollama", "ollama05"],
    interface: "embed",
    cuts: true,
    make: ({ Ollama }, { url, key }) => new Ollama({ host: url, headers: { authorization: `Bearer ${key}` } }),
    vectors: async (client, model, input) => (await client.embed({ model, input })).embeddings,
  },
  ...aiSdk(["@ai-sdk/openai", "@ai-sdk/openai3", "@ai-sdk/openai2"], ({ createOpenAI }, settings) => createOpenAI(settings)),
  ...aiSdk(
    ["@ai-sdk/openai-compatible", "@ai-sdk/openai-compatible2", "@ai-sdk/openai-compatible1"],
    ({ createOpenAICompatible }, settings) => createOpenAICompatible({ name: "diffulex", ...settings }),
  ),
];

// Providers of the AI SDK, newest first, each with the SDK of its time.
function aiSdk(packages, create) {
  return [embedMany, embedMany6, embedMany5].map((embed, nth) => ({
    packages: [packages[nth]],
    interface: "embeddings",
    make: (library, { url, key }) => create(library, { baseURL: `${url}/v1`, apiKey: key }),
    async vectors(client, name, values) {
      const model = client.embeddingModel ? client.embeddingModel(name) : client.textEmbeddingModel(name);
      return (await embed({ model, values, maxRetries: 0 })).embeddings;
    },
  }));
}

const started = servers();

for (const calls of CLIENTS)
  for (const folder of calls.packages) {
    const { library, ...named } = await installed(folder);
    const vectors = (texts, { at = started.open, key = "none", model = at.model } = {}) =>
      calls.vectors(calls.make(library, { url: at.url, key }), model, texts);
    const features = {
      async plain() {
        const texts = Array.from({ length: 70 }, (_, nth) => `text ${nth}`);
        const together = await vectors(texts);
        assert.equal(together.length, texts.length);
        assert.deepEqual(await vectors(texts.slice(69)), together.slice(69));
        for (const vector of together) {
          const length = vector.reduce((sum, value) => sum + value * value, 0);
          assert.ok(Math.abs(length - 1) < 1e-5, `${length}`);
        }
      },
      async error() {
        const { status, message } = await failure(() => vectors(["hi"], { model: "nobody" }));
        assert.equal(status, 404);
        assert.match(message, /nobody/);
      },
      async Unicode() {
        const [first, second] = await vectors(["größe 你好 🙂", "grosse 你好 🙂"]);
        assert.notDeepEqual(first, second);
      },
      async "wrong key"() {
        const { status } = await failure(() => vectors(["hi"], { at: started.guarded, key: "wrong" }));
        assert.equal(status, 401);
        assert.equal((await vectors(["hi"], { at: started.guarded, key: KEY })).length, 1);
      },
      async "too long"() {
        const long = "word ".repeat(5000);
        if (calls.cuts) {
          const [first, second] = await vectors([long, `${long}word `]);
          assert.deepEqual(first, second);
          return;
        }
        const { status, message } = await failure(() => vectors([long]));
        assert.equal(status, 400);
        assert.match(message, /tokens/);
      },
    };
    contract(named, calls, features);
  }
