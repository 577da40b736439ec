"""Typed questions as clients ask them, and the checks of what they return."""

INPUT = "12 + 30 = ?"
QUESTIONS = [
    {"type": "predicate", "name": "sum", "instructions": "A sum is asked for."},
    {"type": "choice", "instructions": "Which?", "choices": [{"value": "sum"}, {"value": True}, {"value": "story"}]},
    {"type": "score", "instructions": "How long?", "levels": [{"label": "short"}, {"label": "long"}]},
]
SYSTEM_ONE = {
    "sum": {"type": "noul", "instructions": "A sum is asked for."},
    "kind": {"type": "choice", "instructions": "Which?", "criteria": {"sum": None, "story": "a tale"}},
    "length": {"type": "score", "instructions": "How long?", "criteria": ["short", "long"]},
}
# What the table of docs/clients.md calls it.
FEATURE = "typed questions"


class DecisionChecks:
    """Beside unittest.TestCase."""

    def check(self, decision):
        """The answers to QUESTIONS."""
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

    def check_system_one(self, decision):
        """The answers to SYSTEM_ONE."""
        answers = decision.answers
        self.assertEqual(list(answers), list(SYSTEM_ONE))
        self.assertTrue(0 <= answers["sum"].noul <= 1)
        probabilities = answers["kind"].probabilities
        self.assertEqual(list(probabilities), ["sum", "story"])
        self.assertAlmostEqual(sum(probabilities.values()), 1, places=6)
        self.assertEqual(answers["kind"].choice, max(probabilities, key=probabilities.get))
        self.assertAlmostEqual(answers["length"].score, answers["length"].probabilities["1"], places=9)
        self.assertEqual(answers["length"].legend, {"0": "short", "1": "long"})
        self.assertEqual(decision.usage.output_tokens, 3)
