"""OpenAI's client, on chat, responses and embeddings, against the real server with the model that comes with it.

Run by `scripts/client_matrix`; needs the package and the binary in DIFFULEX_BIN.
"""

import json
import re
import unittest
import urllib.request

import openai
from contract import AsyncCalls, AsyncEmbeddingCalls, Calls, Contract, EmbeddingCalls, EmbeddingContract
from server import shared
from structured import QUESTION, Structured, Sum


class OpenAI:
    package = "openai"
    client = "openai (Python)"
    library = openai.OpenAI

    def __init__(self, url, model, key):
        super().__init__(url, model, key)
        self.openai = self.library(base_url=url + "/v1", api_key=key, max_retries=0)


class Chat(OpenAI, Calls):
    interface = "chat"

    def text(self, prompt, max_tokens=32):
        reply = self.openai.chat.completions.create(**self.body(prompt, max_tokens))
        return reply.choices[0].message.content

    def pieces(self, prompt, max_tokens=32, **extra):
        with self.openai.chat.completions.create(**self.body(prompt, max_tokens), stream=True, extra_body=extra) as stream:
            for chunk in stream:
                yield chunk.choices[0].delta.content or ""

    def body(self, prompt, max_tokens):
        messages = [{"role": "user", "content": prompt}]
        return {"model": self.model, "messages": messages, "max_tokens": max_tokens, "temperature": 0}


class AsyncChat(AsyncCalls, Chat):
    library = openai.AsyncOpenAI

    async def answer(self, prompt, max_tokens):
        reply = await self.openai.chat.completions.create(**self.body(prompt, max_tokens))
        return reply.choices[0].message.content

    async def stream(self, prompt, max_tokens, **extra):
        body = self.body(prompt, max_tokens)
        async with await self.openai.chat.completions.create(**body, stream=True, extra_body=extra) as stream:
            async for chunk in stream:
                yield chunk.choices[0].delta.content or ""


class Responses(OpenAI, Calls):
    interface = "responses"

    def text(self, prompt, max_tokens=32):
        return self.openai.responses.create(**self.body(prompt, max_tokens)).output_text

    def pieces(self, prompt, max_tokens=32, **extra):
        # The helper that keeps a copy of the response, and raises if the events do not fit it.
        with self.openai.responses.stream(**self.body(prompt, max_tokens), extra_body=extra) as stream:
            for event in stream:
                if event.type == "response.output_text.delta":
                    yield event.delta

    def body(self, prompt, max_tokens):
        return {"model": self.model, "input": prompt, "max_output_tokens": max_tokens, "temperature": 0}


class AsyncResponses(AsyncCalls, Responses):
    library = openai.AsyncOpenAI

    async def answer(self, prompt, max_tokens):
        return (await self.openai.responses.create(**self.body(prompt, max_tokens))).output_text

    async def stream(self, prompt, max_tokens, **extra):
        async with self.openai.responses.stream(**self.body(prompt, max_tokens), extra_body=extra) as stream:
            async for event in stream:
                if event.type == "response.output_text.delta":
                    yield event.delta


class Embeddings(OpenAI, EmbeddingCalls):
    interface = "embeddings"

    def vectors(self, texts, **more):
        # Asks for base64 where no format is given.
        reply = self.openai.embeddings.create(model=self.model, input=texts, **more)
        return [item.embedding for item in reply.data]


class AsyncEmbeddings(AsyncEmbeddingCalls, Embeddings):
    library = openai.AsyncOpenAI

    async def embed(self, texts):
        reply = await self.openai.embeddings.create(model=self.model, input=texts)
        return [item.embedding for item in reply.data]


class EmbeddingsContract(EmbeddingContract, unittest.TestCase):
    calls = Embeddings

    def test_formats_and_dimensions(self):
        [packed] = self.one.vectors(["hello"])
        [plain] = self.one.vectors(["hello"], encoding_format="float")
        self.assertEqual(len(packed), len(plain))
        for left, right in zip(packed, plain, strict=True):
            self.assertAlmostEqual(left, right, places=6)
        self.assertEqual(len(self.one.vectors(["hello"], dimensions=5)[0]), 5)


class AsyncEmbeddingsContract(EmbeddingContract, unittest.TestCase):
    calls = AsyncEmbeddings


class ChatContract(Contract, unittest.TestCase):
    calls = Chat


class AsyncChatContract(Contract, unittest.TestCase):
    calls = AsyncChat


class AsyncResponsesContract(Contract, unittest.TestCase):
    calls = AsyncResponses


class ResponsesContract(Contract, unittest.TestCase):
    calls = Responses

    def test_the_events_are_typed_and_the_last_one_has_the_whole_response(self):
        body = self.one.body("count from 1 to 9", 48)
        events = list(self.one.openai.responses.create(**body, stream=True, extra_body={"stream_mode": "denoise"}))
        self.assertEqual([event.sequence_number for event in events], list(range(len(events))))
        self.assertEqual(events[-1].type, "response.completed")
        self.assertEqual(events[-1].response.output_text, self.one.text("count from 1 to 9", 48))
        self.assertGreater(events[-1].response.usage.output_tokens, 0)
        deltas = [event for event in events if event.type == "response.output_text.delta"]
        self.assertTrue(all("mask_positions" in event.diffulex for event in deltas), "a delta without its snapshot")


@unittest.skipUnless(hasattr(openai.OpenAI, "decisions"), "this version of the client has no decisions")
class Decisions(unittest.TestCase):
    questions = [
        {"type": "predicate", "name": "sum", "instructions": "A sum is asked for."},
        {"type": "choice", "instructions": "Which?", "choices": [{"value": "sum"}, {"value": True}, {"value": "story"}]},
        {"type": "score", "instructions": "How long?", "levels": [{"label": "short"}, {"label": "long"}]},
    ]

    @classmethod
    def setUpClass(cls):
        cls.server = shared()

    def check(self, decision):
        predicate, choice, score = decision.answers
        self.assertEqual((predicate.type, predicate.name, choice.name), ("predicate", "sum", None))
        self.assertTrue(0 <= predicate.probability <= 1)
        self.assertAlmostEqual(sum(option.probability for option in choice.probabilities), 1, places=6)
        likeliest = max(choice.probabilities, key=lambda option: option.probability)
        self.assertEqual(choice.choice, likeliest.value)
        self.assertIs(choice.probabilities[1].value, True)
        mean = sum(level.value * level.probability for level in score.probabilities)
        self.assertAlmostEqual(score.score, mean, places=9)
        self.assertEqual(decision.usage.output_tokens, 3)

    def test_each_type_of_question_is_answered(self):
        with openai.OpenAI(base_url=self.server.url + "/v1", api_key="none", max_retries=0) as client:
            self.check(client.decisions.create(model=self.server.model, input="12 + 30 = ?", questions=self.questions))
            with self.assertRaises(openai.BadRequestError) as refused:
                client.decisions.create(model=self.server.model, input="hi", questions=[])
            self.assertIn("questions", str(refused.exception))

    def test_the_asynchronous_client_has_the_same_answers(self):
        import asyncio

        async def ask():
            async with openai.AsyncOpenAI(base_url=self.server.url + "/v1", api_key="none", max_retries=0) as client:
                message = {"role": "user", "content": [{"type": "input_text", "text": "12 + 30 = ?"}]}
                return await client.decisions.create(
                    model=self.server.model, input=[message], questions=self.questions
                )

        self.check(asyncio.run(ask()))


class OpenAIClient(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = shared()
        cls.client = openai.OpenAI(base_url=cls.server.url + "/v1", api_key="none", max_retries=0)
        cls.model = cls.client.models.list().data[0].id

    @classmethod
    def tearDownClass(cls):
        cls.client.close()

    def ask(self, content, **more):
        return self.client.chat.completions.create(
            model=self.model, messages=[{"role": "user", "content": content}], temperature=0, **more
        )

    def test_a_chat_answers(self):
        reply = self.ask("12 + 30 = ?", max_tokens=32)
        self.assertIn("42", reply.choices[0].message.content)
        self.assertEqual(reply.choices[0].finish_reason, "stop")
        self.assertEqual(reply.usage.total_tokens, reply.usage.prompt_tokens + reply.usage.completion_tokens)

    def test_streamed_chunks_join_to_the_reply_in_both_modes(self):
        reply = self.ask("count from 1 to 9", max_tokens=48).choices[0]
        for mode in ("block_append", "denoise"):
            chunks = list(
                self.ask(
                    "count from 1 to 9",
                    max_tokens=48,
                    stream=True,
                    stream_options={"include_usage": True},
                    extra_body={"stream_mode": mode},
                )
            )
            text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
            self.assertEqual(text, reply.message.content, mode)
            self.assertEqual(chunks[0].choices[0].delta.role, "assistant")
            self.assertEqual([c.choices[0].finish_reason for c in chunks if c.choices][-1], reply.finish_reason)
            self.assertGreater(chunks[-1].usage.completion_tokens, 0)
            if mode == "denoise":
                snapshots = [chunk for chunk in chunks if getattr(chunk, "event", None) == "buffer_snapshot"]
                self.assertTrue(snapshots, "no snapshot came through the client")

    def test_a_seed_draws_the_same_text_again(self):
        def draw(seed):
            return (
                self.client.chat.completions.create(
                    model=self.model,
                    messages=[{"role": "user", "content": "tell me a story"}],
                    temperature=1.0,
                    seed=seed,
                    max_tokens=64,
                )
                .choices[0]
                .message.content
            )

        self.assertEqual(draw(1), draw(1))
        self.assertGreater(len({draw(seed) for seed in range(6)}), 1)

    def test_stop_and_max_tokens_hold(self):
        stopped = self.ask("count from 1 to 9", max_tokens=48, stop=["5"]).choices[0]
        self.assertNotIn("5", stopped.message.content)
        self.assertEqual(stopped.finish_reason, "stop")
        short = self.ask("count from 1 to 9", max_tokens=3)
        self.assertEqual((short.choices[0].finish_reason, short.usage.completion_tokens), ("length", 3))

    def test_errors_are_the_clients_own_types(self):
        with self.assertRaises(openai.NotFoundError):
            self.client.chat.completions.create(model="nobody", messages=[{"role": "user", "content": "hi"}])
        with self.assertRaises(openai.BadRequestError) as refused:
            self.ask("hi", max_tokens=0)
        self.assertIn("max_tokens", str(refused.exception))
        with self.assertRaises(openai.BadRequestError) as refused:
            self.ask("hi", logit_bias={"5": 101})
        self.assertIn("logit_bias", str(refused.exception))
        with self.assertRaises(openai.APIStatusError):
            self.ask("word " * 5000)

    def test_many_at_once_get_what_each_gets_alone(self):
        import asyncio

        prompts = [f"{a} + {b} = ?" for a in range(4) for b in range(8)]
        alone = [self.ask(prompt, max_tokens=24).choices[0].message.content for prompt in prompts]

        async def together():
            async with openai.AsyncOpenAI(base_url=self.server.url + "/v1", api_key="none", max_retries=0) as client:
                replies = await asyncio.gather(
                    *(
                        client.chat.completions.create(
                            model=self.model,
                            messages=[{"role": "user", "content": prompt}],
                            temperature=0,
                            max_tokens=24,
                        )
                        for prompt in prompts
                    )
                )
                return [reply.choices[0].message.content for reply in replies]

        self.assertEqual(asyncio.run(together()), alone)

    def test_a_stream_that_is_left_frees_its_pages(self):
        stream = self.ask("tell me a story", max_tokens=900, stream=True, extra_body={"ignore_eos": True})
        next(iter(stream))
        stream.close()
        for _ in range(200):
            metrics = urllib.request.urlopen(self.server.url + "/metrics").read().decode()
            running = re.search(r"^diffulex_num_requests_running (\S+)", metrics, re.M)
            if running and float(running.group(1)) == 0:
                return
            self.ask("hi", max_tokens=4)
        self.fail("the abandoned request still runs")

    def test_the_model_card_tells_how_it_decodes(self):
        with urllib.request.urlopen(self.server.url + "/v1/models") as response:
            card = json.load(response)["data"][0]
        self.assertEqual(card["diffulex"]["strategy"], "multi_bd")
        self.assertGreater(card["diffulex"]["parameters"], 1_000_000)


class StructuredOutput(Structured, unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.client = openai.OpenAI(base_url=cls.api, api_key="none", max_retries=0)
        # Earlier versions have it under `beta` alone.
        completions = cls.client.chat.completions
        cls.completions = completions if hasattr(completions, "parse") else cls.client.beta.chat.completions
        cls.chat = {"model": cls.server.model, "messages": [{"role": "user", "content": QUESTION}], "max_tokens": 64}
        cls.response = {"model": cls.server.model, "input": QUESTION, "max_output_tokens": 64}

    @classmethod
    def tearDownClass(cls):
        cls.client.close()

    def test_a_chat_is_parsed(self):
        message = self.completions.parse(**self.chat, response_format=Sum).choices[0].message
        self.check(message.parsed)
        self.assertEqual(message.content, message.parsed.model_dump_json())

    def test_a_streamed_chat_is_parsed(self):
        with self.completions.stream(**self.chat, response_format=Sum) as stream:
            stream.until_done()
            self.check(stream.get_final_completion().choices[0].message.parsed)

    def test_a_response_is_parsed(self):
        self.check(self.client.responses.parse(**self.response, text_format=Sum).output_parsed)

    def test_a_streamed_response_is_parsed(self):
        with self.client.responses.stream(**self.response, text_format=Sum) as stream:
            stream.until_done()
            self.check(stream.get_final_response().output_parsed)

    def test_choices_and_expressions_are_fields_of_vllm(self):
        for form, pattern in [({"choice": ["even", "odd"]}, "even|odd"), ({"regex": "[0-9]{2,3}"}, "[0-9]{2,3}")]:
            reply = self.client.chat.completions.create(**self.chat, extra_body={"structured_outputs": form})
            self.assertRegex(reply.choices[0].message.content, f"^({pattern})$")


if __name__ == "__main__":
    unittest.main()
