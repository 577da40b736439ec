// The playground over the real server, in a real browser. Waits are for conditions, never for a time.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdir } from "node:fs/promises";
import path from "node:path";
import { after, before, describe, test } from "node:test";
import { fileURLToPath } from "node:url";

import { chromium } from "playwright-core";

const HERE = path.dirname(fileURLToPath(import.meta.url));
const BINARY = process.env.DIFFULEX_BIN ?? path.join(HERE, "../../target/release/diffulex-server");
const SCREENSHOTS = process.env.SCREENSHOT_DIR;
/** Chosen by us: long enough for a debug build on a busy machine. */
const PATIENCE_MS = 60_000;

const DEVICES = {
  laptop: { viewport: { width: 1366, height: 768 } },
  phone: { viewport: { width: 390, height: 844 }, deviceScaleFactor: 2, hasTouch: true, isMobile: true },
};

/** Positions of the pace slider. */
const SLOWEST = 0;
const INSTANT = 9;

let address = process.env.DIFFULEX_URL;
let server;
let browser;

before(async () => {
  if (!address) ({ server, address } = await startServer());
  browser = await chromium.launch({
    executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
    args: [
      "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
      "--disable-background-networking", "--disable-component-update", "--disable-sync",
    ],
  });
  if (SCREENSHOTS) await mkdir(SCREENSHOTS, { recursive: true });
});

after(async () => {
  await browser?.close();
  if (!server || server.exitCode !== null) return;
  const gone = new Promise((resolve) => server.once("exit", resolve));
  server.kill("SIGTERM");
  await gone;
});

/** Starts the server on a free port and reads from its output which one that is. */
function startServer() {
  const child = spawn(BINARY, ["--port", "0", ...(process.env.DIFFULEX_ARGS?.split(" ").filter(Boolean) ?? [])]);
  return new Promise((resolve, reject) => {
    let output = "";
    const timer = setTimeout(() => reject(new Error(`no address within ${PATIENCE_MS} ms:\n${output}`)), PATIENCE_MS);
    const read = (bytes) => {
      output += bytes;
      const found = output.match(/http:\/\/127\.0\.0\.1:[1-9]\d*/);
      if (!found) return;
      clearTimeout(timer);
      resolve({ server: child, address: found[0] });
    };
    child.stdout.on("data", read);
    child.stderr.on("data", read);
    child.once("error", reject);
    child.once("exit", (code) => reject(new Error(`the server left with ${code}:\n${output}`)));
  });
}

/** A fresh page that knows its model (or has another `state`), and what it complained about. */
async function open(device, { prepare, state = "ready", ...options } = {}) {
  const context = await browser.newContext({ ...DEVICES[device], ...options });
  context.setDefaultTimeout(PATIENCE_MS);
  await prepare?.(context);
  const page = await context.newPage();
  const complaints = [];
  page.on("console", (message) => {
    if (["error", "warning"].includes(message.type())) complaints.push(message.text());
  });
  page.on("pageerror", (error) => complaints.push(String(error.stack)));
  await page.addInitScript(() => {
    addEventListener("securitypolicyviolation", (event) => console.error(`CSP: ${event.violatedDirective} ${event.blockedURI}`));
  });
  await page.goto(address);
  await page.waitForSelector(`#model[data-state="${state}"]`);
  return { page, complaints, close: () => context.close() };
}

async function setRange(page, id, value) {
  // The sheet of a phone covers the form; its values can be set all the same.
  await page.evaluate(([id, value]) => {
    const range = document.getElementById(id);
    range.value = value;
    range.dispatchEvent(new Event("input", { bubbles: true }));
  }, [id, String(value)]);
}

async function ask(page, question) {
  await page.fill("#prompt", question);
  await page.press("#prompt", "Enter");
  return page.locator(".turn").last();
}

async function settled(turn) {
  await turn.locator('.answer[data-state="settled"][data-show="text"]').waitFor();
  return turn.locator(".prose").textContent();
}

async function shoot(page, name) {
  if (SCREENSHOTS) await page.screenshot({ path: path.join(SCREENSHOTS, `${name}.png`) });
}

async function assertNoSidewaysScroll(page, when) {
  const widths = await page.evaluate(() => {
    const scroller = document.getElementById("scroll");
    return {
      page: document.documentElement.scrollWidth - document.documentElement.clientWidth,
      conversation: scroller.scrollWidth - scroller.clientWidth,
    };
  });
  assert.deepEqual(widths, { page: 0, conversation: 0 }, `sideways scroll ${when}`);
}

/** The cells' text, white space signs turned back. */
async function cellText(turn) {
  const shown = await turn.locator('.cell[data-kind="token"]:not([hidden])').allTextContents();
  return shown.join("").replaceAll("·", " ").replaceAll("↵", "\n").replaceAll("∅", "");
}

for (const device of Object.keys(DEVICES)) {
  describe(`on a ${device}`, () => {
    test("an answer denoises from masked cells into text and can be replayed", async () => {
      const { page, complaints, close } = await open(device);
      await assertNoSidewaysScroll(page, "at the start");
      await shoot(page, `${device}-welcome`);

      await setRange(page, "pace", SLOWEST);
      const turn = await ask(page, "12 + 30");
      await turn.locator('.cell[data-kind="masked"]').first().waitFor();
      await page.locator("#stop").waitFor();
      await assertNoSidewaysScroll(page, "while it denoises");
      await setRange(page, "pace", INSTANT);
      const text = await settled(turn);
      assert.match(text, /\S/);
      await page.locator("#send").waitFor();
      await shoot(page, `${device}-settled`);

      assert.ok(Number(await turn.locator(".nfe").textContent()) > 0, "forwards are counted");
      assert.ok(Number(await turn.locator(".tokens").textContent()) > 0, "tokens are counted");
      assert.ok(Number(await turn.locator(".rate").textContent()) > 0, "tokens per forward are told");
      assert.match(await turn.locator(".time").textContent(), /^\d.* m?s$/);
      assert.equal(await page.locator("#announcer").textContent(), `Answer: ${text}`);

      const scrub = turn.locator(".scrub");
      const last = Number(await scrub.getAttribute("max"));
      assert.ok(last >= 1, "an answer takes at least one step");
      await scrub.fill("0");
      assert.equal(await turn.locator('.cell:not([data-kind="masked"]):not([hidden])').count(), 0, "all masked at step 0");
      await scrub.press("ArrowRight");
      assert.ok((await turn.locator(".cell[data-fresh]").count()) >= 1, "the first step writes");
      await assertNoSidewaysScroll(page, "in the replay");
      await shoot(page, `${device}-replay`);
      await scrub.fill(String(last));
      assert.equal((await cellText(turn)).trim(), text.trim(), "the last cells are the text");
      assert.match(await turn.locator('.cell[data-kind="token"]').first().getAttribute("title"), /token \d+, confidence [\d.]+, settled at step \d+/);

      await turn.locator(".back").click();
      assert.match(await turn.locator(".step").textContent(), new RegExp(`^step ${last - 1} / ${last}$`));
      await turn.locator(".toggle").click();
      await settled(turn);
      await turn.locator(".play").click();
      assert.equal(await settled(turn), text);

      assert.deepEqual(complaints, []);
      await close();
    });

    test("a long answer wraps", async () => {
      const { page, complaints, close } = await open(device);
      await setRange(page, "pace", INSTANT);
      const turn = await ask(page, "Tell me a story");
      await settled(turn);
      await turn.locator(".toggle").click();
      await turn.locator(".cell").first().waitFor();
      await assertNoSidewaysScroll(page, "with the cells of a story");
      await shoot(page, `${device}-story`);
      assert.deepEqual(complaints, []);
      await close();
    });

    test("settings are at hand", async () => {
      const { page, complaints, close } = await open(device);
      if (device === "phone") {
        await page.click("#open-settings");
        await page.locator("#close-settings").waitFor();
      }
      await page.selectOption("#rule", "sequential");
      await page.locator("#steps").waitFor();
      assert.ok(await page.locator("#threshold").isDisabled(), "the sequential rule has no threshold");
      await page.click("#defaults");
      assert.ok(await page.locator("#threshold").isEnabled());
      await shoot(page, `${device}-settings`);
      if (device === "phone") {
        await page.press("body", "Escape");
        await page.locator("#close-settings").waitFor({ state: "hidden" });
      }
      assert.deepEqual(complaints, []);
      await close();
    });
  });
}

test("earlier turns are sent along, and a new chat forgets them", async () => {
  const { page, close } = await open("laptop");
  await setRange(page, "pace", INSTANT);
  const sent = [];
  page.on("request", (request) => {
    if (request.url().endsWith("/v1/chat/completions")) sent.push(request.postDataJSON());
  });
  const answer = await settled(await ask(page, "Hello"));
  await settled(await ask(page, "Count to 5"));
  await page.click("#new-chat");
  assert.equal(await page.locator(".turn").count(), 0);
  await settled(await ask(page, "Hello"));
  assert.deepEqual(sent.map((body) => body.messages.map((message) => message.content)), [
    ["Hello"],
    ["Hello", answer, "Count to 5"],
    ["Hello"],
  ]);
  await close();
});

test("stop ends a showing that takes too long", async () => {
  const { page, close } = await open("laptop");
  await setRange(page, "pace", SLOWEST);
  const turn = await ask(page, "Tell me a story");
  await turn.locator('.cell[data-kind="masked"]').first().waitFor();
  await page.click("#stop");
  await turn.locator('.answer[data-show="text"]').waitFor();
  await page.locator("#send").waitFor();
  await close();
});

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

test("a server behind a key asks for it", async () => {
  const error = { error: { message: "an API key is needed", type: "invalid_request_error", param: null, code: "invalid_api_key" } };
  const prepare = (context) =>
    context.route("**/v1/**", (route) =>
      route.request().headers().authorization === "Bearer sesame" ? route.fallback() : route.fulfill({ status: 401, json: error }),
    );
  const { page, close } = await open("phone", { prepare, state: "away" });
  await page.locator("#api-key").fill("sesame");
  await page.locator("#api-key").press("Tab");
  await page.waitForSelector('#model[data-state="ready"]');
  await page.click("#close-settings");
  await setRange(page, "pace", INSTANT);
  await settled(await ask(page, "12 + 30"));
  await close();
});

test("who prefers no motion gets the text at once, in the dark too", async () => {
  const { page, complaints, close } = await open("laptop", { reducedMotion: "reduce", colorScheme: "dark" });
  assert.equal(await page.locator("#pace-value").textContent(), "instant");
  await settled(await ask(page, "12 + 30"));
  await shoot(page, "laptop-dark");
  assert.deepEqual(complaints, []);
  await close();
});
