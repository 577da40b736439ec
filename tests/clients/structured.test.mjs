// JSON of a schema and calls of tools, as clients of npm ask for them: the tests of StructuredContract in structured.py. Needs `npm ci`
// and the binary in DIFFULEX_BIN.

import assert from "node:assert/strict";

import * as ai from "ai";
import * as ai5 from "ai5";
import * as ai6 from "ai6";
import OpenAI from "openai";
import { z } from "zod";

import { contract, installed, servers, whole } from "./harness.mjs";

const QUESTION = "12 + 30 = ?";
const MESSAGES = [{ role: "user", content: QUESTION }];
const MAX_TOKENS = 200;
// Most of an answer to the result of a tool: nothing is asked of its text.
const SHORT = 20;

const Sum = z.object({ total: z.int(), kind: z.enum(["even", "odd"]) });
// Few values, so that the arguments end soon.
const Weather = z.object({ unit: z.enum(["C", "F"]), days: z.union([z.literal(1), z.literal(2)]) });
const RESULT = "12 degrees";
const [SUM_SCHEMA, WEATHER_SCHEMA] = [Sum, Weather].map((type) => z.toJSONSchema(type));
const FUNCTION = { name: "get_weather", description: "The weather of some days", parameters: WEATHER_SCHEMA };

// Each client on each interface, in each version. Those of a schema return the answer, read by the library or as text. Those of tools ask
// for a call, give its result back, and return the arguments of the calls and the text of the second answer.
const CLIENTS = [
  { packages: ["openai", "openai6", "openai5"], interface: "chat", ...openAiChat() },
  { packages: ["openai", "openai6", "openai5"], interface: "responses", ...openAiResponses() },
  { packages: ["@anthropic-ai/sdk", "@anthropic-ai/sdk0"], interface: "messages", ...anthropic() },
  // Its interface has no way to ask for a call: the model may write none.
  { packages: ["ollama", "ollama05"], interface: "chat", unforced: true, ...ollama() },
  ...aiSdk("responses", ["@ai-sdk/openai", "@ai-sdk/openai3", "@ai-sdk/openai2"], ({ createOpenAI }, settings) =>
    createOpenAI(settings),
  ),
  ...aiSdk("messages", ["@ai-sdk/anthropic", "@ai-sdk/anthropic3", "@ai-sdk/anthropic2"], ({ createAnthropic }, settings) =>
    createAnthropic(settings),
  ),
  ...aiSdk(
    "chat",
    ["@ai-sdk/openai-compatible", "@ai-sdk/openai-compatible2", "@ai-sdk/openai-compatible1"],
    ({ createOpenAICompatible }, settings) => createOpenAICompatible({ name: "diffulex", supportsStructuredOutputs: true, ...settings }),
  ),
  { packages: ["@openai/agents"], interface: "responses", ...agents("OpenAIResponsesModel") },
  { packages: ["@openai/agents"], interface: "chat", ...agents("OpenAIChatCompletionsModel") },
  { packages: ["@langchain/openai"], interface: "chat", ...langChain() },
];

function openAiChat() {
  const tools = [{ type: "function", function: { ...FUNCTION, strict: true } }];
  const asked = { messages: MESSAGES, max_tokens: MAX_TOKENS };
  const response_format = { type: "json_schema", json_schema: { name: "sum", schema: SUM_SCHEMA } };
  async function wentOn(client, model, { choices: [choice] }) {
    assert.equal(choice.finish_reason, "tool_calls");
    const calls = choice.message.tool_calls;
    const results = calls.map(({ id }) => ({ role: "tool", tool_call_id: id, content: RESULT }));
    const messages = [...MESSAGES, choice.message, ...results];
    const answer = await client.chat.completions.create({ model, messages, tools, max_tokens: SHORT });
    return { calls: calls.map((call) => JSON.parse(call.function.arguments)), text: answer.choices[0].message.content };
  }
  return {
    make: ({ OpenAI }, url) => new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 }),
    schema: async (client, model) =>
      (await client.chat.completions.parse({ model, ...asked, response_format })).choices[0].message.content,
    schemaStream: async (client, model) =>
      (await client.chat.completions.stream({ model, ...asked, response_format }).finalChatCompletion()).choices[0].message.content,
    tools: async (client, model) =>
      wentOn(client, model, await client.chat.completions.create({ model, ...asked, tools, tool_choice: "required" })),
    toolsStream: async (client, model) => {
      const stream = client.chat.completions.stream({ model, ...asked, tools, tool_choice: "required" });
      return wentOn(client, model, await stream.finalChatCompletion());
    },
  };
}

function openAiResponses() {
  const tools = [{ type: "function", strict: true, ...FUNCTION }];
  const asked = { input: MESSAGES, max_output_tokens: MAX_TOKENS };
  const text = { format: { type: "json_schema", name: "sum", schema: SUM_SCHEMA } };
  const textOf = ({ output: [message] }) => message.content[0].text;
  async function wentOn(client, model, { output }) {
    assert.ok(output.every(({ type }) => type === "function_call"));
    const results = output.map(({ call_id }) => ({ type: "function_call_output", call_id, output: RESULT }));
    const input = [...MESSAGES, ...output, ...results];
    const answer = await client.responses.create({ model, input, tools, max_output_tokens: SHORT });
    return { calls: output.map((call) => JSON.parse(call.arguments)), text: answer.output_text };
  }
  return {
    make: ({ OpenAI }, url) => new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 }),
    schema: async (client, model) => textOf(await client.responses.parse({ model, ...asked, text })),
    schemaStream: async (client, model) => textOf(await client.responses.stream({ model, ...asked, text }).finalResponse()),
    tools: async (client, model) =>
      wentOn(client, model, await client.responses.create({ model, ...asked, tools, tool_choice: "required" })),
    toolsStream: async (client, model) =>
      wentOn(client, model, await client.responses.stream({ model, ...asked, tools, tool_choice: "required" }).finalResponse()),
  };
}

function anthropic() {
  const tools = [{ name: FUNCTION.name, description: FUNCTION.description, input_schema: WEATHER_SCHEMA }];
  const asked = { messages: MESSAGES, max_tokens: MAX_TOKENS };
  const forced = { tools, tool_choice: { type: "any" } };
  const output_config = { format: { type: "json_schema", schema: SUM_SCHEMA } };
  async function wentOn(client, model, { content, stop_reason }) {
    assert.equal(stop_reason, "tool_use");
    const results = content.map(({ id }) => ({ type: "tool_result", tool_use_id: id, content: RESULT }));
    const messages = [...MESSAGES, { role: "assistant", content }, { role: "user", content: results }];
    const answer = await client.messages.create({ model, messages, tools, max_tokens: SHORT });
    return { calls: content.map(({ input }) => input), text: answer.content[0].text };
  }
  return {
    make: ({ Anthropic }, url) => new Anthropic({ baseURL: url, apiKey: "none", maxRetries: 0 }),
    schema: async (client, model) => (await client.messages.create({ model, ...asked, output_config })).content[0].text,
    schemaStream: async (client, model) => client.messages.stream({ model, ...asked, output_config }).finalText(),
    tools: async (client, model) => wentOn(client, model, await client.messages.create({ model, ...asked, ...forced })),
    toolsStream: async (client, model) =>
      wentOn(client, model, await client.messages.stream({ model, ...asked, ...forced }).finalMessage()),
  };
}

function ollama() {
  const tools = [{ type: "function", function: FUNCTION }];
  const asked = { messages: MESSAGES, options: { num_predict: MAX_TOKENS, temperature: 0 } };
  const options = { num_predict: SHORT };
  // A written call goes back with its result.
  async function wentOn(client, model, answered) {
    const calls = answered.flatMap(({ message }) => message.tool_calls ?? []).map((call) => call.function.arguments);
    const written = { function: { name: FUNCTION.name, arguments: { unit: "C", days: 1 } } };
    const messages = [
      ...MESSAGES,
      { role: "assistant", content: "", tool_calls: [written] },
      { role: "tool", tool_name: FUNCTION.name, content: RESULT },
    ];
    return { calls, text: (await client.chat({ model, messages, tools, options })).message.content };
  }
  return {
    make: ({ Ollama }, url) => new Ollama({ host: url }),
    schema: async (client, model) => (await client.chat({ model, ...asked, format: SUM_SCHEMA })).message.content,
    schemaStream: async (client, model) => {
      const parts = await whole(await client.chat({ model, ...asked, format: SUM_SCHEMA, stream: true }));
      return parts.map(({ message }) => message.content).join("");
    },
    tools: async (client, model) => wentOn(client, model, [await client.chat({ model, messages: MESSAGES, tools, options })]),
    toolsStream: async (client, model) =>
      wentOn(client, model, await whole(await client.chat({ model, messages: MESSAGES, tools, options, stream: true }))),
  };
}

// Providers of the AI SDK, newest first, each with the SDK of its time.
function aiSdk(interfaceName, packages, create) {
  return [ai, ai6, ai5].map((sdk, nth) => {
    // Version 5 sends references to calls, unless it knows that they are not stored.
    const providerOptions = sdk === ai5 && interfaceName === "responses" ? { openai: { store: false } } : {};
    const ask = (client, model) => ({
      model: client(model),
      prompt: QUESTION,
      maxOutputTokens: MAX_TOKENS,
      maxRetries: 0,
      providerOptions,
    });
    // The newest version has no generateObject; its generateText has schemas.
    const output = () => ({ output: sdk.Output.object({ schema: Sum }) });
    const withTool = (client, model) => {
      const calls = [];
      const execute = async (given) => {
        calls.push(given);
        return RESULT;
      };
      const get_weather = sdk.tool({ description: FUNCTION.description, inputSchema: Weather, execute });
      // A call first, then an answer to its result.
      const prepareStep = ({ stepNumber }) => ({ toolChoice: stepNumber === 0 ? "required" : "none" });
      const stopWhen = (sdk.stepCountIs ?? sdk.isStepCount)(3);
      return { calls, settings: { ...ask(client, model), tools: { get_weather }, prepareStep, stopWhen } };
    };
    return {
      packages: [packages[nth]],
      interface: interfaceName,
      make: (library, url) => create(library, { baseURL: `${url}/v1`, apiKey: "none" }),
      schema: async (client, model) =>
        sdk.generateObject
          ? (await sdk.generateObject({ ...ask(client, model), schema: Sum })).object
          : (await sdk.generateText({ ...ask(client, model), ...output() })).output,
      schemaStream: async (client, model) => {
        if (!sdk.streamObject) return await sdk.streamText({ ...ask(client, model), ...output() }).output;
        const run = sdk.streamObject({ ...ask(client, model), schema: Sum });
        await whole(run.partialObjectStream);
        return run.object;
      },
      tools: async (client, model) => {
        const { calls, settings } = withTool(client, model);
        return { calls, text: (await sdk.generateText(settings)).text };
      },
      toolsStream: async (client, model) => {
        const { calls, settings } = withTool(client, model);
        return { calls, text: await sdk.streamText(settings).text };
      },
    };
  });
}

// OpenAI's agents SDK over one of its models.
function agents(modelClass) {
  const agent = ({ library, url }, model, settings) => {
    library.setTracingDisabled(true);
    const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });
    const { toolChoice, ...more } = settings;
    return new library.Agent({
      name: "a",
      model: new library[modelClass](client, model),
      modelSettings: { maxTokens: MAX_TOKENS, toolChoice },
      ...more,
    });
  };
  // After the first call the agent leaves the choice to the model.
  const withTool = (client, model) => {
    const calls = [];
    const execute = async (given) => {
      calls.push(given);
      return RESULT;
    };
    const { name, description } = FUNCTION;
    const tools = [client.library.tool({ name, description, parameters: Weather, execute })];
    return { calls, agent: agent(client, model, { tools, toolChoice: "required" }) };
  };
  const streamed = async ({ library }, of) => {
    const run = await library.run(of, QUESTION, { stream: true });
    await whole(run);
    await run.completed;
    return run.finalOutput;
  };
  return {
    make: (library, url) => ({ library, url }),
    schema: async (client, model) => (await client.library.run(agent(client, model, { outputType: Sum }), QUESTION)).finalOutput,
    schemaStream: async (client, model) => streamed(client, agent(client, model, { outputType: Sum })),
    tools: async (client, model) => {
      const { calls, agent } = withTool(client, model);
      return { calls, text: (await client.library.run(agent, QUESTION)).finalOutput };
    },
    toolsStream: async (client, model) => {
      const { calls, agent } = withTool(client, model);
      return { calls, text: await streamed(client, agent) };
    },
  };
}

function langChain() {
  const limited = ({ library, url }, model, maxTokens = MAX_TOKENS) =>
    new library.ChatOpenAI({ model, maxTokens, maxRetries: 0, apiKey: "none", configuration: { baseURL: `${url}/v1` } });
  const shaped = (client, model) => limited(client, model).withStructuredOutput(Sum, { method: "jsonSchema" });
  const tools = [{ type: "function", function: FUNCTION }];
  async function wentOn(client, model, ask) {
    const { AIMessage, HumanMessage, ToolMessage } = await import("@langchain/core/messages");
    const { content, tool_calls } = await ask(limited(client, model).bindTools(tools, { tool_choice: "any" }));
    const results = tool_calls.map(({ id }) => new ToolMessage({ tool_call_id: id, content: RESULT }));
    const messages = [new HumanMessage(QUESTION), new AIMessage({ content, tool_calls }), ...results];
    const answer = await limited(client, model, SHORT).bindTools(tools).invoke(messages);
    return { calls: tool_calls.map(({ args }) => args), text: answer.text };
  }
  return {
    make: (library, url) => ({ library, url }),
    schema: async (client, model) => shaped(client, model).invoke(QUESTION),
    schemaStream: async (client, model) => (await whole(await shaped(client, model).stream(QUESTION))).at(-1),
    tools: async (client, model) => wentOn(client, model, (bound) => bound.invoke(QUESTION)),
    toolsStream: async (client, model) =>
      wentOn(client, model, async (bound) => (await whole(await bound.stream(QUESTION))).reduce((all, chunk) => all.concat(chunk))),
  };
}

const started = servers();

for (const calls of CLIENTS)
  for (const folder of calls.packages) {
    const { library, ...named } = await installed(folder);
    // What a call returns, and how many requests had a constraint.
    const ask = async (method) => {
      const { open } = started;
      const before = await open.metric("constrained_requests_total");
      const answer = await calls[method](calls.make(library, open.url), open.model);
      return { answer, constrained: (await open.metric("constrained_requests_total")) - before };
    };
    const isSum = (method) => async () => {
      const { answer, constrained } = await ask(method);
      const sum = typeof answer === "string" ? JSON.parse(answer) : answer;
      assert.deepEqual(Sum.parse(sum), sum);
      // Text has a space behind each colon and comma, and the properties in their order. A total may be larger than a number here holds.
      if (typeof answer === "string") assert.match(answer, /^\{"total": -?\d+, "kind": "(even|odd)"\}$/);
      // A model without a schema may be right by chance.
      assert.equal(constrained, 1);
    };
    const isCall = (method) => async () => {
      const { answer, constrained } = await ask(method);
      assert.equal(typeof answer.text, "string");
      for (const given of answer.calls) assert.deepEqual(Weather.parse(given), given);
      if (calls.unforced) return;
      assert.ok(answer.calls.length > 0, "no call");
      assert.ok(constrained >= 1);
    };
    contract(named, calls, {
      "JSON schema": isSum("schema"),
      "JSON streamed": isSum("schemaStream"),
      tools: isCall("tools"),
      "tools streamed": isCall("toolsStream"),
    });
  }
