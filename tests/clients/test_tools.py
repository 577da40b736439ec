"""Calls of tools with OpenAI's, Anthropic's and Ollama's clients, against the real server. Run by `scripts/client_matrix`.

The demo model was trained on no tools, so that every request asks for a call, which the server holds to its schema.
"""

import json
import unittest

import anthropic
import ollama
import openai
from server import shared

# Few values, so that the arguments end soon.
SCHEMA = {
    "type": "object",
    "properties": {"unit": {"enum": ["C", "F"]}, "days": {"enum": [1, 2, 3]}},
    "required": ["unit", "days"],
    "additionalProperties": False,
}
QUESTION = [{"role": "user", "content": "What is the weather?"}]


def fits(arguments):
    return list(arguments) == ["unit", "days"] and arguments["unit"] in "CF" and arguments["days"] in (1, 2, 3)


class Tools(unittest.TestCase):
    def setUp(self):
        self.server = shared()

    def test_openai_chat(self):
        client = openai.OpenAI(base_url=self.server.url + "/v1", api_key="none", max_retries=0)
        tools = [{"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}]
        body = {"model": self.server.model, "tools": tools, "tool_choice": "required", "max_tokens": 200}
        choice = client.chat.completions.create(messages=QUESTION, **body).choices[0]
        self.assertEqual(choice.finish_reason, "tool_calls")
        call = choice.message.tool_calls[0]
        self.assertTrue(fits(json.loads(call.function.arguments)), call)
        messages = [*QUESTION, choice.message]
        messages += [{"role": "tool", "tool_call_id": call.id, "content": "12"} for call in choice.message.tool_calls]
        answer = client.chat.completions.create(model=self.server.model, messages=messages, tools=tools, max_tokens=20)
        self.assertEqual(answer.choices[0].message.role, "assistant")
        with client.chat.completions.stream(messages=QUESTION, **body) as stream:
            calls = stream.get_final_completion().choices[0].message.tool_calls
        self.assertTrue(fits(json.loads(calls[0].function.arguments)), calls)

    def test_openai_responses(self):
        client = openai.OpenAI(base_url=self.server.url + "/v1", api_key="none", max_retries=0)
        tools = [{"type": "function", "name": "get_weather", "parameters": SCHEMA, "strict": True}]
        body = {"model": self.server.model, "tools": tools, "tool_choice": "required", "max_output_tokens": 200}
        response = client.responses.create(input=QUESTION, **body)
        call = response.output[0]
        self.assertEqual(call.type, "function_call")
        self.assertTrue(fits(json.loads(call.arguments)), call)
        items = [*QUESTION, call.to_dict(), {"type": "function_call_output", "call_id": call.call_id, "output": "12"}]
        answer = client.responses.create(model=self.server.model, input=items, max_output_tokens=20)
        self.assertEqual(answer.output[0].type, "message")
        with client.responses.stream(input=QUESTION, **body) as stream:
            final = stream.get_final_response()
        self.assertTrue(fits(json.loads(final.output[0].arguments)), final)

    def test_anthropic(self):
        client = anthropic.Anthropic(base_url=self.server.url, api_key="none", max_retries=0)
        tools = [{"name": "get_weather", "input_schema": SCHEMA}]
        body = {"model": self.server.model, "tools": tools, "tool_choice": {"type": "any"}, "max_tokens": 200}
        message = client.messages.create(messages=QUESTION, **body)
        self.assertEqual(message.stop_reason, "tool_use")
        call = message.content[0]
        self.assertTrue(fits(call.input), call)
        result = [{"type": "tool_result", "tool_use_id": call.id, "content": "12"}]
        turns = [*QUESTION, {"role": "assistant", "content": message.content}, {"role": "user", "content": result}]
        answer = client.messages.create(model=self.server.model, messages=turns, max_tokens=20)
        self.assertEqual(answer.content[0].type, "text")
        with client.messages.stream(messages=QUESTION, **body) as stream:
            final = stream.get_final_message()
        self.assertTrue(fits(final.content[0].input), final)

    def test_ollama(self):
        client = ollama.Client(host=self.server.url)
        # Ollama has no choice of tools: whatever the model writes has the shape that the client reads.
        function = {"name": "get_weather", "description": "Weather", "parameters": SCHEMA}
        tools = [{"type": "function", "function": function}]
        answer = client.chat(model=self.server.model, messages=QUESTION, tools=tools, options={"num_predict": 20})
        self.assertEqual(answer.message.role, "assistant")
        call = {"function": {"name": "get_weather", "arguments": {"unit": "C", "days": 1}}}
        messages = [
            *QUESTION,
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_name": "get_weather", "content": "12"},
        ]
        answer = client.chat(model=self.server.model, messages=messages, tools=tools, options={"num_predict": 20})
        self.assertTrue(answer.done)


if __name__ == "__main__":
    unittest.main()
