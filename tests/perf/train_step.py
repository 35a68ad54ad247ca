#!/usr/bin/env python3
"""The time of a training step of llmops beside PyTorch's and beside the floor that the matmuls set, in the same minutes.

usage: python tests/perf/train_step.py build/release/llmops [--model char|gpt2|all] [--rounds N] [--json FILE]
needs: torch, safetensors, numpy (PyPI). For rates of oneDNN and OpenBLAS in the floor also
       `ninja -C build/release perf_matmul` (and libdnnl2, libopenblas0). A benchmark, not a test: run it on an idle machine.
time:  about 3 minutes for char, 7 for gpt2 on 2 cores.

char = nanoGPT's CPU recipe: L4 H4 C128 T64 B12, vocabulary 65, no biases; gpt2 = GPT-2 124M, B4 T64, vocabulary 50304.
First both sides do 20 steps in float32 from the same weights on the same batches: the losses must agree to 1e-4 (else exit code 1);
torch's gradient norm is summed in float64 there, see clip_by_exact_norm.
Then rounds: llmops, torch eager, torch with fused AdamW, torch compiled with fused AdamW, llmops with other layouts, each for a few
steps, warm-up steps dropped. A step is forward, backward, clip 1.0, AdamW. A ratio is the median over the rounds of the ratio of
two medians of one round, so a machine that slows down for a minute slows down both. Spread: lowest and highest round.
Floor: FLOPs of the step's matmuls, attention over the causal half, each shape at the best rate that any library reached on it just
before (torch.mm; llmops, oneDNN, OpenBLAS by perf_matmul); "at one rate": all at the best rate of any shape, which is stricter.
Prints Markdown, writes everything measured to --json. Ratios outside the limits are named, and change no exit code.
"""
import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

for name in [n for n in os.environ if n.startswith(("OPENBLAS_", "MKL_", "DNNL_", "ONEDNN_", "OMP_", "LLMOPS_"))]:
    del os.environ[name]  # each library finds this CPU's kernels by itself

import numpy as np  # noqa: E402
import safetensors.torch  # noqa: E402
import torch  # noqa: E402
import torch.nn as nn  # noqa: E402
import torch.nn.functional as F  # noqa: E402

THREADS = 2
CHECK_STEPS = 20

MODELS = {
    "char": dict(layers=4, heads=4, width=128, seq=64, batch=12, vocab=65, positions=64, bias=False, lr=1e-3,
                 steps=60, warm=12, limit_torch=0.65, limit_floor=1.30),
    "gpt2": dict(layers=12, heads=12, width=768, seq=64, batch=4, vocab=50304, positions=1024, bias=True, lr=3e-4,
                 steps=6, warm=2, limit_torch=0.85, limit_floor=1.25),
}
LIMIT_RANKS, LIMIT_SHARDS, LIMIT_BUSY = 1.1, 1.2, 2.3


# ---- the same batches: which window is sample i (src/data/sample_order.cpp, src/base/rng.h)

def philox(key, low, high):
    """Philox4x32-10: the first word and the second."""
    c = [low & 0xFFFFFFFF, low >> 32, high & 0xFFFFFFFF, high >> 32]
    k0, k1 = key & 0xFFFFFFFF, key >> 32
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(p1 >> 32) ^ c[1] ^ k0, p1 & 0xFFFFFFFF, (p0 >> 32) ^ c[3] ^ k1, p0 & 0xFFFFFFFF]
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c[0], c[1]


class SampleOrder:
    def __init__(self, tokens, seq, seed):
        self.seq, self.seed = seq, seed
        self.windows = max(1, (tokens - seq) // seq)
        self.slack = tokens - 1 - self.windows * seq
        self.half = max(1, ((self.windows - 1).bit_length() + 1) // 2)

    def permute(self, x, epoch):
        mask = (1 << self.half) - 1
        left, right = x >> self.half, x & mask
        for step in range(6):
            word, _ = philox(self.seed, epoch, 2 << 56 | step << 40 | right)
            left, right = right, left ^ (word & mask)
        return left << self.half | right

    def offset(self, sample):
        epoch, window = divmod(sample, self.windows)
        high, low = philox(self.seed, epoch, 1 << 56)
        start = (high << 32 | low) % (self.slack + 1)
        while True:
            window = self.permute(window, epoch)
            if window < self.windows:
                return start + window * self.seq


# ---- PyTorch's side

class Block(nn.Module):
    def __init__(self, width, heads, bias):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width, bias=bias), nn.LayerNorm(width, bias=bias)
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width, bias=bias), nn.Linear(width, width, bias=bias)
        self.c_fc, self.c_out = nn.Linear(width, 4 * width, bias=bias), nn.Linear(4 * width, width, bias=bias)

    def forward(self, x):
        batch, seq, width = x.shape
        heads = self.c_attn(self.ln_1(x)).view(batch, seq, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.c_proj(mixed.transpose(1, 2).reshape(batch, seq, width))
        return x + self.c_out(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, m):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(m["vocab"], m["width"]), nn.Embedding(m["positions"], m["width"])
        self.h = nn.ModuleList(Block(m["width"], m["heads"], m["bias"]) for _ in range(m["layers"]))
        self.ln_f = nn.LayerNorm(m["width"], bias=m["bias"])

    def forward(self, ids, targets):
        x = self.wte(ids) + self.wpe.weight[:ids.shape[1]]
        for block in self.h:
            x = block(x)
        logits = F.linear(self.ln_f(x), self.wte.weight)
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())

    def load_hf(self, path):
        """GPT-2 as Hugging Face names it; its matrices are stored [in, out]. Zero biases are left out where there are none."""
        stored = safetensors.torch.load_file(path)
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                hf = name.replace("c_attn", "attn.c_attn").replace("c_proj", "attn.c_proj")
                hf = "transformer." + hf.replace("c_fc", "mlp.c_fc").replace("c_out", "mlp.c_proj")
                value = stored[hf]
                is_linear = value.ndim == 2 and ".h." in hf
                parameter.copy_(value.t() if is_linear else value)


class Torch:
    def __init__(self, m, weights, mode):
        self.bf16 = "bf16" in mode
        self.model = Gpt(m)
        self.model.load_hf(weights)
        matrices = [p for p in self.model.parameters() if p.ndim >= 2]
        vectors = [p for p in self.model.parameters() if p.ndim < 2]
        self.optimizer = torch.optim.AdamW([dict(params=matrices, weight_decay=0.1), dict(params=vectors, weight_decay=0.0)],
                                           lr=m["lr"], betas=(0.9, 0.95), eps=1e-8, fused="fused" in mode)
        self.forward = torch.compile(self.model) if "compiled" in mode else self.model

    def step(self, windows, clip=nn.utils.clip_grad_norm_):
        start = time.perf_counter()
        ids = torch.from_numpy(windows)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.bf16):
            loss = self.forward(ids[:, :-1], ids[:, 1:])
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        clip(self.model.parameters(), 1.0)
        self.optimizer.step()
        value = loss.item()
        return value, (time.perf_counter() - start) * 1e3


def clip_by_exact_norm(parameters, limit):
    """clip_grad_norm_ on CPU sums squares in float32: for the 38 M elements of GPT-2's embedding the norm is 0.1 % low, which
    moves torch's losses 2e-4 away from those of torch in float64. Comparing losses needs a norm that is right."""
    gradients = [p.grad for p in parameters]
    norm = sum(g.double().square().sum() for g in gradients).sqrt().item()
    for gradient in gradients:
        gradient.mul_(min(1.0, limit / norm))


def modes(bf16):
    names = ["torch eager", "torch fused", "torch compiled+fused"]
    return names + [name + " bf16" for name in names[1:]] if bf16 else names


# ---- our side

class Llmops:
    def __init__(self, binary, folder, m):
        self.binary, self.folder, self.m = str(pathlib.Path(binary).resolve()), folder, m
        self.model = ["--model", "char"]
        if m["vocab"] != 65:
            config = dict(model_type="gpt2", architectures=["GPT2LMHeadModel"], n_layer=m["layers"], n_head=m["heads"], n_embd=m["width"],
                          n_positions=m["positions"], vocab_size=m["vocab"], activation_function="gelu_new", layer_norm_epsilon=1e-5,
                          resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, tie_word_embeddings=True, bos_token_id=None, eos_token_id=None)
            (folder / "config.json").write_text(json.dumps(config))
            self.model = ["--model", "./config.json"]

    def __call__(self, *words):
        done = subprocess.run([self.binary, *map(str, words)], cwd=self.folder, capture_output=True, text=True)
        if done.returncode != 0:
            print(f"llmops {' '.join(map(str, words))}: exit code {done.returncode}: {done.stderr}", file=sys.stderr)
            sys.exit(2)
        return done.stdout

    def train(self, steps, *words, ranks=1, threads=THREADS):
        """The records of the steps."""
        out = self("train", *self.model, "--data", "tokens.bin", "--data-format", "u16", "--val-fraction", 0, "--seq", self.m["seq"],
                   "--batch", self.m["batch"], "--seed", 1, "--steps", steps, "--lr", self.m["lr"], "--lr-schedule", "constant", "--warmup", 0,
                   "--ranks", ranks, "--threads", threads, "--format", "jsonl", *words)
        return [record for record in map(json.loads, out.splitlines()) if "step" in record]

    def times(self, *words, **layout):
        return [record["step_ms"] for record in self.train(self.m["steps"], *words, **layout)][self.m["warm"]:]


def write_tokens(folder, m):
    """Skewed ids, so that there is something to learn; the highest id occurs, which tells the vocabulary of char."""
    vocab = min(m["vocab"], 50257)
    tokens = (vocab * np.random.default_rng(1).random(200_000) ** 4).astype(np.uint16)
    tokens[-1] = vocab - 1
    tokens.tofile(folder / "tokens.bin")
    return tokens.astype(np.int64)


# ---- the floor

def matmul_shapes(m):
    """(name, rows, out, in, times per step) of the forward products of all layers."""
    rows, width = m["batch"] * m["seq"], m["width"]
    layers = m["layers"]
    return [("qkv", rows, 3 * width, width, layers), ("proj", rows, width, width, layers), ("up", rows, 4 * width, width, layers),
            ("down", rows, width, 4 * width, layers), ("head", rows, m["vocab"], width, 1)]


def attention_flops(m):
    """Scores and values, forward and twice backward; a query sees (seq + 1) / 2 keys on average."""
    return 3 * 2 * 2 * m["layers"] * m["batch"] * m["seq"] * m["width"] * (m["seq"] + 1) / 2


def products(m):
    """Each product of the step: (m, n, k, left transposed, right transposed, times per step)."""
    for _, rows, out, inner, times in matmul_shapes(m):
        yield rows, out, inner, False, True, times   # y = x w^T
        yield rows, inner, out, False, False, times  # dx = dy w
        yield out, inner, rows, True, False, times   # dw = dy^T x


def torch_rates(m, seconds=0.25):
    rates = {}
    for rows, columns, inner, left, right, _ in products(m):
        a = torch.randn(inner, rows).t() if left else torch.randn(rows, inner)
        b = torch.randn(columns, inner).t() if right else torch.randn(inner, columns)
        out = torch.empty(rows, columns)
        best, end = float("inf"), time.perf_counter() + seconds
        while time.perf_counter() < end:
            start = time.perf_counter()
            torch.mm(a, b, out=out)
            best = min(best, time.perf_counter() - start)
        rates[rows, columns, inner, left, right] = 2e-9 * rows * columns * inner / best
    return rates


def perf_matmul_rates(program, m):
    """Best rates of llmops, oneDNN and OpenBLAS on the shapes that perf_matmul has."""
    if not program.exists():
        return {}, f"{program} is not built (ninja perf_matmul): rates are torch.mm's alone"
    only = ["--only", "gpt2"] if m["width"] == 768 else []
    done = subprocess.run([program, "--threads", str(THREADS), "--seconds", "0.25", *only], capture_output=True, text=True)
    if done.returncode != 0:
        return {}, f"{program}: exit code {done.returncode}: {done.stderr.strip()}"
    lines = done.stdout.splitlines()
    libraries = re.search(r"(llmops[^;]*);", lines[0]).group(1).split(", ")
    rates = {}
    for line in lines[1:]:
        words = line[18:].replace("x", " ").split()  # M N K, NT, best and median of each library
        shape = tuple(map(int, words[:3])) + (words[3][0] == "T", words[3][1] == "T")
        if "packed" not in line[:18]:
            rates[shape] = dict(zip(libraries, map(float, words[4::2])))
    return rates, ""


def read_bandwidth(seconds=2.0):
    """GB/s of reading 1 GiB with all threads."""
    data = torch.ones(1 << 28)
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        data.sum()
        best = min(best, time.perf_counter() - start)
    return data.numel() * 4e-9 / best


def floor_of(m, perf_matmul):
    by_shape = {shape: {"torch.mm": rate} for shape, rate in torch_rates(m).items()}
    others, note = perf_matmul_rates(perf_matmul, m)
    for shape, rates in others.items():
        if shape in by_shape:
            by_shape[shape].update(rates)
    best = max(max(rates.values()) for rates in by_shape.values())
    flops, floor_ms = attention_flops(m), attention_flops(m) / best * 1e-6
    for *shape, times in products(m):
        work = 2 * shape[0] * shape[1] * shape[2] * times
        flops += work
        floor_ms += work / max(by_shape[tuple(shape)].values()) * 1e-6
    rates = [dict(m=s[0], n=s[1], k=s[2], left_transposed=s[3], right_transposed=s[4], gflop_per_s=r) for s, r in by_shape.items()]
    return dict(gflop=flops * 1e-9, best_gflop_per_s=best, floor_ms=floor_ms, floor_one_rate_ms=flops / best * 1e-6, rates=rates, note=note)


# ---- the run

def check_losses(m, llmops, tokens, weights):
    """The losses of CHECK_STEPS steps of both, and their largest difference."""
    ours = [record["loss"] for record in llmops.train(CHECK_STEPS)]
    theirs, reference = [], Torch(m, weights, "eager")
    for step in range(CHECK_STEPS):
        theirs.append(reference.step(windows_of(m, tokens, step), clip_by_exact_norm)[0])
    return dict(ours=ours, torch=theirs, largest_difference=max(abs(a - b) for a, b in zip(ours, theirs)))


def windows_of(m, tokens, step):
    order = SampleOrder(len(tokens), m["seq"], 1)
    offsets = [order.offset(step * m["batch"] + i) for i in range(m["batch"])]
    return np.stack([tokens[o:o + m["seq"] + 1] for o in offsets])


def busy(count):
    return [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]


def with_busy_loops(work):
    loops = busy(THREADS)
    try:
        return work()
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def measure(m, llmops, tokens, weights, rounds, bf16, notes):
    """{what: [median of each round]} and all samples."""
    peers = {}
    for mode in modes(bf16):
        try:
            peers[mode] = Torch(m, weights, mode)
            for step in range(max(3, m["warm"])):
                peers[mode].step(windows_of(m, tokens, step))
        except Exception as error:  # a compiler that torch.compile misses, for example
            peers.pop(mode, None)
            notes.append(f"{mode} is left out: {type(error).__name__}: {str(error).splitlines()[0][:160]}")
    batches = [windows_of(m, tokens, step) for step in range(m["steps"] - m["warm"])]
    layouts = {
        "llmops": lambda: llmops.times(),
        **{mode: lambda peer=peer: [peer.step(batch)[1] for batch in batches] for mode, peer in peers.items()},
        "llmops 2 ranks x 1 thread": lambda: llmops.times(ranks=2, threads=1),
        "llmops --shards 4": lambda: llmops.times("--shards", 4),
        "llmops beside 2 busy loops": lambda: with_busy_loops(llmops.times),
    }
    if bf16:
        layouts["llmops bf16"] = lambda: llmops.times("--dtype", "bf16")
    samples = {name: [] for name in layouts}
    for index in range(rounds):
        names = list(layouts) if index % 2 == 0 else list(reversed(layouts))  # no side always goes first
        for name in names:
            samples[name].append(layouts[name]())
            print(f"  round {index + 1} of {rounds}: {name}: {statistics.median(samples[name][-1]):.2f} ms", file=sys.stderr, flush=True)
    return samples


def medians(samples, name):
    return [statistics.median(one) for one in samples[name]]


def ratio(samples, over, under):
    return statistics.median(a / b for a, b in zip(medians(samples, over), medians(samples, under)))


def best_of(samples, names):
    """The peer whose median over all rounds is lowest."""
    present = [name for name in names if name in samples]
    return min(present, key=lambda name: statistics.median(medians(samples, name)))


def print_results(name, m, samples, floor, bandwidth, check, parameters, notes):
    ours = statistics.median(medians(samples, "llmops"))
    tokens = m["batch"] * m["seq"]
    print(f"\n### {name}: L{m['layers']} C{m['width']} T{m['seq']} B{m['batch']} V{m['vocab']}, {parameters / 1e6:.2f} M parameters, "
          f"{floor['gflop']:.1f} GFLOP per step, {THREADS} threads\n")
    print(f"Losses of {CHECK_STEPS} steps from the same weights and batches: {check['ours'][0]:.4f} -> {check['ours'][-1]:.4f}, largest "
          f"difference from torch {check['largest_difference']:.1e}\n")
    print("| step time | median ms | rounds' medians, low - high | tok/s |\n|---|---|---|---|")
    for what in samples:
        each = medians(samples, what)
        print(f"| {what} | {statistics.median(each):.2f} | {min(each):.2f} - {max(each):.2f} | {tokens / statistics.median(each) * 1e3:.0f} |")
    print(f"| floor, each shape at its best rate | {floor['floor_ms']:.2f} | | |")
    print(f"| floor, all at one rate ({floor['best_gflop_per_s']:.0f} GFLOP/s) | {floor['floor_one_rate_ms']:.2f} | | |")
    peer = best_of(samples, modes(False))
    adamw_ms = 28 * parameters / bandwidth * 1e-6 if name == "gpt2" else 0
    over = f" + AdamW {adamw_ms:.0f} ms ({28e-9 * parameters:.2f} GB at {bandwidth:.1f} GB/s)" if adamw_ms else ""
    rows = [(f"llmops / {peer}", ratio(samples, "llmops", peer), m["limit_torch"]),
            (f"llmops / (floor by shape{over})", ours / (floor["floor_ms"] + adamw_ms), m["limit_floor"]),
            (f"llmops / (floor at one rate{over})", ours / (floor["floor_one_rate_ms"] + adamw_ms), m["limit_floor"]),
            ("2 ranks x 1 thread / 1 rank x 2 threads", ratio(samples, "llmops 2 ranks x 1 thread", "llmops"), LIMIT_RANKS),
            ("--shards 4 / without", ratio(samples, "llmops --shards 4", "llmops"), LIMIT_SHARDS),
            ("beside 2 busy loops / idle", ratio(samples, "llmops beside 2 busy loops", "llmops"), LIMIT_BUSY)]
    if "llmops bf16" in samples:
        peer = best_of(samples, [mode for mode in modes(True) if "bf16" in mode])
        rows += [("bf16 / fp32", ratio(samples, "llmops bf16", "llmops"), 1.0), (f"bf16 / {peer}", ratio(samples, "llmops bf16", peer), 1.0)]
    print("\n| ratio | value | limit | |\n|---|---|---|---|")
    for what, value, limit in rows:
        print(f"| {what} | {value:.3f} | {limit} | {'within' if value <= limit else '**above**'} |")
    for note in notes:
        print(f"\nNote: {note}.")
    sys.stdout.flush()
    return [dict(what=what, value=value, limit=limit) for what, value, limit in rows]


def run_model(name, args):
    m = MODELS[name]
    notes = []
    with tempfile.TemporaryDirectory(dir=args.scratch) as path:
        folder = pathlib.Path(path)
        tokens = write_tokens(folder, m)
        llmops = Llmops(args.binary, folder, m)
        llmops.train(1, "--lr", 0, "--out", "start")  # initial weights: a step with learning rate 0 leaves them as they are
        llmops("ckpt", "export", "start", "--to", "hf", "hf")
        weights = folder / "hf" / "model.safetensors"
        check = check_losses(m, llmops, tokens, weights)
        if not check["largest_difference"] <= 1e-4:
            print(f"{name}: losses differ by {check['largest_difference']:.2e}, expected at most 1e-4\n"
                  f"llmops {check['ours']}\ntorch  {check['torch']}")
            return None
        if args.check_only:
            print(f"{name}: losses of {CHECK_STEPS} steps differ by {check['largest_difference']:.1e} at most ({check['ours'][0]:.4f} -> {check['ours'][-1]:.4f})")
            return dict(check=check)
        floor = floor_of(m, args.perf_matmul or pathlib.Path(args.binary).resolve().parent / "perf_matmul")
        if floor["note"]:
            notes.append(floor["note"])
        bandwidth = read_bandwidth()
        bf16 = bool({"avx512_bf16", "amx_bf16"} & set(cpu_flags()))
        if not bf16:
            notes.append("this CPU has no BF16 instructions: bf16 is not measured")
        samples = measure(m, llmops, tokens, weights, args.rounds, bf16, notes)
    parameters = sum(p.numel() for p in Gpt(m).parameters())
    ratios = print_results(name, m, samples, floor, bandwidth, check, parameters, notes)
    return dict(check=check, floor=floor, read_gb_per_s=bandwidth, samples_ms=samples, ratios=ratios, notes=notes)


def cpu_lines(key):
    return [line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo") if line.startswith(key)]


def cpu_flags():
    return cpu_lines("flags")[0].split()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", help="the llmops to measure")
    parser.add_argument("--model", choices=[*MODELS, "all"], default="all")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--check-only", action="store_true", help="compare the losses and measure nothing")
    parser.add_argument("--perf-matmul", type=pathlib.Path, help="the program perf_matmul; else the one beside the binary")
    parser.add_argument("--json", type=pathlib.Path, help="write all samples here")
    parser.add_argument("--scratch", help="folder for weights and data, 4 GB for gpt2; else that of temporary files")
    args = parser.parse_args()
    torch.set_num_threads(THREADS)
    version = json.loads(subprocess.run([args.binary, "version", "--format", "json"], capture_output=True, text=True, check=True).stdout)
    machine = f"{cpu_lines('model name')[0]}, {os.cpu_count()} cores, {', '.join(version['instruction_sets_found'])}"
    load = os.getloadavg()[0]
    print(f"{machine}; llmops {version['version']} ({version['commit']}), torch {torch.__version__}; load {load:.2f} at the start")
    results = {}
    for name in MODELS if args.model == "all" else [args.model]:
        results[name] = run_model(name, args)
    if args.json:
        args.json.write_text(json.dumps(dict(machine=machine, load=load, llmops=version, torch=torch.__version__, threads=THREADS, models=results), indent=1))
    return 1 if None in results.values() else 0


if __name__ == "__main__":
    sys.exit(main())
