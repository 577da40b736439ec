// Tokens per second of llama.cpp with a grammar beside without, in turn:
// `node grammar_cost.mjs MODULES_FOLDER MODEL.gguf [--rounds N] [--tokens N] [--skip N] [--sequences 1,8]`.
//
// MODULES_FOLDER is where `npm install node-llama-cpp` was run. The schema and the prompt are those of diffulex-bench's
// `constrained_cost`. Random weights stay in the first string of an answer, as ours do. What comes before, `{"field_00":"`, they
// never write by themselves: there llama.cpp walks its grammar over the whole vocabulary, in the string only for the likeliest
// token. `--skip N` leaves out the first N tokens of an answer.

import { readFileSync } from "node:fs";
import { resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { parseArgs } from "node:util";

const options = { rounds: { type: "string", default: "5" }, tokens: { type: "string", default: "52" }, skip: { type: "string", default: "0" }, sequences: { type: "string", default: "1" } };
const { values, positionals: [modules, modelPath] } = parseArgs({ options, allowPositionals: true });
const [nRounds, nTokens, nSkipped] = [values.rounds, values.tokens, values.skip].map(Number);
const nThreads = 2;

const { getLlama, LlamaGrammarEvaluationState } = await import(pathToFileURL(resolve(modules, "node_modules/node-llama-cpp/dist/index.js")));
const llama = await getLlama({ gpu: false, build: "never", skipDownload: true, maxThreads: nThreads, logLevel: "error" });
const model = await llama.loadModel({ modelPath, gpuLayers: 0 });
const schema = JSON.parse(readFileSync(new URL("../../diffulex-bench/src/twenty_fields.json", import.meta.url), "utf8"));
const grammar = await llama.createGrammarForJsonSchema(schema);
const prompt = Array.from({ length: 64 }, (_, position) => 33 + position % 90);

// Milliseconds at which a sequence had each of its tokens.
async function answer(sequence, constrained) {
    await sequence.clearHistory();
    const grammarEvaluationState = constrained ? new LlamaGrammarEvaluationState({ model, grammar }) : undefined;
    const times = [], tokens = [];
    for await (const token of sequence.evaluate(prompt, { temperature: 0, grammarEvaluationState, yieldEogToken: true })) {
        tokens.push(token);
        if (times.push(performance.now()) > nTokens + nSkipped)
            break;
    }
    if (times.length <= nTokens + nSkipped)
        throw new Error(`an answer ended after ${times.length} tokens: ${JSON.stringify(model.detokenize(tokens))}`);
    return { times, text: model.detokenize(tokens) };
}

// Tokens per second of all sequences, from the moment at which each of them has its first one.
async function tokensPerSecond(sequences, constrained) {
    const answers = await Promise.all(sequences.map(sequence => answer(sequence, constrained)));
    if (constrained && !/^\{\s*"field_00"/.test(answers[0].text))
        throw new Error(`not an answer of the schema: ${answers[0].text}`);
    const begin = Math.max(...answers.map(({ times }) => times[nSkipped])), end = Math.max(...answers.map(({ times }) => times.at(-1)));
    return 1e3 * nTokens * sequences.length / (end - begin);
}

function spread(numbers, digits) {
    const sorted = [...numbers].sort((a, b) => a - b);
    return `${sorted[sorted.length >> 1].toFixed(digits)} (${sorted[0].toFixed(digits)} to ${sorted.at(-1).toFixed(digits)})`;
}

console.log("sequences  free tokens/s          with the grammar       time of a token: constrained over free");
for (const nSequences of values.sequences.split(",").map(Number)) {
    const size = prompt.length + nTokens + nSkipped + 32;
    const context = await model.createContext({ sequences: nSequences, contextSize: size, threads: nThreads });
    const sequences = Array.from({ length: nSequences }, () => context.getSequence());
    await tokensPerSecond(sequences, false);
    const rounds = [];
    for (let round = 0; round < nRounds; round++)
        rounds.push([await tokensPerSecond(sequences, false), await tokensPerSecond(sequences, true)]);
    const [free, constrained] = [rounds.map(([free]) => free), rounds.map(([, constrained]) => constrained)];
    console.log(`${String(nSequences).padStart(9)}  ${spread(free, 2).padEnd(21)}  ${spread(constrained, 2).padEnd(21)}  ${spread(rounds.map(([free, constrained]) => free / constrained), 3)}`);
    await context.dispose();
}
process.exit(0);
