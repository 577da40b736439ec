"""Instructor without a response model, and with one as a schema and as a tool. Run by `scripts/client_matrix`."""

import unittest

import instructor
import openai
from contract import AsyncCalls, Calls, Contract
from structured import MAX_TOKENS, MESSAGES, StructuredContract, Sum


class Chat(Calls):
    package = "instructor"
    interface = "chat"
    library = openai.OpenAI

    def patched(self, **mode):
        return instructor.from_openai(self.library(base_url=self.url + "/v1", api_key=self.key, max_retries=0), **mode)

    def ask(self, prompt, max_tokens, extra={}, **more):
        return self.patched().chat.completions.create(
            response_model=None,
            model=self.model,
            messages=[{"role": "user", "content": prompt}],
            max_tokens=max_tokens,
            temperature=0,
            extra_body=extra,
            **more,
        )

    def modelled(self, mode):
        """The answer as a response model."""
        return self.done(self.patched(mode=mode).chat.completions.create(**self.body()))

    def modelled_stream(self, mode):
        *_, last = self.items(self.patched(mode=mode).chat.completions.create_partial(**self.body()))
        return Sum.model_validate(last.model_dump())

    def body(self):
        limits = {"max_tokens": MAX_TOKENS, "max_retries": 0}
        return {"response_model": Sum, "model": self.model, "messages": MESSAGES, **limits}

    def schema(self):
        return self.modelled(instructor.Mode.JSON_SCHEMA)

    def schema_stream(self):
        return self.modelled_stream(instructor.Mode.JSON_SCHEMA)

    def tools(self):
        return self.modelled(instructor.Mode.TOOLS)

    def tools_stream(self):
        return self.modelled_stream(instructor.Mode.TOOLS)

    def text(self, prompt, max_tokens=32):
        return self.ask(prompt, max_tokens).choices[0].message.content

    def pieces(self, prompt, max_tokens=32, **extra):
        with self.ask(prompt, max_tokens, extra, stream=True) as stream:
            for chunk in stream:
                yield chunk.choices[0].delta.content or ""


class AsyncChat(AsyncCalls, Chat):
    library = openai.AsyncOpenAI

    async def answer(self, prompt, max_tokens):
        return (await self.ask(prompt, max_tokens)).choices[0].message.content

    async def stream(self, prompt, max_tokens, **extra):
        async with await self.ask(prompt, max_tokens, extra, stream=True) as stream:
            async for chunk in stream:
                yield chunk.choices[0].delta.content or ""


class ChatContract(Contract, unittest.TestCase):
    calls = Chat


class AsyncChatContract(Contract, unittest.TestCase):
    calls = AsyncChat


class ChatStructured(StructuredContract, unittest.TestCase):
    calls = Chat


class AsyncChatStructured(StructuredContract, unittest.TestCase):
    calls = AsyncChat


if __name__ == "__main__":
    unittest.main()
