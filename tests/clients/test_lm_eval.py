"""lm-eval's command line against the real server, on tasks from local files: log-likelihoods by `echo` of scored prompts, and answers."""

import json
import os
import subprocess
import sys
import tempfile
import unittest
from importlib.metadata import version
from pathlib import Path

from contract import Server, note, optional

optional("lm_eval")

CLIENT = f"lm-eval {version('lm_eval')}"
SUMS = [(a, b) for a in (12, 25, 31, 48) for b in (9, 17, 30, 42)]

# Questions with a right answer and others near it, as the model phrases them.
CHOICE = """
task: local_choice
dataset_path: json
dataset_kwargs: {{data_files: {{test: "{data}"}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: 0
target_delimiter: ""
metric_list: [{{metric: acc}}]
"""

ANSWER = """
task: local_answer
dataset_path: json
dataset_kwargs: {{data_files: {{test: "{data}"}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{answer}}}}"
generation_kwargs: {{until: ["\\n"], max_gen_toks: 32}}
filter_list: [{{name: last_number, filter: [{{function: regex, regex_pattern: "(\\\\d+)\\\\D*$"}}, {{function: take_first}}]}}]
metric_list: [{{metric: exact_match}}]
"""

ROLLING = """
task: local_rolling
dataset_path: json
dataset_kwargs: {{data_files: {{test: "{data}"}}}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{{{question}}}} {{{{answer}}}}"
metric_list: [{{metric: word_perplexity}}]
"""


class LmEval(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server()
        cls.folder = tempfile.TemporaryDirectory()
        data = Path(cls.folder.name, "sums.jsonl")
        rows = [
            {"question": f"{a} + {b} = ?", "answer": str(a + b), "choices": [str(a + b + by) for by in (0, 10, -1, 2)]}
            for a, b in SUMS
        ]
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        for name, task in (("choice", CHOICE), ("answer", ANSWER), ("rolling", ROLLING)):
            Path(cls.folder.name, f"{name}.yaml").write_text(task.format(data=data))

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()
        cls.folder.cleanup()

    def run_tasks(self, model, path, tasks, *options):
        """The results of each task, and its samples."""
        out = Path(self.folder.name, model)
        arguments = f"model={self.server.model},base_url={self.server.url}{path},num_concurrent=4,max_retries=1"
        command = [sys.executable, "-m", "lm_eval", "run", "--model", model, "--model_args", arguments]
        command += ["--tasks", ",".join(tasks), "--include_path", self.folder.name]
        command += ["--output_path", str(out), "--log_samples", *options]
        # Its data sets are files here, so nothing is looked for elsewhere.
        offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": self.folder.name}
        ran = subprocess.run(command, env={**os.environ, **offline}, capture_output=True, text=True, timeout=600)
        self.assertEqual(ran.returncode, 0, ran.stdout[-2000:] + ran.stderr[-6000:])
        (results,) = out.rglob("results_*.json")
        samples = {task: [json.loads(line) for file in out.rglob(f"samples_{task}_*.jsonl") for line in file.open()] for task in tasks}
        return json.loads(results.read_text())["results"], samples

    def test_completions(self):
        tasks = ["local_choice", "local_answer", "local_rolling"]
        results, samples = self.run_tasks(
            "local-completions", "/v1/completions", tasks, "--batch_size", "4", "--apply_chat_template"
        )
        self.assertGreaterEqual(results["local_choice"]["acc,none"], 0.9)
        self.assertGreaterEqual(results["local_answer"]["exact_match,last_number"], 0.9)
        for sample in samples["local_choice"]:
            for (score, is_greedy), *_ in sample["filtered_resps"] if isinstance(sample["filtered_resps"][0][0], list) else [[pair] for pair in sample["filtered_resps"]]:
                self.assertLess(float(score), 0)
        self.assertGreater(self.server.metric(r'nfe_total\{purpose="score"\}'), 0)
        note(CLIENT, "completions", "log-likelihood")
        note(CLIENT, "completions", "answers")

    def test_chat(self):
        results, _ = self.run_tasks(
            "local-chat-completions", "/v1/chat/completions", ["local_answer"], "--apply_chat_template"
        )
        self.assertGreaterEqual(results["local_answer"]["exact_match,last_number"], 0.9)
        note(CLIENT, "chat", "answers")


if __name__ == "__main__":
    unittest.main()
