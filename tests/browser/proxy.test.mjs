// The page behind a proxy: below a path that the proxy takes off.

import assert from "node:assert/strict";
import http from "node:http";
import { test } from "node:test";

import { INSTANT, ask, open, setRange, settled } from "./harness.mjs";

/** A proxy of what is below `path`, to the server at `address`. */
async function proxy(path, address) {
  const strangers = [];
  const server = http.createServer((request, response) => {
    if (!request.url.startsWith(`${path}/`)) {
      strangers.push(request.url);
      response.writeHead(404).end();
      return;
    }
    const { method, headers } = request;
    const passed = http.request(address + request.url.slice(path.length), { method, headers }, (answer) => {
      response.writeHead(answer.statusCode, answer.headers);
      answer.pipe(response);
    });
    passed.on("error", () => response.destroy());
    request.pipe(passed);
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  return { strangers, url: `http://127.0.0.1:${server.address().port}`, end: () => server.close() };
}

test("below a path of a proxy the page asks there and nowhere else", async () => {
  const { page, complaints, close } = await open("laptop", { permissions: ["clipboard-read", "clipboard-write"] });
  const { strangers, url, end } = await proxy("/a/llm", new URL(page.url()).origin);
  await page.goto(`${url}/a/llm/`);
  await page.waitForSelector('#model[data-state="ready"]');
  await setRange(page, "pace", INSTANT);
  assert.match(await settled(await ask(page, "12 + 30 =?")), /42/);
  assert.equal(await page.evaluate(() => document.getElementById("brand").href), `${url}/a/llm/`);
  assert.deepEqual(strangers, []);
  assert.deepEqual(complaints, []);
  await close();
  end();
});
