"""LiteLLM, through each of its providers that this server speaks, against the real server."""

import unittest
from importlib.metadata import version

from contract import Calls, Contract, CuttingEmbeddingContract, EmbeddingCalls, EmbeddingContract, optional

litellm = optional("litellm")


class LiteLLMCalls(Calls):
    client = f"litellm {version('litellm')}"
    path = ""

    def ask(self, prompt, max_tokens, extra={}, **more):
        return litellm.completion(
            model=f"{self.provider}/{self.model}",
            api_base=self.url + self.path,
            api_key=self.key,
            messages=[{"role": "user", "content": prompt}],
            max_tokens=max_tokens,
            temperature=0,
            num_retries=0,
            **extra,
            **more,
        )

    def text(self, prompt, max_tokens=32):
        return self.ask(prompt, max_tokens).choices[0].message.content

    def pieces(self, prompt, max_tokens=32, **extra):
        stream = self.ask(prompt, max_tokens, extra, stream=True)
        try:
            for chunk in stream:
                yield chunk.choices[0].delta.content or ""
        finally:
            close(stream)

    def status_and_message(self, error):
        return error.status_code, str(error)


def close(stream):
    """Ends the connection of LiteLLM's wrapper, whose own stream is inside it."""
    inner = stream.completion_stream
    for part in (inner, getattr(inner, "response_iterator", None)):
        if hasattr(part, "close"):
            part.close()


class OpenAI(LiteLLMCalls):
    interface = provider = "openai"
    path = "/v1"


class Ollama(LiteLLMCalls):
    interface = provider = "ollama"


class OllamaChat(LiteLLMCalls):
    interface = provider = "ollama_chat"


class LiteLLMEmbeddings(EmbeddingCalls):
    client = LiteLLMCalls.client
    provider = path = ""

    def vectors(self, texts):
        reply = litellm.embedding(
            model=f"{self.provider}/{self.model}",
            api_base=self.url + self.path,
            api_key=self.key,
            input=texts,
            num_retries=0,
        )
        return [item["embedding"] for item in reply.data]

    def status_and_message(self, error):
        return error.status_code, str(error)


class OpenAIEmbeddings(LiteLLMEmbeddings):
    interface, provider, path = "embeddings", "openai", "/v1"


class OllamaEmbed(LiteLLMEmbeddings):
    interface, provider = "embed", "ollama"


class OpenAIEmbeddingsContract(EmbeddingContract, unittest.TestCase):
    calls = OpenAIEmbeddings


class OllamaEmbedContract(CuttingEmbeddingContract, unittest.TestCase):
    calls = OllamaEmbed

    def test_wrong_key(self):
        # LiteLLM sends no key at all with embeddings of Ollama: the table has a no.
        status, _ = self.failure(lambda: self.calls(self.guarded.url, self.guarded.model, "wrong").vectors(["hi"]))
        self.assertEqual(status, 401)


class OpenAIContract(Contract, unittest.TestCase):
    calls = OpenAI


class OllamaContract(Contract, unittest.TestCase):
    calls = Ollama


class OllamaChatContract(Contract, unittest.TestCase):
    calls = OllamaChat


if __name__ == "__main__":
    unittest.main()
