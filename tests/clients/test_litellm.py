"""LiteLLM, through each of its providers that this server speaks, and through its router. Run by `scripts/client_matrix`."""

import unittest

import litellm
from contract import (
    AsyncCalls,
    AsyncEmbeddingCalls,
    Calls,
    Contract,
    CuttingEmbeddingContract,
    EmbeddingCalls,
    EmbeddingContract,
)


async def close(stream):
    """Ends the connection of LiteLLM's wrapper, whose own stream is inside it."""
    inner = stream.completion_stream
    for part in (inner, getattr(inner, "response_iterator", None), getattr(inner, "streaming_response", None)):
        for name in ("aclose", "close"):
            if hasattr(part, name):
                ended = getattr(part, name)()
                if hasattr(ended, "__await__"):
                    await ended
                break


class LiteLLM:
    package = "litellm"
    provider = path = ""

    def deployment(self):
        """The model with its address."""
        return {"model": f"{self.provider}/{self.model}", "api_base": self.url + self.path, "api_key": self.key}

    def named(self):
        return {**self.deployment(), "num_retries": 0}


class Completion(LiteLLM, Calls):
    completion = staticmethod(litellm.completion)
    acompletion = staticmethod(litellm.acompletion)

    def body(self, prompt, max_tokens):
        messages = [{"role": "user", "content": prompt}]
        return {**self.named(), "messages": messages, "max_tokens": max_tokens, "temperature": 0}

    def text(self, prompt, max_tokens=32):
        return self.completion(**self.body(prompt, max_tokens)).choices[0].message.content

    def pieces(self, prompt, max_tokens=32, **extra):
        stream = self.completion(**self.body(prompt, max_tokens), **extra, stream=True)
        try:
            for chunk in stream:
                yield chunk.choices[0].delta.content or ""
        finally:
            inner = stream.completion_stream
            for part in (inner, getattr(inner, "response_iterator", None)):
                if hasattr(part, "close"):
                    part.close()


class AsyncCompletion(AsyncCalls, Completion):
    async def call(self, prompt, max_tokens, **more):
        return await self.acompletion(**self.body(prompt, max_tokens), **more)

    async def answer(self, prompt, max_tokens):
        return (await self.call(prompt, max_tokens)).choices[0].message.content

    async def stream(self, prompt, max_tokens, **extra):
        stream = await self.call(prompt, max_tokens, **extra, stream=True)
        try:
            async for chunk in stream:
                yield chunk.choices[0].delta.content or ""
        finally:
            await close(stream)


class Routed:
    """The same calls through a router of one deployment."""

    client = "litellm Router"

    def __init__(self, url, model, key):
        super().__init__(url, model, key)
        deployment = {"model_name": "any", "litellm_params": self.deployment()}
        self.router = litellm.Router(model_list=[deployment], num_retries=0, disable_cooldowns=True)
        self.completion, self.acompletion = self.router.completion, self.router.acompletion

    def named(self):
        return {"model": "any"}


class RoutedCompletion(Routed, Completion):
    pass


class AsyncRoutedCompletion(Routed, AsyncCompletion):
    pass


class Embedding(LiteLLM, EmbeddingCalls):
    def vectors(self, texts):
        return [item["embedding"] for item in litellm.embedding(**self.named(), input=texts).data]


class AsyncEmbedding(AsyncEmbeddingCalls, Embedding):
    async def embed(self, texts):
        return [item["embedding"] for item in (await litellm.aembedding(**self.named(), input=texts)).data]


class KeylessContract(CuttingEmbeddingContract):
    def test_wrong_key(self):
        # LiteLLM sends no key at all with embeddings of Ollama: the table has a no.
        status, _ = self.failure(lambda: self.calls(self.guarded.url, self.guarded.model, "wrong").vectors(["hi"]))
        self.assertEqual(status, 401)


# Each provider with its path and the ways to call it; its name is the interface of the table, where it has no other.
GENERATING = (Completion, AsyncCompletion, RoutedCompletion, AsyncRoutedCompletion)
EMBEDDING = (Embedding, AsyncEmbedding)
CASES = (
    ("openai", "openai", "/v1", Contract, GENERATING),
    ("ollama", "ollama", "", Contract, GENERATING),
    ("ollama_chat", "ollama_chat", "", Contract, GENERATING),
    ("embeddings", "openai", "/v1", EmbeddingContract, EMBEDDING),
    ("embed", "ollama", "", KeylessContract, EMBEDDING),
)


def load_tests(loader, *_):
    suite = unittest.TestSuite()
    for interface, provider, path, contract, ways in CASES:
        for way in ways:
            name = f"{way.__name__}_{interface}"
            calls = type(name, (way,), {"interface": interface, "provider": provider, "path": path})
            suite.addTests(loader.loadTestsFromTestCase(type(name, (contract, unittest.TestCase), {"calls": calls})))
    return suite


if __name__ == "__main__":
    unittest.main()
