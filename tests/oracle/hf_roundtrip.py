#!/usr/bin/env python3
"""Models that travel between llmops and Hugging Face transformers: both sides must compute the same.

usage: python tests/oracle/hf_roundtrip.py build/release/llmops [--keep DIR]
needs: torch, transformers 4.45 or newer, safetensors (PyPI). Not part of the test suite. Takes about a minute.

There: llmops trains small GPT-2, char, Llama and Qwen3 models, `llmops ckpt export` writes them, transformers loads them in
float32. Back: transformers makes models with random weights and saves them (whole, and in many shards), llmops reads them.
Either way these must agree:
  val loss    the mean loss of the validation windows that `llmops train` printed (there only)          within 1e-4
  log-probs   of 24 random tokens, each in its context. llmops prints no logits, but the validation loss of one
              window of n targets times n is a sum of n log-probabilities: differences give each            within 1e-4
  greedy      every token that `llmops infer run` picks has transformers' highest logit                  within 1e-4
  weights     what comes back after import, a step with learning rate 0, and export (back only)          bit for bit
Prints a Markdown table; exit code 1 when a row fails, 2 when a command does.
"""
import argparse
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile

for name in ("OPENBLAS_CORETYPE", "MKL_ENABLE_INSTRUCTIONS", "DNNL_MAX_CPU_ISA"):
    os.environ.pop(name, None)

import torch  # noqa: E402  (reads the environment when it loads)
import transformers  # noqa: E402

TOLERANCE = 1e-4
WORDS = "the rank of a tensor and its shard in step was gradient with loss to model one two under light water".split()


def sample_text(size, seed):
    draw = random.Random(seed)
    text = ""
    while len(text) < size:
        text += draw.choice(WORDS) + draw.choice("      \n.,;")
    return text[:size]


class Llmops:
    def __init__(self, binary, folder):
        self.binary, self.folder = str(pathlib.Path(binary).resolve()), folder

    def __call__(self, *words, stdin=None):
        done = subprocess.run([self.binary, *map(str, words)], cwd=self.folder, input=stdin, capture_output=True, text=True)
        if done.returncode != 0:
            print(f"llmops {' '.join(map(str, words))}: exit code {done.returncode}: {done.stderr}", file=sys.stderr)
            sys.exit(2)
        return done.stdout

    def train(self, *words):
        """The record of the last step."""
        lines = self("train", "--format", "jsonl", "--threads", 1, *words).splitlines()
        return [record for record in map(json.loads, lines) if "step" in record][-1]

    def log_probs(self, model, tokenizer, text):
        """Of each character of `text` but the first, given those before it."""
        sums = [0.0]
        for targets in range(1, len(text)):
            (self.folder / "window.txt").write_text(text[:targets + 1])
            record = self.train("--init-from", model, "--data", "text.txt", "--val-data", "window.txt", "--tokenizer", tokenizer,
                                "--seq", targets, "--batch", 1, "--steps", 1, "--lr", 0)
            sums.append(-record["val_loss"] * targets)
        return [b - a for a, b in zip(sums, sums[1:])]

    def greedy(self, model, prompts, count):
        lines = "".join(json.dumps({"prompt": ids}) + "\n" for ids in prompts)
        out = self("infer", "run", "--ckpt", model, "--input", "-", "--max-tokens", count, "--temperature", 0, "--ignore-eos",
                   "--threads", 1, *(["--tokenizer", "byte"] if (self.folder / model / "config.json").exists() else []), stdin=lines)
        return [json.loads(line)["text"] for line in out.splitlines()]


def load(path):
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    return model.eval()


@torch.no_grad()
def losses_of(model, ids):
    """-log p of each token but the first of each row, in double."""
    logits = model(ids[:, :-1]).logits.double()
    return torch.nn.functional.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")


@torch.no_grad()
def greedy_gap(model, prompt, answer):
    """How far below transformers' highest logit the tokens of `answer` are, at worst."""
    logits = model(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1:-1].double()
    chosen = logits.gather(1, torch.tensor(answer)[:, None])[:, 0]
    return (logits.max(1).values - chosen).max().item()


class Table:
    def __init__(self):
        self.failed = False
        print("| model | way | compared | largest difference | verdict |\n|---|---|---|---|---|")

    def row(self, model, way, what, difference, limit=TOLERANCE):
        passed = difference <= limit  # false for NaN
        self.failed |= not passed
        print(f"| {model} | {way} | {what} | {difference:.2e} | {'ok' if passed else 'FAIL'} |", flush=True)


def compare(table, llmops, name, way, hf_dir, ckpt, model, tokenizer, encode, alphabet):
    draw = random.Random(name)
    text = "".join(draw.choice(alphabet) for _ in range(25))
    ours = llmops.log_probs(hf_dir, tokenizer, text)
    theirs = -losses_of(model, torch.tensor([encode(text)]))[0]
    table.row(name, way, "log-probs of 24 tokens", max(abs(a - b) for a, b in zip(ours, theirs.tolist())))
    prompts = [encode("".join(draw.choice(alphabet) for _ in range(length))) for length in (1, 5, 12, 20)]
    answers = llmops.greedy(ckpt, prompts, 24)
    gap = 0.0
    for prompt, answer in zip(prompts, answers):
        gap = max(gap, greedy_gap(model, prompt, encode(answer)) if len(answer) == 24 else float("nan"))
    table.row(name, way, "greedy, 4 x 24 tokens", gap)


def there(table, llmops, name, descriptor, tokenizer, steps):
    """Trained here, exported, computed by transformers."""
    text = (llmops.folder / "text.txt").read_text()
    alphabet = "".join(sorted(set(text)))
    encode = (lambda s: [alphabet.index(c) for c in s]) if tokenizer == "char" else (lambda s: list(s.encode()))
    run, out, seq = f"run-{name}", f"hf-{name}", 64
    record = llmops.train("--model", descriptor, "--data", "text.txt", "--tokenizer", tokenizer, "--seq", seq, "--batch", 8,
                          "--steps", steps, "--lr", 3e-3, "--warmup", 2, "--out", run)
    llmops("ckpt", "export", run, "--to", "hf", out)
    model = load(llmops.folder / out)
    held = encode(text)[int(len(text) * (1 - 0.1)):]  # the end of the data, as many whole windows as there are up to 256
    windows = torch.tensor([held[i * seq:(i + 1) * seq + 1] for i in range(min(256, (len(held) - 1) // seq))])
    table.row(name, "there", f"val loss {record['val_loss']:.4f}", abs(losses_of(model, windows).mean().item() - record["val_loss"]))
    compare(table, llmops, name, "there", out, run, model, tokenizer, encode, alphabet)


def back(table, llmops, name, config, shard_size):
    """Made by transformers with a vocabulary of bytes, read here."""
    torch.manual_seed(7)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():  # every weight random, norms and biases too
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
        model.get_output_embeddings().weight[128:] = 0  # logits 0, never the highest: answers are ASCII, so text tells the tokens
    model.save_pretrained(llmops.folder / name, max_shard_size=shard_size)
    files = len(list((llmops.folder / name).glob("*.safetensors")))
    if (files > 1) != (shard_size == "100KB"):
        sys.exit(f"{name}: {files} weight files with max_shard_size {shard_size}")
    printable = "".join(map(chr, range(32, 127)))
    compare(table, llmops, name, "back", name, name, model, "byte", lambda s: list(s.encode()), printable)
    llmops.train("--init-from", name, "--data", "text.txt", "--seq", 16, "--batch", 1, "--steps", 1, "--lr", 0, "--out", f"run-{name}")
    llmops("ckpt", "export", f"run-{name}", "--to", "hf", f"again-{name}")
    was, now = model.state_dict(), load(llmops.folder / f"again-{name}").state_dict()
    changed = set(was) ^ set(now) | {key for key in set(was) & set(now) if not torch.equal(was[key], now[key])}
    table.row(name, "back", f"{len(was)} weights: changed", len(changed), 0)


def configs():
    """Small, with the features that the three families have."""
    common = dict(vocab_size=256, bos_token_id=None, eos_token_id=None)
    llama = dict(common, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                 max_position_embeddings=256, pad_token_id=None)
    gpt2 = transformers.GPT2Config(n_layer=2, n_embd=64, n_head=4, n_positions=128, **common)
    scaled = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
              "original_max_position_embeddings": 32}
    return {
        "hf-made-gpt2": (gpt2, "5GB"),
        "hf-made-gpt2-sharded": (gpt2, "100KB"),
        "hf-made-llama": (transformers.LlamaConfig(tie_word_embeddings=False, **llama), "5GB"),
        "hf-made-llama-sharded": (transformers.LlamaConfig(tie_word_embeddings=True, rope_parameters=scaled, **llama), "100KB"),
        "hf-made-qwen3": (transformers.Qwen3Config(head_dim=16, tie_word_embeddings=True, **llama), "5GB"),
    }


def run_all(binary, folder):
    llmops = Llmops(binary, folder)
    torch.set_num_threads(2)
    transformers.utils.logging.disable_progress_bar()
    (folder / "text.txt").write_text(sample_text(60000, 1))
    print(f"{llmops('--version').strip()}, torch {torch.__version__}, transformers {transformers.__version__}\n")
    table = Table()
    for name, descriptor, tokenizer, steps in (("gpt2", "gpt2:2x64", "byte", 40), ("char", "char", "char", 30),
                                               ("llama", "llama:2x64", "byte", 40), ("qwen3", "qwen3:2x64", "byte", 40)):
        there(table, llmops, name, descriptor, tokenizer, steps)
    for name, (config, shard_size) in configs().items():
        back(table, llmops, name, config, shard_size)
    return 1 if table.failed else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", help="the llmops to test")
    parser.add_argument("--keep", type=pathlib.Path, help="leave everything in this folder")
    args = parser.parse_args()
    if args.keep:
        args.keep.mkdir(parents=True)
        return run_all(args.binary, args.keep.resolve())
    with tempfile.TemporaryDirectory() as folder:
        return run_all(args.binary, pathlib.Path(folder))


if __name__ == "__main__":
    sys.exit(main())
