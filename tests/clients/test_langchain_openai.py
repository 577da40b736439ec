"""langchain-openai, on chat and responses, against the real server."""

import unittest
from importlib.metadata import version

from contract import Calls, Contract, EmbeddingCalls, EmbeddingContract, optional

langchain_openai = optional("langchain_openai")


class LangChainCalls(Calls):
    client = f"langchain-openai {version('langchain-openai')}"
    uses_responses = False

    def chat(self, max_tokens, extra):
        return langchain_openai.ChatOpenAI(
            base_url=self.url + "/v1",
            api_key=self.key,
            model=self.model,
            temperature=0,
            max_tokens=max_tokens,
            max_retries=0,
            use_responses_api=self.uses_responses,
            extra_body=extra,
        )

    def text(self, prompt, max_tokens=32):
        return self.chat(max_tokens, {}).invoke(prompt).text

    def pieces(self, prompt, max_tokens=32, **extra):
        for chunk in self.chat(max_tokens, extra).stream(prompt):
            yield chunk.text

    def status_and_message(self, error):
        return error.status_code, str(error)


class Chat(LangChainCalls):
    interface = "chat"


class Responses(LangChainCalls):
    interface = "responses"
    uses_responses = True


class Embeddings(EmbeddingCalls):
    client = LangChainCalls.client
    interface = "embeddings"

    def vectors(self, texts):
        # Otherwise it sends ids of OpenAI's tokenizer.
        embeddings = langchain_openai.OpenAIEmbeddings(
            base_url=self.url + "/v1",
            api_key=self.key,
            model=self.model,
            max_retries=0,
            check_embedding_ctx_length=False,
        )
        return embeddings.embed_documents(texts)

    def status_and_message(self, error):
        return error.status_code, str(error)


class EmbeddingsContract(EmbeddingContract, unittest.TestCase):
    calls = Embeddings


class ChatContract(Contract, unittest.TestCase):
    calls = Chat


class ResponsesContract(Contract, unittest.TestCase):
    calls = Responses


if __name__ == "__main__":
    unittest.main()
