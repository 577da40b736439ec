"""JSON of a schema, as clients ask for it with a model of pydantic's."""

from typing import Literal

from pydantic import BaseModel, ConfigDict
from server import shared

QUESTION = "12 + 30 = ?"


class Sum(BaseModel):
    """A sum."""

    model_config = ConfigDict(extra="forbid")

    total: int
    kind: Literal["even", "odd"]


class Structured:
    """Beside unittest.TestCase: the server, and the check of an answer."""

    @classmethod
    def setUpClass(cls):
        cls.server = shared()
        cls.api = cls.server.url + "/v1"
        cls.n_constrained = cls.server.metric("constrained_requests_total")

    def check(self, answer):
        """The answer is of the schema, and the server had the schema: a model without one may be right by chance."""
        self.assertIsInstance(answer, Sum)
        n_constrained = self.server.metric("constrained_requests_total")
        self.assertGreater(n_constrained, type(self).n_constrained)
        type(self).n_constrained = n_constrained

    def check_text(self, text):
        """The same of an answer as text, which has no spaces and the properties in their order."""
        answer = Sum.model_validate_json(text)
        self.check(answer)
        self.assertEqual(text, answer.model_dump_json())
