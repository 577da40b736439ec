// Clients of npm that embed, against the real server: the tests of EmbeddingContract in contract.py. Needs `npm ci` and the binary in
// DIFFULEX_BIN.

import assert from "node:assert/strict";
import { describe, test } from "node:test";

import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { embedMany } from "ai";
import { Ollama } from "ollama";
import OpenAI from "openai";

import { KEY, failure, nameOf, note, servers } from "./harness.mjs";

async function embedded(model, values) {
  return (await embedMany({ model, values, maxRetries: 0 })).embeddings;
}

// Each client: `vectors` are the embeddings of several texts. One that `cuts` leaves it to the server to cut what is too long.
const CLIENTS = [
  {
    package: "openai",
    interface: "embeddings",
    make: ({ url, key }) => new OpenAI({ baseURL: `${url}/v1`, apiKey: key, maxRetries: 0 }),
    // It asks for base64 where no format is given.
    vectors: async (client, model, input) => (await client.embeddings.create({ model, input })).data.map(({ embedding }) => embedding),
  },
  {
    package: "ollama",
    interface: "embed",
    cuts: true,
    make: ({ url, key }) => new Ollama({ host: url, headers: { authorization: `Bearer ${key}` } }),
    vectors: async (client, model, input) => (await client.embed({ model, input })).embeddings,
  },
  {
    package: "@ai-sdk/openai",
    interface: "embeddings",
    make: ({ url, key }) => createOpenAI({ baseURL: `${url}/v1`, apiKey: key }),
    vectors: (client, model, texts) => embedded(client.embeddingModel(model), texts),
  },
  {
    package: "@ai-sdk/openai-compatible",
    interface: "embeddings",
    make: ({ url, key }) => createOpenAICompatible({ name: "diffulex", baseURL: `${url}/v1`, apiKey: key }),
    vectors: (client, model, texts) => embedded(client.embeddingModel(model), texts),
  },
];

const started = servers();

for (const calls of CLIENTS) {
  const name = nameOf(calls.package);
  const vectors = (texts, { at = started.open, key = "none", model = at.model } = {}) =>
    calls.vectors(calls.make({ url: at.url, key }), model, texts);
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
  describe(`${name}, ${calls.interface}`, () => {
    for (const [feature, check] of Object.entries(features)) {
      test(feature, async () => {
        await check();
        note(name, calls.interface, feature);
      });
    }
  });
}
