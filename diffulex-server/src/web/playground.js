// The playground: a chat whose answers are shown the way the model writes them.
//
// In: the settings form, a message, the chat route's stream of frames. Out: cells, counters, text. The engine never waits
// for this page: a `Recording` collects every frame as it comes, an `AnswerView` shows them at the pace of the reader, and
// the same two serve the replay of any earlier answer.
//
// Never here: a default of the model (it comes from /v1/models and is sent only when changed), styles (states are data
// attributes), libraries.

const element = (id) => document.getElementById(id);
const reducedMotion = matchMedia("(prefers-reduced-motion: reduce)");

// ── What can be chosen ──────────────────────────────────────────────────

/** Frames per second; the last shows everything at once. Up to 60, the rate of most screens. */
const PACES = [1, 2, 4, 8, 12, 16, 24, 40, 60, Infinity];
const DEFAULT_PACE = PACES.indexOf(12);

/** The accept rules of the engine: which settings each one reads, and what it does. */
const RULES = {
  threshold: { threshold: true, steps: false, help: "All tokens above the threshold, and always the best one." },
  gated_threshold: { threshold: true, steps: false, help: "As threshold, but a block is only forced on once the one before is nearly full." },
  static: { threshold: false, steps: true, help: "A fixed number per step, the most confident first." },
  dynamic: { threshold: true, steps: true, help: "All above the threshold, and at least the scheduled number." },
  sequential: { threshold: false, steps: true, help: "The scheduled number from left to right: as many steps as positions writes one token at a time." },
};

const EXAMPLES = [
  "12 + 30 =?",
  "Count to 20",
  "Capital of France?",
  "Tell me a story about a dragon",
  "Reverse the word planet",
  "What is the opposite of hot?",
  "Sort 9, 4, 7, 1",
  "JSON for name Anna, age 36",
  "Is 17 odd or even?",
  "What day comes after Monday?",
  "Who are you?",
];

/** Lower bounds of the colour bands. Chosen by us: most tokens are written above 0.9, so the scale is finest there. */
const BANDS = [0, 0.5, 0.7, 0.9, 0.99];

/** How long a server that is starting, full or away is asked again. */
const PATIENCE_MS = 120_000;

// ── Recording: the frames of one answer ─────────────────────────────────

/**
 * One position of the answer. Two frames share the object as long as nothing about it changes.
 * @typedef {{id: number, piece: ?string, confidence: ?number, kind: "masked"|"token"|"end", step: number, nfe: number, rewrites: number}} Cell
 *
 * One step: all positions up to the last running block.
 * @typedef {{nfe: number, atMs: number, cells: Cell[], committed: number, settled: number, wrote: number}} Frame
 */
class Recording {
  /** @type {Frame[]} */
  frames = [];
  /** How many came; the server merges those that were not read in time. */
  snapshots = 0;
  text = "";
  done = false;
  blockSize = 0;
  /** Position 0 of the answer, counted from the block edge before it. */
  shift = 0;
  /** The server's account at the end: `nfe`, `tokens_per_forward`, `seed`, ... */
  summary = null;
  usage = null;
  endedAtMs = 0;

  /** @param {number[]} endIds tokens that end an answer */
  constructor(endIds) {
    this.endIds = new Set(endIds);
  }

  get last() {
    return this.frames.length - 1;
  }

  /** Merges one snapshot: position `token_offset + i` of the answer is its entry `i`. */
  add(snapshot, atMs) {
    const ids = snapshot.token_ids ?? [];
    const offset = snapshot.token_offset ?? 0;
    this.snapshots += 1;
    if (!this.blockSize && snapshot.block_size) {
      this.blockSize = snapshot.block_size;
      this.shift = ((snapshot.absolute_start ?? 0) - offset) % this.blockSize;
    }
    const masked = new Set(snapshot.mask_positions ?? []);
    // Before the first step there is nothing to see but masks.
    if (!this.frames.length) this.frames.push({ nfe: 0, atMs: 0, cells: [], committed: 0, settled: 0, wrote: 0 });
    const before = this.frames.at(-1);
    this.#fillWithMasks(before.cells, offset + ids.length);
    const cells = before.cells.slice();
    const step = this.frames.length;
    let wrote = 0;
    let changed = false;
    ids.forEach((id, i) => {
      const old = cells[offset + i];
      const kind = masked.has(i) ? "masked" : this.endIds.has(id) ? "end" : "token";
      if (old && old.kind === kind && (kind === "masked" || old.id === id)) return;
      changed = true;
      if (kind === "token") wrote += 1;
      cells[offset + i] = {
        id,
        kind,
        piece: snapshot.pieces?.[i] ?? null,
        confidence: snapshot.confidences?.[i] ?? null,
        step,
        nfe: snapshot.nfe,
        rewrites: old && old.kind !== "masked" && kind !== "masked" ? old.rewrites + 1 : (old?.rewrites ?? 0),
      };
    });
    // Nothing behind the window is running: a block given up leaves with it.
    if (ids.length && offset + ids.length < cells.length) {
      cells.length = offset + ids.length;
      changed = true;
    }
    const committed = snapshot.committed_len ?? 0;
    // A forward that only made a block final is no step to look at.
    if (!changed) {
      before.committed = committed;
      return;
    }
    this.frames.push({ nfe: snapshot.nfe, atMs, cells, committed, settled: countSettled(cells), wrote });
  }

  /** A step shows what it wrote; what it wrote into was masked one step before, up to the edge of the block. */
  #fillWithMasks(cells, length) {
    if (length <= cells.length) return;
    while (cells.length < length || (this.blockSize && !this.opensBlock(cells.length))) cells.push(blankCell());
  }

  /** True where a block begins at this position. */
  opensBlock(position) {
    return position === 0 || (this.blockSize > 0 && (position + this.shift) % this.blockSize === 0);
  }
}

function blankCell() {
  return { id: -1, kind: "masked", piece: null, confidence: null, step: 0, nfe: 0, rewrites: 0 };
}

function countSettled(cells) {
  let n = 0;
  for (const cell of cells) if (cell?.kind === "token") n += 1;
  return n;
}

function bandOf(confidence) {
  if (confidence === null) return "none";
  return String(BANDS.findLastIndex((bound) => confidence >= bound));
}

// ── The server ──────────────────────────────────────────────────────────

class ServerError extends Error {
  constructor(message, { status = 0, param = null, retryMs = null } = {}) {
    super(message);
    this.status = status;
    this.param = param;
    /** Milliseconds after which asking again makes sense; null where it does not. */
    this.retryMs = retryMs;
  }
}

/** What a reply that is not 2xx says, as an error. */
async function errorOf(response) {
  const body = await response.json().catch(() => null);
  const error = body?.error;
  const message = (typeof error === "string" ? error : error?.message) ?? body?.detail ?? `The server answered ${response.status}.`;
  const busy = response.status === 503 || response.status === 429;
  const never = response.headers.get("x-should-retry") === "false";
  const exact = Number(response.headers.get("retry-after-ms"));
  const seconds = Number(response.headers.get("retry-after"));
  const retryMs = busy && !never ? Math.min(exact || seconds * 1000 || 1000, 10_000) : null;
  return new ServerError(message, { status: response.status, param: error?.param ?? null, retryMs });
}

/** Empty where the server asks for none. */
let apiKey = "";

async function request(url, options = {}) {
  const headers = { ...options.headers, ...(apiKey && { authorization: `Bearer ${apiKey}` }) };
  let response;
  try {
    response = await fetch(url, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError("The server cannot be reached.", { retryMs: 1000 });
  }
  if (!response.ok) throw await errorOf(response);
  return response;
}

/** The `data:` payloads of a server-sent event stream. Comments, event names and ids are of no use here. */
async function* payloads(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let data = [];
  for (;;) {
    const { value, done } = await reader.read().catch((error) => {
      if (error.name === "AbortError") throw error;
      throw new ServerError("The connection broke before the answer was complete.");
    });
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const raw of lines) {
      const line = raw.endsWith("\r") ? raw.slice(0, -1) : raw;
      if (line === "" && data.length) {
        yield data.join("\n");
        data = [];
      } else if (line.startsWith("data:")) {
        data.push(line.slice(line[5] === " " ? 6 : 5));
      }
    }
  }
}

/** Resolves after `ms`, or rejects when `signal` fires. */
function pause(ms, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, ms);
    signal?.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(signal.reason);
    }, { once: true });
  });
}

/** Sends `body` and puts what comes back into `recording`; `onChange` after each read. */
async function record(body, recording, signal, onChange) {
  const startedAt = performance.now();
  const response = await request("/v1/chat/completions", {
    method: "POST",
    headers: { "content-type": "application/json", accept: "text/event-stream" },
    body: JSON.stringify(body),
    signal,
  });
  for await (const payload of payloads(response.body)) {
    const atMs = performance.now() - startedAt;
    if (payload === "[DONE]") {
      recording.done = true;
      return;
    }
    const chunk = JSON.parse(payload);
    if (chunk.error) throw new ServerError(chunk.error.message ?? "The server gave up on this answer.");
    const choice = chunk.choices?.[0];
    recording.text += choice?.delta?.content ?? "";
    if (chunk.event === "buffer_snapshot") recording.add(chunk, atMs);
    if (choice?.finish_reason) {
      recording.summary = { finish_reason: choice.finish_reason, ...chunk.diffulex };
      recording.endedAtMs = atMs;
    }
    if (chunk.usage) recording.usage = chunk.usage;
    onChange();
  }
  throw new ServerError("The connection closed before the answer was complete.");
}

// ── One answer on the page ──────────────────────────────────────────────

class AnswerView {
  /** Index of the frame shown. */
  index = -1;
  playing = false;
  /** True once the reader asked for a replay: it is to be seen even where answers are shown at once. */
  #replaying = false;
  /** When the next frame is due, on the clock of requestAnimationFrame. */
  #dueAt = 0;
  #settleTimer = 0;
  /** @type {{node: HTMLElement, cell: ?Cell, fresh: boolean, lineBreak: ?HTMLElement}[]} */
  #slots = [];
  #blocks = [];
  #picked = null;
  #tracedFrames = 0;

  constructor(question, recording, { pace, onSettled, onReplay }) {
    this.recording = recording;
    this.pace = pace;
    this.onSettled = onSettled;
    this.settledOnce = false;
    this.failed = false;
    this.node = element("turn-template").content.firstElementChild.cloneNode(true);
    const part = (name) => this.node.querySelector(`.${name}`);
    this.parts = {
      answer: part("answer"), canvas: part("canvas"), prose: part("prose"), detail: part("detail"),
      notice: part("notice"), noticeText: part("notice-text"), retry: part("retry"),
      player: part("player"), scrub: part("scrub"), step: part("step"), toggle: part("toggle"), play: part("play"),
      trace: part("trace"), passed: part("passed"), ahead: part("ahead"),
      counters: part("counters"), nfe: part("nfe"), tokens: part("tokens"), rate: part("rate"), time: part("time"),
      remark: part("remark"), reopen: part("reopen"), copy: part("copy"),
    };
    part("question-text").textContent = question;
    const { scrub, toggle, play, canvas, reopen } = this.parts;
    part("back").addEventListener("click", () => this.seek(this.index - 1));
    part("forward").addEventListener("click", () => this.seek(this.index + 1));
    play.addEventListener("click", () => (this.playing ? this.stopPlaying() : this.play()));
    scrub.addEventListener("input", () => this.seek(scrub.valueAsNumber));
    toggle.addEventListener("click", () => (this.parts.answer.dataset.show === "cells" ? this.settle() : this.seek(this.index)));
    canvas.addEventListener("click", (event) => this.#pick(event.target.closest(".cell")));
    reopen.addEventListener("click", () => {
      onReplay();
      this.expand();
      this.play();
      play.focus();
    });
  }

  /** Shows the player of this answer. */
  expand() {
    this.parts.reopen.hidden = true;
    this.parts.player.hidden = this.recording.frames.length === 0;
  }

  /** An earlier answer keeps its numbers and a way back to its replay. */
  collapse() {
    if (!this.recording.done && !this.failed) return;
    this.settle({ atOnce: true });
    this.parts.player.hidden = true;
    this.parts.reopen.hidden = this.recording.frames.length < 2;
  }

  /** New frames or text have come. */
  refresh() {
    const { frames } = this.recording;
    if (!frames.length) return;
    if (this.index < 0) {
      this.parts.answer.dataset.state = "live";
      this.expand();
      this.parts.counters.hidden = false;
      this.#setPlaying(true);
      this.#dueAt = 0;
    }
  }

  play() {
    clearTimeout(this.#settleTimer);
    if (this.index >= this.recording.last || this.parts.answer.dataset.show === "text") this.#show(0);
    this.#replaying = true;
    this.#dueAt = performance.now() + this.#frameMs();
    this.#setPlaying(true);
  }

  /** The stream has ended: what stood open until then can be told. */
  complete() {
    if (this.settledOnce) return;
    if (!this.recording.frames.length) this.settle();
    else if (this.index >= 0 && this.parts.answer.dataset.show === "cells") this.#show(this.index);
  }

  stopPlaying() {
    this.#setPlaying(false);
  }

  /** Shows one frame and stays there. */
  seek(index) {
    this.#setPlaying(false);
    this.#show(Math.max(0, Math.min(index, this.recording.last)));
  }

  /** Shows the frames that are due; true while more will come. */
  tick(now) {
    if (!this.playing) return false;
    const { last, done } = this.recording;
    const frameMs = this.#frameMs();
    if (frameMs === 0) {
      if (this.index < last) this.#show(last);
    } else if (this.index < last && now >= this.#dueAt) {
      // A tab that slept goes on from where it was instead of racing through what it missed.
      this.#dueAt = Math.max(this.#dueAt + frameMs, now);
      this.#show(this.index + 1);
    } else if (this.index === last && !done && now >= this.#dueAt) {
      this.#dueAt = now;
    }
    if (done && this.index >= last && (frameMs === 0 || now >= this.#dueAt)) {
      this.settle();
      return false;
    }
    return true;
  }

  /** The cells become text. */
  settle({ atOnce = false } = {}) {
    const { answer, canvas, prose, toggle } = this.parts;
    this.#setPlaying(false);
    if (answer.dataset.show === "cells" && this.recording.frames.length) this.#show(this.recording.last);
    this.#pick(null);
    const { text } = this.recording;
    prose.classList.toggle("empty", !text && !this.failed);
    prose.textContent = text || (this.failed ? "" : "(an empty answer)");
    answer.dataset.state = this.failed ? "failed" : "settled";
    toggle.hidden = this.recording.frames.length === 0;
    // Cut short before a word was final: the cells are all there is to see.
    if (this.failed && !text && this.recording.frames.length) {
      this.#endOnce();
      return;
    }
    const finish = () => {
      canvas.classList.remove("settling");
      answer.dataset.show = "text";
      toggle.textContent = "Cells";
    };
    clearTimeout(this.#settleTimer);
    // Long answers would make the browser lay out hundreds of moving boxes.
    const still = atOnce || reducedMotion.matches || this.#slots.length > 160 || answer.dataset.show === "text";
    if (still) {
      finish();
    } else {
      canvas.classList.add("settling");
      this.#settleTimer = setTimeout(finish, 420);
    }
    this.#endOnce();
  }

  #endOnce() {
    if (this.settledOnce) return;
    this.settledOnce = true;
    this.#summarise();
    this.onSettled(this);
  }

  /** A line in place of, or below, the answer. */
  notice(message, { mild = false, onRetry = null } = {}) {
    const { notice, noticeText, retry } = this.parts;
    notice.hidden = !message;
    notice.toggleAttribute("data-mild", mild);
    noticeText.textContent = message;
    retry.hidden = !onRetry;
    retry.onclick = onRetry;
  }

  /** A sentence more beside the numbers. */
  remark(text) {
    const { remark } = this.parts;
    remark.textContent = `${remark.textContent} ${text}`.trim();
    remark.hidden = false;
  }

  #frameMs() {
    const pace = this.pace();
    if (pace !== Infinity) return 1000 / pace;
    return this.#replaying ? 1000 / PACES[DEFAULT_PACE] : 0;
  }

  #setPlaying(playing) {
    this.playing = playing;
    this.parts.answer.toggleAttribute("data-playing", playing);
    this.parts.play.setAttribute("aria-label", playing ? "Pause" : "Play");
    if (playing) startTicking();
  }

  #show(index) {
    const { answer, canvas, scrub, step, toggle } = this.parts;
    const { frames, last, done } = this.recording;
    const frame = frames[index];
    if (!frame) return;
    clearTimeout(this.#settleTimer);
    canvas.classList.remove("settling");
    answer.dataset.show = "cells";
    toggle.textContent = "Text";
    toggle.hidden = !done || (this.failed && !this.recording.text);
    this.index = index;
    this.#draw(frame, index);
    scrub.max = last;
    scrub.value = index;
    fillRange(scrub);
    step.textContent = `step ${index} / ${done ? last : "…"}`;
    scrub.setAttribute("aria-valuetext", `step ${index} of ${last}, ${frame.settled} tokens written`);
    this.#drawTrace(index);
    this.#count(frame, index);
  }

  /** Touches only the positions that differ from what is on the page. */
  #draw(frame, index) {
    for (let position = 0; position < frame.cells.length; position += 1) {
      const slot = this.#slots[position] ?? this.#addSlot(position);
      const cell = frame.cells[position] ?? (frame.cells[position] = blankCell());
      const fresh = cell.kind !== "masked" && cell.step === index;
      if (slot.cell !== cell) this.#fill(slot, cell);
      if (slot.fresh !== fresh) {
        slot.fresh = fresh;
        slot.node.toggleAttribute("data-fresh", fresh);
      }
    }
    for (let position = frame.cells.length; position < this.#slots.length; position += 1) this.#clear(this.#slots[position]);
    for (const block of this.#blocks) {
      block.node.hidden = block.start >= frame.cells.length;
      const end = Math.min(block.start + block.slots.length, frame.cells.length);
      block.node.toggleAttribute("data-open", end > frame.committed && block.slots.some((slot) => slot.cell?.kind === "masked"));
    }
  }

  #addSlot(position) {
    if (this.recording.opensBlock(position)) {
      const node = document.createElement("span");
      node.className = "block";
      // A place to break the line between two blocks.
      this.parts.canvas.append(node, document.createElement("wbr"));
      this.#blocks.push({ node, start: position, slots: [] });
    }
    const block = this.#blocks.at(-1);
    const node = document.createElement("span");
    node.className = "cell";
    node.dataset.position = position;
    block.node.append(node);
    const slot = { node, cell: null, fresh: false, lineBreak: null };
    block.slots.push(slot);
    this.#slots.push(slot);
    return slot;
  }

  #fill(slot, cell) {
    const { node } = slot;
    slot.cell = cell;
    node.hidden = false;
    node.dataset.kind = cell.kind;
    if (cell.kind === "token") node.dataset.band = bandOf(cell.confidence);
    else delete node.dataset.band;
    node.replaceChildren(...glyphs(cell));
    node.title = describe(cell, Number(node.dataset.position));
    const breaks = cell.kind === "token" && (cell.piece?.includes("\n") ?? false);
    if (breaks && !slot.lineBreak) {
      slot.lineBreak = document.createElement("br");
      node.after(slot.lineBreak);
    } else if (!breaks && slot.lineBreak) {
      slot.lineBreak.remove();
      slot.lineBreak = null;
    }
  }

  #clear(slot) {
    slot.node.hidden = true;
    slot.cell = null;
    slot.lineBreak?.remove();
    slot.lineBreak = null;
  }

  /** One bar per step, as high as the number of tokens it wrote. */
  #drawTrace(index) {
    const { trace, passed, ahead } = this.parts;
    const { frames, last } = this.recording;
    const most = Math.max(1, ...frames.map((frame) => frame.wrote));
    // Bars are at most 10 pixels wide: with few steps they would run over the ends of the track.
    const half = Math.min(0.38, (5 * Math.max(1, last)) / (trace.clientWidth || 1));
    const bar = (from, to) => {
      let path = "";
      for (let i = from; i <= to; i += 1) {
        const height = frames[i].wrote / most;
        if (height) path += `M${i - half} 1V${1 - height}H${i + half}V1Z`;
      }
      return path;
    };
    if (this.#tracedFrames !== frames.length) {
      this.#tracedFrames = frames.length;
      trace.setAttribute("viewBox", `0 0 ${Math.max(1, last)} 1`);
    }
    passed.setAttribute("d", bar(0, index));
    ahead.setAttribute("d", bar(index + 1, last));
  }

  #count(frame, index) {
    const { nfe, tokens, rate, time } = this.parts;
    const { summary, usage, last, done, endedAtMs } = this.recording;
    const atEnd = done && index === last && summary;
    const forwards = atEnd ? (summary.nfe ?? frame.nfe) : frame.nfe;
    const n = atEnd ? (usage?.completion_tokens ?? frame.settled) : frame.settled;
    // As the server counts: the forward that only reads the prompt could not have written anything.
    const writing = forwards - (summary?.nfe_prefill ?? 0);
    const perForward = (atEnd && summary.tokens_per_forward) || (writing > 0 ? n / writing : 0);
    nfe.textContent = forwards;
    tokens.textContent = n;
    rate.textContent = perForward.toFixed(1);
    time.textContent = milliseconds(atEnd ? endedAtMs : frame.atMs);
  }

  /** What is known only once the answer is complete. */
  #summarise() {
    const { summary, frames } = this.recording;
    if (!summary) return;
    const parts = ["denoise", "prefill", "commit"].filter((name) => summary[`nfe_${name}`] !== undefined);
    if (parts.length) {
      this.parts.nfe.title = parts.map((name) => `${summary[`nfe_${name}`]} ${name}`).join(", ");
    }
    const merged = (summary.nfe_denoise ?? 0) - this.recording.snapshots;
    if (frames.length && merged > 0) this.remark(`${merged} of ${summary.nfe_denoise} steps came merged with a later one.`);
    if (!frames.length) {
      this.parts.counters.hidden = false;
      this.#count({ nfe: summary.nfe ?? 0, settled: 0, atMs: this.recording.endedAtMs }, -1);
    }
    if (summary.finish_reason === "max_new_tokens_reached" || summary.finish_reason === "length") {
      this.remark("Cut at max tokens.");
    } else if (summary.finish_reason === "max_model_len_reached") {
      this.remark("Cut at the model's length.");
    }
  }

  /** Says below the cells what a cell's title says: a finger cannot hover. */
  #pick(node) {
    this.#picked?.removeAttribute("data-picked");
    this.#picked = node === this.#picked ? null : node;
    this.#picked?.setAttribute("data-picked", "");
    this.parts.detail.hidden = !this.#picked;
    this.parts.detail.textContent = this.#picked?.title ?? "";
  }
}

/** What a cell shows; white space gets a sign of its own. */
function glyphs(cell) {
  if (cell.kind === "masked") return [];
  if (cell.kind === "end") return ["end"];
  const piece = cell.piece ?? "";
  if (piece === "") return [spaceSign("∅")];
  return piece.split(/([ \n\t\r\u00a0])/).filter(Boolean).map((part) => {
    if (part === " " || part === "\u00a0") return spaceSign("·");
    if (part === "\n") return spaceSign("↵");
    if (part === "\t") return spaceSign("⇥");
    if (part === "\r") return spaceSign("␍");
    return part;
  });
}

function spaceSign(sign) {
  const node = document.createElement("span");
  node.className = "space";
  node.textContent = sign;
  return node;
}

function describe(cell, position) {
  if (cell.kind === "masked") return `Position ${position}: masked`;
  const name = cell.kind === "end" ? "end token" : JSON.stringify(cell.piece ?? "");
  const sure = cell.confidence === null ? "" : `, confidence ${cell.confidence.toFixed(3)}`;
  const rewritten = cell.rewrites ? `, rewritten ${cell.rewrites === 1 ? "once" : `${cell.rewrites} times`}` : "";
  return `${name}, token ${cell.id}${sure}, settled at step ${cell.step}, by forward ${cell.nfe}${rewritten}`;
}

function milliseconds(ms) {
  return ms < 9.95 ? `${ms.toFixed(1)} ms` : ms < 9_999 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`;
}

/** Colours the part of a range left of its thumb; WebKit and Blink have no selector for it. */
function fillRange(range) {
  const { min, max, value } = range;
  const span = Number(max) - Number(min);
  range.style.setProperty("--fill", `${span ? ((Number(value) - Number(min)) / span) * 100 : 0}%`);
}

// ── The clock: one for all answers ──────────────────────────────────────

let ticking = false;

function startTicking() {
  if (ticking) return;
  ticking = true;
  requestAnimationFrame(function tick(now) {
    const follow = isNearEnd();
    let more = false;
    for (const view of views) more = view.tick(now) || more;
    if (follow) scrollToEnd();
    ticking = more;
    if (more) requestAnimationFrame(tick);
  });
}

// ── Settings ────────────────────────────────────────────────────────────

/** What /v1/models said; empty until then. */
let model = { id: "", limits: {} };
const controls = element("controls");
const field = (name) => controls.elements.namedItem(name);
const STORED = "diffulex-playground";

function pace() {
  return PACES[field("pace").valueAsNumber] ?? 12;
}

/** The rule that will decide: the chosen one, or the model's own. */
function effectiveRule() {
  return field("rule").value || model.limits.accept_rule || "threshold";
}

/** Settings that differ from what the server does by itself: another family may refuse what it does not know. */
function decoding() {
  const chosen = field("rule").value;
  const rule = RULES[effectiveRule()] ?? RULES.threshold;
  const overrides = {};
  if (chosen && chosen !== model.limits.accept_rule) overrides.accept_rule = chosen;
  const threshold = field("threshold").valueAsNumber;
  if (rule.threshold && (overrides.accept_rule || threshold !== defaultThreshold())) overrides.accept_threshold = threshold;
  const steps = field("steps").valueAsNumber;
  if (rule.steps && Number.isFinite(steps)) overrides.denoising_steps = steps;
  return overrides;
}

function defaultThreshold() {
  // f32 on the wire: 0.9 may come as 0.8999999761581421.
  return Math.round((model.limits.accept_threshold ?? 0.9) * 100) / 100;
}

function defaultSteps() {
  return model.limits.block_size ?? 8;
}

/** Brings outputs, help and what is open to choice in line with the form. */
function reflectControls() {
  const rule = RULES[effectiveRule()] ?? RULES.threshold;
  element("threshold-value").textContent = field("threshold").valueAsNumber.toFixed(2);
  element("temperature-value").textContent = field("temperature").valueAsNumber.toFixed(2);
  element("pace-value").textContent = pace() === Infinity ? "instant" : `${pace()} steps/s`;
  field("pace").setAttribute("aria-valuetext", element("pace-value").textContent);
  element("rule-help").textContent = rule.help;
  element("threshold-control").setAttribute("aria-disabled", String(!rule.threshold));
  field("threshold").disabled = !rule.threshold;
  element("steps-control").hidden = !rule.steps;
  if (rule.steps && !field("steps").value) field("steps").value = defaultSteps();
  for (const range of controls.querySelectorAll('input[type="range"]')) fillRange(range);
}

function resetControls() {
  controls.reset();
  element("api-key").value = apiKey;
  field("threshold").value = defaultThreshold();
  field("steps").value = defaultSteps();
  field("pace").value = reducedMotion.matches ? PACES.length - 1 : DEFAULT_PACE;
  reflectControls();
}

// A browser may forbid storage; the page then forgets, and works.
function store() {
  const values = {};
  for (const input of controls.elements) if (input.name) values[input.name] = input.value;
  try {
    localStorage.setItem(STORED, JSON.stringify({ model: model.id, values }));
  } catch {}
}

function restore() {
  let stored;
  try {
    stored = JSON.parse(localStorage.getItem(STORED));
  } catch {}
  // Thresholds of another model are no settings for this one.
  if (!stored || stored.model !== model.id) return;
  for (const [name, value] of Object.entries(stored.values)) {
    const input = field(name);
    if (input) input.value = value;
  }
  reflectControls();
}

function fillRules() {
  const chosen = field("rule").value;
  const own = model.limits.accept_rule;
  const options = Object.keys(RULES).filter((name) => name !== own).map((name) => new Option(name.replace("_", " "), name));
  field("rule").replaceChildren(new Option(own ? `${own.replace("_", " ")} (the model's own)` : "the model's own", ""), ...options);
  field("rule").value = chosen === own ? "" : chosen;
}

// ── The conversation ────────────────────────────────────────────────────

/** @type {AnswerView[]} */
let views = [];
/** Turns that went well: what the model is told of the conversation. */
let history = [];
/** The answer being asked for: its abort controller, or null. */
let running = null;

const prompt = element("prompt");
const scroller = element("scroll");

function isNearEnd() {
  return scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < 120;
}

function scrollToEnd() {
  scroller.scrollTop = scroller.scrollHeight;
}

/** The earlier turns that fit beside the question and the answer, the newest first to be kept. */
function remembered(question, maxTokens) {
  const wished = field("memory").value === "all" ? history : history.slice(Math.max(0, history.length - Number(field("memory").value)));
  const length = model.limits.max_model_len ?? Infinity;
  // Tokens per character as measured in this conversation; 0.5 is on the safe side for a small vocabulary.
  const counted = history.at(-1);
  const rate = counted?.rate ?? 0.5;
  const costOf = (text) => text.length * rate + 8;
  // The server cuts an answer at the model's length, so max tokens is a wish: a quarter is kept free for it at most.
  let room = length - Math.min(maxTokens, length / 4) - costOf(question);
  let keep = wished.length;
  while (keep > 0) {
    const cost = costOf(wished[keep - 1].question) + costOf(wished[keep - 1].answer);
    if (cost > room) break;
    room -= cost;
    keep -= 1;
  }
  return { turns: wished.slice(keep), left: keep };
}

function requestBody(question, turns) {
  const body = {
    model: model.id,
    messages: [
      ...turns.flatMap((turn) => [{ role: "user", content: turn.question }, { role: "assistant", content: turn.answer }]),
      { role: "user", content: question },
    ],
    stream: true,
    stream_mode: "denoise",
    snapshot: "window",
    stream_options: { include_usage: true },
    temperature: field("temperature").valueAsNumber,
    max_tokens: field("maxTokens").valueAsNumber,
  };
  // Drawn here rather than by the server, so that the request copied is the request answered.
  if (field("seed").value) body.seed = Number(field("seed").value);
  else if (body.temperature > 0) body.seed = crypto.getRandomValues(new Uint32Array(1))[0];
  const overrides = decoding();
  if (Object.keys(overrides).length) body.decoding = overrides;
  return body;
}

function setBusy(busy) {
  element("send").hidden = busy;
  element("stop").hidden = !busy;
}

async function ask(question) {
  for (const view of views) view.collapse();
  document.body.dataset.view = "chat";
  const abort = new AbortController();
  running = abort;
  setBusy(true);

  const recording = new Recording(model.limits.eos_token_ids ?? []);
  const view = new AnswerView(question, recording, {
    pace,
    onSettled: (settled) => {
      // A new chat may have put it away.
      if (!views.includes(settled)) return;
      if (!running) setBusy(false);
      element("announcer").textContent = settled.failed ? "" : `Answer: ${recording.text}`;
    },
    onReplay: () => views.forEach((other) => other !== view && other.collapse()),
  });
  views.push(view);
  element("turns").append(view.node);
  scrollToEnd();

  let turn = null;
  try {
    await modelKnown(view, abort.signal);
    const { turns, left } = remembered(question, field("maxTokens").valueAsNumber);
    const body = requestBody(question, turns);
    if (body.temperature > 0) view.remark(`Seed ${body.seed}.`);
    if (left) view.remark(`${left} earlier ${left === 1 ? "turn" : "turns"} left out to fit.`);
    recording.endIds = new Set(model.limits.eos_token_ids ?? []);
    offerCurl(view, body);
    await withPatience(view, abort.signal, () => record(body, recording, abort.signal, () => view.refresh()));
    turn = { question, answer: recording.text, rate: tokensPerCharacter(body, recording) };
  } catch (error) {
    recording.done = true;
    if (abort.signal.aborted) {
      view.notice("Stopped.", { mild: true });
      if (recording.text) turn = { question, answer: recording.text, rate: 0.5 };
      else view.failed = true;
    } else {
      view.failed = true;
      const known = error instanceof ServerError;
      if (!known) console.error(error);
      if (error.status === 401) learnModel();
      view.notice(known ? error.message : `The page could not read the answer: ${error.message}`, {
        onRetry: () => {
          if (running) return;
          views = views.filter((other) => other !== view);
          view.node.remove();
          ask(question);
        },
      });
    }
    view.settle();
  }
  // A new chat may have begun meanwhile.
  if (running === abort) {
    running = null;
    if (turn) history.push(turn);
    view.complete();
    if (!view.playing) setBusy(false);
    if (isNearEnd()) scrollToEnd();
  }
}

/** Tokens the server counted over the characters they came from. */
function tokensPerCharacter(body, recording) {
  const characters = body.messages.reduce((sum, message) => sum + message.content.length, 0) + recording.text.length;
  const tokens = (recording.usage?.total_tokens ?? 0) - 8 * body.messages.length;
  return tokens > 0 && characters > 0 ? Math.min(1.5, tokens / characters) : 0.5;
}

/** Asks again while the server says that it is starting or full, or cannot be reached. */
async function withPatience(view, signal, attempt) {
  const giveUpAt = performance.now() + PATIENCE_MS;
  for (;;) {
    try {
      const result = await attempt();
      view.notice("");
      return result;
    } catch (error) {
      if (!(error instanceof ServerError) || error.retryMs === null || performance.now() + error.retryMs > giveUpAt) throw error;
      // Out of reach: whatever comes back may be another model.
      if (error.status === 0) learnModel();
      view.notice(`${error.message} Trying again.`, { mild: true });
      await pause(error.retryMs, signal);
    }
  }
}

function offerCurl(view, body) {
  const { copy } = view.parts;
  if (!navigator.clipboard) return;
  copy.hidden = false;
  const quoted = JSON.stringify(body).replaceAll("'", "'\\''");
  copy.addEventListener("click", async () => {
    // The key stays where it is: what is copied is often pasted where others read.
    const key = apiKey ? ' -H "authorization: Bearer $DIFFULEX_API_KEY"' : "";
    await navigator.clipboard.writeText(`curl -N ${location.origin}/v1/chat/completions${key} -H 'content-type: application/json' -d '${quoted}'`);
    copy.textContent = "Copied";
    setTimeout(() => (copy.textContent = "Copy as curl"), 1500);
  });
}

// ── The model ───────────────────────────────────────────────────────────

let learning = null;

/** Asks for the model until the server has one; once at a time. */
function learnModel() {
  learning ??= (async () => {
    for (let waitMs = 400; ; waitMs = Math.min(waitMs * 1.5, 4000)) {
      try {
        const list = await (await request("/v1/models")).json();
        const first = list.data?.[0];
        // A model that loads has a name and no limits yet.
        if (!first?.diffulex) throw new ServerError("The model is loading.", { status: 503 });
        takeModel(first);
        return;
      } catch (error) {
        if (error.status === 401) {
          showModel("away", "API key needed", "");
          await keyGiven();
          continue;
        }
        const starting = error.status === 503;
        showModel(starting ? "connecting" : "away", starting ? "Starting" : "Server away", "");
        await pause(waitMs);
      }
    }
  })().finally(() => (learning = null));
  return learning;
}

/** Asks for a key and waits until there is another one. */
function keyGiven() {
  const input = element("api-key");
  element("key-control").hidden = false;
  if (matchMedia("(max-width: 60rem)").matches) setSheet(true);
  input.focus();
  return new Promise((resolve) => {
    input.addEventListener("change", () => {
      apiKey = input.value.trim();
      resolve();
    }, { once: true });
  });
}

/** Waits until it is known what answers. */
async function modelKnown(view, signal) {
  if (model.id) return;
  view.notice("The server is not ready yet. Waiting for it.", { mild: true });
  await Promise.race([learnModel(), pause(PATIENCE_MS, signal).then(() => {
    throw new ServerError("The server did not become ready.");
  })]);
  view.notice("");
}

function takeModel(entry) {
  const known = model.id === entry.id;
  model = { id: entry.id, limits: entry.diffulex ?? {} };
  const { limits } = model;
  const facts = [
    limits.parameters ? `${compact(limits.parameters)} parameters` : "",
    limits.block_size ? `blocks of ${limits.block_size}` : "",
    [limits.device, limits.dtype].filter(Boolean).join(" "),
  ].filter(Boolean);
  showModel("ready", model.id, facts.join(", "));
  element("model").title = [limits.architecture, limits.strategy, limits.max_model_len ? `${limits.max_model_len} tokens of context` : ""].filter(Boolean).join(", ");
  if (known) return;
  if (limits.max_model_len) field("maxTokens").max = limits.max_model_len;
  if (limits.block_size) field("steps").max = limits.block_size;
  fillRules();
  resetControls();
  restore();
}

function showModel(state, name, facts) {
  element("model").dataset.state = state;
  element("model-name").textContent = name;
  element("model-facts").textContent = facts;
}

function compact(n) {
  const [unit, sign] = n >= 1e9 ? [1e9, "B"] : n >= 1e6 ? [1e6, "M"] : [1e3, "K"];
  return `${(n / unit).toFixed(n / unit < 10 ? 1 : 0)} ${sign}`;
}

// ── The page ────────────────────────────────────────────────────────────

function send() {
  const question = prompt.value.trim();
  if (!question || running || !controls.reportValidity()) return;
  prompt.value = "";
  fitPrompt();
  ask(question);
}

/** Grows the field with its lines where the browser does not do it by itself. */
function fitPrompt() {
  element("send").disabled = prompt.value.trim() === "";
  if (CSS.supports("field-sizing", "content")) return;
  prompt.style.height = "auto";
  prompt.style.height = `${prompt.scrollHeight}px`;
}

function stop() {
  if (running) {
    running.abort();
    return;
  }
  // The answer is complete, only its showing is not.
  for (const view of views) if (view.playing) view.settle();
  setBusy(false);
}

function newChat() {
  const aborted = running;
  running = null;
  aborted?.abort();
  views.forEach((view) => view.stopPlaying());
  views = [];
  history = [];
  element("turns").replaceChildren();
  element("announcer").textContent = "";
  document.body.dataset.view = "welcome";
  setBusy(false);
  prompt.focus();
}

function setSheet(open) {
  document.body.toggleAttribute("data-sheet", open);
  element("open-settings").setAttribute("aria-expanded", String(open));
  element(open ? "close-settings" : "open-settings").focus();
}

element("chips").append(...EXAMPLES.map((example) => {
  const item = document.createElement("li");
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = example;
  button.addEventListener("click", () => {
    if (running) return;
    prompt.value = example;
    send();
  });
  item.append(button);
  return item;
}));

element("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
prompt.addEventListener("input", fitPrompt);
prompt.addEventListener("keydown", (event) => {
  // While an input method composes, Enter chooses a word.
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  send();
});
element("stop").addEventListener("click", stop);
element("new-chat").addEventListener("click", newChat);
element("open-settings").addEventListener("click", () => setSheet(true));
element("close-settings").addEventListener("click", () => setSheet(false));
element("veil").addEventListener("click", () => setSheet(false));
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  if (document.body.hasAttribute("data-sheet")) setSheet(false);
  else if (!element("stop").hidden) stop();
});
controls.addEventListener("input", () => {
  reflectControls();
  store();
});
controls.addEventListener("submit", (event) => event.preventDefault());
element("defaults").addEventListener("click", (event) => {
  event.preventDefault();
  resetControls();
  store();
});

fillRules();
resetControls();
fitPrompt();
learnModel();
if (matchMedia("(hover: hover)").matches) prompt.focus();
