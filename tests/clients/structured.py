"""The tests of JSON of a schema and of calls of tools, as clients ask for them.

A class of Calls has the methods of METHODS that its library can do; each is a cell of a table of docs/clients.md.
"""

import json
from typing import Literal

from contract import Servers
from pydantic import BaseModel, ConfigDict

QUESTION = "12 + 30 = ?"
MESSAGES = [{"role": "user", "content": QUESTION}]
MAX_TOKENS = 200
# Most of an answer to the result of a tool: nothing is asked of its text.
SHORT = 20

# The features of the table with the methods of a client. Those of a schema return the answer, read by the library or as text. Those
# of tools ask for a call, give its result back, and return the arguments of the calls and the text of the second answer.
METHODS = {
    "JSON schema": "schema",
    "JSON streamed": "schema_stream",
    "tools": "tools",
    "tools streamed": "tools_stream",
}


class Sum(BaseModel):
    """A sum."""

    model_config = ConfigDict(extra="forbid")

    total: int
    kind: Literal["even", "odd"]


class Weather(BaseModel):
    """The weather of some days."""

    # Few values, so that the arguments end soon.
    model_config = ConfigDict(extra="forbid")

    unit: Literal["C", "F"]
    days: Literal[1, 2, 3]


NAME = "get_weather"
FUNCTION = {"name": NAME, "description": "The weather of some days", "parameters": Weather.model_json_schema()}
RESULT = "12 degrees"


def weather(calls):
    """The tool as a function, for libraries that call it themselves; it notes the arguments of its calls."""

    def get_weather(unit: Literal["C", "F"], days: Literal[1, 2, 3]) -> str:
        """The weather of some days.

        Args:
            unit: of the degrees
            days: how many
        """
        calls.append({"unit": unit, "days": days})
        return RESULT

    return get_weather


class StructuredContract(Servers):
    """Beside unittest.TestCase: `calls` is a class of Calls."""

    # Ollama's interface has no way to ask for a call: the model may write none, and a written one goes back with its result.
    forced = True

    @classmethod
    def setUpClass(cls):
        cls.features = [feature for feature, method in METHODS.items() if getattr(cls.calls, method, None)]
        super().setUpClass()

    def ask(self, feature):
        """What the client's method returns, or None if it has none; and how many requests had a constraint."""
        if feature not in self.features:
            self.skipTest(f"no {feature}")
        before = self.server.metric("constrained_requests_total")
        answer = getattr(self.one, METHODS[feature])()
        return answer, self.server.metric("constrained_requests_total") - before

    def check_schema(self, feature):
        answer, n_constrained = self.ask(feature)
        if isinstance(answer, str):
            # Text has spaces where json.dumps writes them, and the properties in their order.
            self.assertEqual(answer, json.dumps(Sum.model_validate_json(answer).model_dump()))
        else:
            self.assertIsInstance(answer, Sum)
        # A model without a schema may be right by chance.
        self.assertEqual(n_constrained, 1)
        self.passed(feature)

    def check_tools(self, feature):
        answer, n_constrained = self.ask(feature)
        if isinstance(answer, Sum):
            # The tool is the form of the answer.
            self.assertEqual(n_constrained, 1)
            self.passed(feature)
            return
        calls, text = answer
        self.assertIsInstance(text, str)
        for arguments in calls:
            Weather.model_validate(arguments)
        if self.forced:
            self.assertTrue(calls, "no call")
            # A strict tool holds the second answer, too, should it be a call.
            self.assertGreaterEqual(n_constrained, 1)
        self.passed(feature)

    def test_schema(self):
        self.check_schema("JSON schema")

    def test_schema_stream(self):
        self.check_schema("JSON streamed")

    def test_tools(self):
        self.check_tools("tools")

    def test_tools_stream(self):
        self.check_tools("tools streamed")
