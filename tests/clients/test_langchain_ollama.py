"""langchain-ollama against the real server."""

import unittest
from importlib.metadata import version

from contract import Calls, Contract, CuttingEmbeddingContract, EmbeddingCalls, optional

langchain_ollama = optional("langchain_ollama")


class Chat(Calls):
    client = f"langchain-ollama {version('langchain-ollama')}"
    interface = "chat"

    def chat(self):
        headers = {"authorization": f"Bearer {self.key}"}
        return langchain_ollama.ChatOllama(base_url=self.url, model=self.model, client_kwargs={"headers": headers})

    def options(self, max_tokens, extra):
        return {"temperature": 0, "num_predict": max_tokens, **extra}

    def text(self, prompt, max_tokens=32):
        return self.chat().invoke(prompt, options=self.options(max_tokens, {})).text

    def pieces(self, prompt, max_tokens=32, **extra):
        for chunk in self.chat().stream(prompt, options=self.options(max_tokens, extra)):
            yield chunk.text

    def status_and_message(self, error):
        return error.status_code, str(error)


class Embed(EmbeddingCalls):
    client = Chat.client
    interface = "embed"

    def vectors(self, texts):
        headers = {"authorization": f"Bearer {self.key}"}
        embeddings = langchain_ollama.OllamaEmbeddings(
            base_url=self.url, model=self.model, client_kwargs={"headers": headers}
        )
        return embeddings.embed_documents(texts)

    def status_and_message(self, error):
        return error.status_code, str(error)


class EmbedContract(CuttingEmbeddingContract, unittest.TestCase):
    calls = Embed


class ChatContract(Contract, unittest.TestCase):
    calls = Chat


if __name__ == "__main__":
    unittest.main()
