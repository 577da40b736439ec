"""lm-eval's command line against the real server, on tasks from local files: log-likelihoods by `echo` of scored prompts, and answers."""

import json
import os
import subprocess
import sys
import tempfile
import unittest
from importlib.metadata import version
from pathlib import Path

from contract import note
from server import shared

CLIENT = ("lm-eval", version("lm_eval"))
SUMS = [(a, b) for a in (12, 25, 31, 48) for b in (9, 17, 30, 42)]
# How far the answers to choose from are from the right one, which is the first.
NEAR = (0, 10, -1, 2)

# lm-eval renders no template for prompts that it has the server tokenise, so the tasks write what the model's template writes. White
# space at the end of a context counts as part of what is scored, so a choice completes a sentence.
ASKED = "<|im_start|>user\\n{{question}}<|im_end|>\\n<|im_start|>assistant\\n"
DATA = """
dataset_path: json
dataset_kwargs: {data_files: {test: "DATA"}}
test_split: test
target_delimiter: ""
"""
ANSWER = """
output_type: generate_until
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["\\n"], max_gen_toks: 32}
filter_list: [{name: sum, filter: [{function: regex, regex_pattern: "= (\\\\d+)"}, {function: take_first}]}]
metric_list: [{metric: exact_match}]
"""
TASKS = {
    "local_choice": f"""
output_type: multiple_choice
doc_to_text: "{ASKED}{{{{start}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: 0
metric_list: [{{metric: acc}}]
""",
    "local_answer": f'{ANSWER}doc_to_text: "{ASKED}"\n',
    "local_chat_answer": ANSWER + 'doc_to_text: "{{question}}"\n',
    "local_rolling": f"""
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{ASKED}{{{{start}}}}{{{{choices[0]}}}}"
metric_list: [{{metric: byte_perplexity}}]
""",
}


class LmEval(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = shared()
        cls.folder = tempfile.TemporaryDirectory()
        data = Path(cls.folder.name, "sums.jsonl")
        with data.open("w") as file:
            for a, b in SUMS:
                row = {"question": f"{a} + {b} = ?", "start": f"{a} + {b} =", "answer": str(a + b)}
                file.write(json.dumps({**row, "choices": [f" {a + b + by}" for by in NEAR]}) + "\n")
        for name, task in TASKS.items():
            text = f"task: {name}\n{DATA}{task}".replace("DATA", str(data))
            Path(cls.folder.name, f"{name}.yaml").write_text(text)

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()
        cls.folder.cleanup()

    def run_tasks(self, model, path, tasks, *options):
        """The results of each task, and its samples."""
        out = Path(self.folder.name, tasks[0])
        arguments = f"model={self.server.model},base_url={self.server.url}{path},num_concurrent=4,max_retries=1"
        command = [sys.executable, "-m", "lm_eval", "run", "--model", model, "--model_args", arguments]
        command += ["--tasks", ",".join(tasks), "--include_path", self.folder.name]
        command += ["--output_path", str(out), "--log_samples", *options]
        # Its data sets are files here, so nothing is looked for elsewhere.
        offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": self.folder.name}
        ran = subprocess.run(command, env={**os.environ, **offline}, capture_output=True, text=True, timeout=600)
        self.assertEqual(ran.returncode, 0, ran.stdout[-2000:] + ran.stderr[-6000:])
        (results,) = out.rglob("results_*.json")
        samples = [json.loads(line) for file in out.rglob("samples_*.jsonl") for line in file.read_text().splitlines()]
        return json.loads(results.read_text())["results"], samples

    def test_log_likelihood(self):
        tasks = ["local_choice", "local_rolling"]
        before = self.server.metric(r'nfe_total\{purpose="score"\}')
        results, samples = self.run_tasks("local-completions", "/v1/completions", tasks, "--batch_size", "4")
        self.assertGreaterEqual(results["local_choice"]["acc,none"], 0.9)
        self.assertGreater(results["local_rolling"]["byte_perplexity,none"], 1)
        self.assertGreater(self.server.metric(r'nfe_total\{purpose="score"\}'), before)
        pairs = [sample["filtered_resps"] for sample in samples if "acc" in sample]
        self.assertEqual(len(pairs), len(SUMS))
        is_true = {"True": True, "False": False, True: True, False: False}
        greedy = [[is_true[is_greedy] for _, is_greedy in choices] for choices in pairs]
        # What the model answers is the greedy choice; a wrong sum is not.
        self.assertGreaterEqual(sum(first for first, *_ in greedy), 0.9 * len(SUMS))
        self.assertFalse(any(any(others) for first, *others in greedy if first))
        note(*CLIENT, "completions", "log-likelihood")

    def test_answers(self):
        results, _ = self.run_tasks("local-completions", "/v1/completions", ["local_answer"], "--batch_size", "4")
        self.assertGreaterEqual(results["local_answer"]["exact_match,sum"], 0.9)
        note(*CLIENT, "completions", "answers")

    def test_chat_answers(self):
        tasks = ["local_chat_answer"]
        path = "/v1/chat/completions"
        results, _ = self.run_tasks("local-chat-completions", path, tasks, "--apply_chat_template")
        self.assertGreaterEqual(results["local_chat_answer"]["exact_match,sum"], 0.9)
        note(*CLIENT, "chat", "answers")


if __name__ == "__main__":
    unittest.main()
