// Changes (`"snapshot": "ops"`) of real streams, replayed, beside the windows of the same request. Needs `npm ci` and the binary in
// DIFFULEX_BIN.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import OpenAI from "openai";

import { Server, whole } from "./harness.mjs";
import { Replay } from "./replay.mjs";

const PROMPT = "Tell me a story about a dragon";
// A seeded request: every stream of it has the same steps.
const REQUEST = { max_tokens: 96, temperature: 0.7, seed: 7, stream: true, stream_mode: "denoise" };

let server;
before(async () => {
  server = await Server.start();
});
after(() => server.stop());

/** Frames of a route, with the text that its own clients read. */
const ROUTES = {
  async "/v1/chat/completions"(fields) {
    const client = new OpenAI({ baseURL: `${server.url}/v1`, apiKey: "none" });
    const messages = [{ role: "user", content: PROMPT }];
    const stream = await client.chat.completions.create({ model: server.model, messages, ...REQUEST, ...fields });
    const frames = await whole(stream);
    return { frames, text: frames.map((frame) => frame.choices[0].delta.content ?? "").join("") };
  },
  async "/v1/completions"(fields) {
    const client = new OpenAI({ baseURL: `${server.url}/v1`, apiKey: "none" });
    const body = { model: server.model, prompt: PROMPT, ignore_eos: true, ...REQUEST, ...fields };
    const frames = await whole(await client.completions.create(body));
    return { frames, text: frames.map((frame) => frame.choices[0].text).join("") };
  },
  async "/generate"(fields) {
    const body = JSON.stringify({ prompt: PROMPT, ignore_eos: true, ...REQUEST, ...fields });
    const answer = await fetch(`${server.url}/generate`, { method: "POST", headers: { "content-type": "application/json" }, body });
    const lines = (await answer.text()).split("\n\n").filter((line) => line.startsWith("data: {"));
    const frames = lines.map((line) => JSON.parse(line.slice("data: ".length)));
    return { frames, text: frames.at(-1).text };
  },
};

/** Replays a stream of changes; returns the number of frames that equal the window of the same forward. */
function compare(changes, windows) {
  const shown = new Map(windows.frames.filter(({ event }) => event === "buffer_snapshot").map((frame) => [frame.nfe, frame]));
  const replay = new Replay();
  let compared = 0;
  for (const frame of changes.frames.filter(({ event }) => event === "denoise_ops")) {
    const { cells, final, nfe } = replay.apply(frame);
    // Snapshots may have been merged on one of the two ways.
    const window = shown.get(nfe);
    if (!window) continue;
    assert.deepEqual(cells, window.pieces, `forward ${nfe}`);
    assert.equal(final, window.committed_len);
    compared += 1;
  }
  assert.ok(replay.finished);
  assert.equal(replay.text, changes.text);
  assert.equal(replay.text, windows.text);
  return compared;
}

test("changes of each route, replayed, are its windows", async (context) => {
  for (const [route, ask] of Object.entries(ROUTES)) {
    await context.test(route, async () => {
      // A client that reads late, as in its first stream, gets few frames; it tries again then.
      let most = 0;
      for (let i = 0; i < 20 && most < 8; i++) {
        const windows = await ask({ snapshot: "full" });
        most = Math.max(most, compare(await ask({ snapshot: "ops", denoise: { max_fps: 1000 } }), windows));
        // At the pace that a request without one gets, the last frame at least.
        assert.ok(compare(await ask({ snapshot: "ops" }), windows) > 0);
      }
      assert.ok(most >= 8, `${most} frames at most`);
    });
  }
});

test("a keyframe forgets what was there, and text may be other than the pieces", () => {
  const replay = new Replay();
  replay.apply({ nfe: 1, keyframe: { start: 0 }, ops: [["s", 0, "a", 99], ["m", 1, 3], ["c", 1, "A"]] });
  assert.deepEqual([replay.cells, replay.text, replay.final], [["a", null, null, null], "A", 1]);
  replay.apply({ nfe: 2, keyframe: { start: 1 }, ops: [["s", 1, "b", 50], ["m", 2]] });
  assert.deepEqual(replay.cells, ["a", "b", null]);
  replay.apply({ nfe: 3, ops: [["e", 2], ["c", 2]], finished: true });
  assert.deepEqual([replay.cells, replay.text, replay.finished], [["a", "b"], "Ab", true]);
  assert.throws(() => replay.apply({ nfe: 4, ops: [["x", 0]] }));
});
