// Failures: errors, silence, an unreachable server, a required key.

import assert from "node:assert/strict";
import { test } from "node:test";

import { INSTANT, ask, open, requests, setRange, settled, shoot } from "./harness.mjs";

test("an error is told in the conversation, and the question can be asked again", async () => {
  const { page, close } = await open("laptop");
  await setRange(page, "pace", INSTANT);
  const error = { error: { message: "max_tokens must be at least 1, got 0", type: "invalid_request_error", param: "max_tokens", code: null } };
  await page.route("**/v1/chat/completions", (route) => route.fulfill({ status: 400, json: error }), { times: 1 });
  const failed = await ask(page, "12 + 30");
  await failed.getByText("max_tokens must be at least 1, got 0").waitFor();
  await shoot(page, "laptop-error");
  await failed.getByRole("button", { name: "Try again" }).click();
  await settled(page.locator(".turn").last());
  assert.equal(await page.locator(".turn").count(), 1);
  await close();
});

test("a server that is not ready is asked again", async () => {
  const { page, close } = await open("laptop");
  await setRange(page, "pace", INSTANT);
  const error = { error: { message: "The engine is starting.", type: "service_unavailable", param: null, code: "starting" } };
  await page.route("**/v1/chat/completions", (route) => route.fulfill({ status: 503, headers: { "retry-after-ms": "50" }, json: error }), { times: 2 });
  const turn = await ask(page, "12 + 30");
  assert.match(await settled(turn), /\S/);
  assert.ok(await turn.locator(".notice").isHidden(), "the notice goes when the answer comes");
  await close();
});

test("an error is told alike as a status and as a frame of a stream", async () => {
  const { page, close } = await open("laptop");
  const error = { error: { message: "factor must be above 0; got -1", type: "invalid_request_error", param: "decoding.factor", code: "invalid_request" } };
  for (const reply of [{ status: 400, json: error }, { contentType: "text/event-stream", body: `data: ${JSON.stringify(error)}\n\n` }]) {
    await page.route("**/v1/chat/completions", (route) => route.fulfill(reply), { times: 1 });
    const turn = await ask(page, "Hello");
    await turn.getByText("factor must be above 0; got -1").waitFor();
    await turn.getByRole("button", { name: "Try again" }).waitFor();
    await page.locator("#send").waitFor();
  }
  await close();
});

test("a silence is named, and can be ended", async () => {
  const { page, complaints, close } = await open("laptop");
  await page.route("**/v1/chat/completions", () => {}, { times: 1 });
  const turn = await ask(page, "Hello");
  await turn.getByText(/Nothing has come from the model for \d+ seconds\./).waitFor();
  await shoot(page, "laptop-silence");
  await page.click("#stop");
  await turn.getByText("Stopped.").waitFor();
  assert.ok(await turn.locator(".waiting").isHidden());
  assert.deepEqual(complaints, []);
  await close();
});

test("a message that is too long for the model is named as that", async () => {
  const { page, close } = await open("laptop");
  await setRange(page, "pace", INSTANT);
  await settled(await ask(page, "Hello"));
  const long = "Tell me a story about a dragon. ".repeat(600);
  const turn = await ask(page, long);
  await turn.getByText("This is too long for the model, which holds 1024 tokens with the answer. Shorten the message.").waitFor();
  assert.equal(await turn.getByRole("button", { name: "Try again" }).count(), 0, "the same again would be too long again");
  await turn.getByRole("button", { name: "Edit the message" }).click();
  assert.equal(await page.inputValue("#prompt"), long.trim());
  await page.fill("#prompt", "Hi");
  await page.press("#prompt", "Enter");
  await settled(page.locator(".turn").last());
  assert.equal(await page.locator(".turn").count(), 2, "the edited message takes its place");
  await close();
});

test("a conversation that is too long can be left out", async () => {
  const { page, close } = await open("laptop");
  await setRange(page, "pace", INSTANT);
  await settled(await ask(page, "Hello"));
  const error = { error: { message: "This model's maximum context length is 1024 tokens. messages: 1040 tokens, and at least one to write", type: "invalid_request_error", param: "messages", code: "context_length_exceeded" } };
  await page.route("**/v1/chat/completions", (route) => route.fulfill({ status: 400, headers: { "x-should-retry": "false" }, json: error }), { times: 1 });
  const turn = await ask(page, "Hi");
  await turn.getByText("Leave the earlier turns out, or shorten the message.").waitFor();
  const sent = requests(page);
  await turn.getByRole("button", { name: "Leave the earlier turns out" }).click();
  await settled(page.locator(".turn").last());
  assert.deepEqual(sent[0].messages.map((message) => message.content), ["Hi"]);
  await close();
});

/** A server that asks for the key "sesame". */
function locked(context) {
  const json = { error: { message: "an API key is needed", type: "authentication_error", param: null, code: "invalid_api_key" } };
  return context.route("**/v1/**", (route) =>
    route.request().headers().authorization === "Bearer sesame" ? route.fallback() : route.fulfill({ status: 401, json }),
  );
}

for (const device of ["laptop", "phone"]) {
  test(`a server behind a key asks for it on a ${device}, says which is wrong, and has it in this tab after a reload`, async () => {
    const { page, close } = await open(device, { prepare: locked, state: "away" });
    await setRange(page, "pace", INSTANT);
    const turn = await ask(page, "12 + 30");
    await turn.getByText("This server asks for an API key.").waitFor();
    await shoot(page, `${device}-key`);
    await page.fill("#api-key", "open");
    await page.press("#api-key", "Enter");
    await page.getByText("The server does not take this key.").waitFor();
    await page.fill("#api-key", "gr\u00fcn");
    await page.getByRole("button", { name: "Use key" }).click();
    await page.getByText("A key has letters, digits and signs of ASCII only.").waitFor();
    await page.fill("#api-key", "sesame");
    await page.getByRole("button", { name: "Use key" }).click();
    assert.match(await settled(turn), /\S/, "the message that waited is sent");
    assert.ok(await page.locator("#key-form").isHidden());
    await page.reload();
    await page.waitForSelector('#model[data-state="ready"]');
    await settled(await ask(page, "12 + 31"));
    // The key is kept for this tab only.
    const other = await page.context().newPage();
    await other.goto(page.url());
    await other.waitForSelector('#model[data-state="away"]');
    await close();
  });
}

test("a key that is asked for later is asked for in the conversation", async () => {
  const { page, close } = await open("laptop");
  await setRange(page, "pace", INSTANT);
  await settled(await ask(page, "Hello"));
  await locked(page.context());
  const turn = await ask(page, "12 + 30");
  await page.fill("#api-key", "sesame");
  await page.press("#api-key", "Enter");
  assert.match(await settled(turn), /\S/);
  await close();
});

test("a server that refuses the page is quoted, until it does not", async () => {
  const message = "\"llm.example.com\" is not an allowed name of this server; --allowed-host llm.example.com allows it";
  const error = { error: { message, type: "invalid_request_error", param: null, code: "host_not_allowed" } };
  const prepare = (context) => context.route("**/v1/models", (route) => route.fulfill({ status: 403, json: error }), { times: 1 });
  const { page, close } = await open("laptop", { prepare, state: "away" });
  await page.locator("#refused").getByText(message).waitFor();
  assert.equal(await page.textContent("#model-name"), "Refused");
  await shoot(page, "laptop-refused");
  await page.waitForSelector('#model[data-state="ready"]');
  assert.ok(await page.locator("#refused").isHidden(), "the refusal goes when the server answers");
  await close();
});
