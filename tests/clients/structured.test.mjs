// JSON of a schema, as clients of npm ask for it. Needs `npm ci` and the binary in DIFFULEX_BIN.

import assert from "node:assert/strict";
import { test } from "node:test";

import OpenAI from "openai";
import { zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";

import { installed, servers } from "./harness.mjs";

const QUESTION = "12 + 30 = ?";
const Sum = z.object({ total: z.int(), kind: z.enum(["even", "odd"]) });

const started = servers();

// The answer is of the schema, and the server had it: a model without one may be right by chance.
async function check(act) {
  const { open } = started;
  const before = await open.metric("constrained_requests_total");
  const sum = await act(open);
  assert.deepEqual(Sum.parse(sum), sum);
  assert.ok((await open.metric("constrained_requests_total")) > before);
}

test("openai parses a chat and a response", async () => {
  const client = () => new OpenAI({ baseURL: `${started.open.url}/v1`, apiKey: "none", maxRetries: 0 });
  await check(async ({ model }) => {
    const messages = [{ role: "user", content: QUESTION }];
    const body = { model, messages, max_tokens: 64, response_format: zodResponseFormat(Sum, "sum") };
    return (await client().chat.completions.parse(body)).choices[0].message.parsed;
  });
  await check(async ({ model }) => {
    const body = { model, input: QUESTION, max_output_tokens: 64, text: { format: zodTextFormat(Sum, "sum") } };
    return (await client().responses.parse(body)).output_parsed;
  });
});

for (const [folder, provider] of [
  ["ai", "@ai-sdk/openai-compatible"],
  ["ai6", "@ai-sdk/openai-compatible2"],
  ["ai5", "@ai-sdk/openai-compatible1"],
]) {
  test(`generateObject of ${folder}`, async () => {
    const { library } = await installed(folder);
    const { createOpenAICompatible } = (await installed(provider)).library;
    await check(async ({ url, model }) => {
      const diffulex = createOpenAICompatible({ name: "diffulex", baseURL: `${url}/v1`, supportsStructuredOutputs: true });
      const body = { model: diffulex(model), prompt: QUESTION, maxOutputTokens: 64, maxRetries: 0 };
      // The newest version has it in generateText.
      if (!library.generateObject) {
        return (await library.generateText({ ...body, output: library.Output.object({ schema: Sum }) })).output;
      }
      return (await library.generateObject({ ...body, schema: Sum })).object;
    });
  });
}
