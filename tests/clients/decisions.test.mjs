// Typed questions, as clients of npm ask them. Needs `npm ci` and the binary in DIFFULEX_BIN.

import assert from "node:assert/strict";
import { test } from "node:test";

import { createOpenAI } from "@ai-sdk/openai";
import { experimental_decide as decide } from "ai";
import OpenAI from "openai";

import { installed, note, servers } from "./harness.mjs";

const INPUT = "12 + 30 = ?";

const started = servers();

// Writes the row of the table.
async function noted(folder) {
  const { client, version } = await installed(folder);
  note(client, version, "decisions", "typed questions", true);
}

test("openai has decisions", async () => {
  const { url, model } = started.open;
  const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });
  const questions = [
    { type: "predicate", name: "sum", instructions: "A sum is asked for." },
    { type: "choice", instructions: "Which?", choices: [{ value: "sum" }, { value: true }, { value: "story" }] },
    { type: "score", instructions: "How long?", levels: [{ label: "short" }, { label: "long" }] },
  ];
  const { answers, usage } = await client.decisions.create({ model, input: INPUT, questions });
  const [predicate, choice, score] = answers;
  assert.deepEqual([predicate.type, predicate.name, choice.name], ["predicate", "sum", null]);
  assert.ok(predicate.probability >= 0 && predicate.probability <= 1);
  assert.deepEqual(choice.probabilities.map(({ value }) => value), ["sum", true, "story"]);
  assert.equal(choice.choice, choice.probabilities.toSorted((left, right) => right.probability - left.probability)[0].value);
  assert.ok(Math.abs(score.score - score.probabilities[1].probability) < 1e-9);
  assert.equal(usage.output_tokens, 3);
  await assert.rejects(client.decisions.create({ model, input: INPUT, questions: [] }), /questions/);
  await noted("openai");
});

test("the AI SDK decides", async () => {
  const { url, model } = started.open;
  const diffulex = createOpenAI({ baseURL: `${url}/v1`, apiKey: "none" });
  const questions = {
    sum: { type: "boolean", instructions: "A sum is asked for." },
    kind: { type: "choice", instructions: "Which?", criteria: { sum: null, story: "a tale" } },
    length: { type: "score", instructions: "How long?", criteria: ["short", "long"] },
  };
  const { answers } = await decide({ model: diffulex.decisionModel(model), state: INPUT, questions, maxRetries: 0 });
  const { sum, kind, length } = answers;
  assert.ok(sum.probability >= 0 && sum.probability <= 1);
  const shares = kind.probabilities;
  assert.equal(kind.choice, shares.sum >= shares.story ? "sum" : "story");
  assert.ok(Math.abs(length.score - length.probabilities[1]) < 1e-9);
  await noted("@ai-sdk/openai");
});
