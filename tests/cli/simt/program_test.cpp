// The whole program on an emulated CUDA device (tests/support/simt.h) and an emulated NCCL: train, SIGTERM, resume, infer;
// and how a run ends when a device, a peer or memory fails.
#include <cmath>

#include "cli/work.h"

using namespace llmops;
using namespace llmops::test;

namespace {

// 5 MFLOP a step: 2 windows of 16 tokens of a model of 27,000 parameters.
struct DeviceWork : Work {
  explicit DeviceWork(const char* devices = "2") { options.env = {{"LLMOPS_SIMT_DEVICES", devices}}; }
  void set(const char* variable, const std::string& value) {
    std::erase_if(options.env, [&](const auto& entry) { return entry.first == variable; });
    options.env.emplace_back(variable, value);
  }
  // The order in which blocks, warps and streams run between what they wait for: "forward", "reverse" or a seed.
  void order(const std::string& schedule) { set("LLMOPS_SIMT_SCHEDULE", schedule); }
  RunResult train(std::vector<std::string> more) const {
    std::vector<std::string> words = {"--device", "cuda", "--batch", "2", "--val-windows", "2"};
    words.insert(words.end(), more.begin(), more.end());
    return Work::train(words);
  }
};

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("on the device a run has the CPU's losses but for rounding, and says where it ran") {
  for (const char* ranks : {"1", "2"}) {
    DeviceWork work;
    const RunResult cuda = work.train({"--steps", "4", "--ranks", ranks});
    REQUIRE_MESSAGE(cuda.code == 0, cuda.err);
    const RunResult cpu = work.train({"--steps", "4", "--ranks", ranks, "--device", "cpu"});
    REQUIRE_MESSAGE(cpu.code == 0, cpu.err);
    const std::vector<Json> got = steps_of(cuda.out), want = steps_of(cpu.out);
    REQUIRE(got.size() == 4);
    for (size_t i = 0; i < got.size(); ++i)
      CHECK(std::fabs(got[i].find("loss")->as_double() - want[i].find("loss")->as_double()) < 1e-4);
    CHECK(contains(cuda.out, "\"device\":\"SIMT shim\""));
    CHECK(contains(cuda.out, "\"matmul\":\"cuBLASLt 13.1.0\""));
    CHECK(contains(cpu.out, "\"device\":\"CPU "));
    if (std::string(ranks) == "1") continue;
    for (const char* schedule : {"reverse", "7", "8"}) {
      work.order(schedule);
      const RunResult other = work.train({"--steps", "4", "--ranks", ranks});
      REQUIRE_MESSAGE(other.code == 0, other.err);
      CHECK_MESSAGE(losses_of(other.out) == losses_of(cuda.out), std::string(schedule));
    }
  }
}

TEST_CASE("a machine without cuBLASLt trains by our own matmul, and says so") {
  DeviceWork work;
  work.options.env.emplace_back("LLMOPS_SIMT_NO_CUBLASLT", "1");
  const RunResult own = work.train({"--steps", "2"}), cpu = work.train({"--steps", "2", "--device", "cpu"});
  REQUIRE_MESSAGE(own.code == 0, own.err);
  CHECK(contains(own.out, "\"matmul\":\"llmops\""));
  CHECK(std::fabs(steps_of(own.out)[1].find("loss")->as_double() - steps_of(cpu.out)[1].find("loss")->as_double()) < 1e-4);
}

TEST_CASE("bf16, gradient accumulation and replicated updates run on the device") {
  DeviceWork work;
  const RunResult run = work.train({"--steps", "2", "--dtype", "bf16", "--batch", "4", "--micro-batch", "1", "--ranks", "2",
                                    "--zero", "0", "--val-every", "1"});
  REQUIRE_MESSAGE(run.code == 0, run.err);
  CHECK(steps_of(run.out).back().find("val_loss") != nullptr);
}

// More windows than a step has, so the memory of the first ones is used again.
TEST_CASE("the validation loss is the CPU's, over windows that come in several turns") {
  DeviceWork work;
  std::vector<double> losses;
  for (const char* device : {"cpu", "cuda"}) {
    const RunResult run = work.train({"--steps", "1", "--batch", "2", "--val-windows", "12", "--device", device});
    REQUIRE_MESSAGE(run.code == 0, run.err);
    losses.push_back(steps_of(run.out).back().find("val_loss")->as_double());
  }
  CHECK(std::fabs(losses[0] - losses[1]) < 1e-4);
}

// Each run with another order of streams, blocks and warps: a wait that is missing anywhere shows in the bits.
TEST_CASE("two ranks, stopped by SIGTERM and resumed, end with the files of the undisturbed run; its model generates") {
  DeviceWork work;
  work.order("11");
  const std::vector<std::string> run = {"--steps", "12", "--ranks", "2", "--save-every", "5"};
  const RunResult whole = work.train(into("whole", run, false));
  REQUIRE_MESSAGE(whole.code == 0, whole.err);
  work.options.signal_at = "stopped/step-00000005";
  work.order("reverse");
  const RunResult stopped = work.train(into("stopped", run, false));
  REQUIRE_MESSAGE(stopped.code == 75, stopped.err);
  work.options.signal_at = "";
  work.order("12");
  const RunResult more = work.train(into("stopped", run, true));
  REQUIRE_MESSAGE(more.code == 0, more.err);
  CHECK(steps_of(more.out).front().find("step")->as_int() == steps_of(stopped.out).back().find("step")->as_int() + 1);
  CHECK(files_of(work.dir / "stopped/step-00000012") == files_of(work.dir / "whole/step-00000012"));
  CHECK(work.llmops({"ckpt", "verify", "stopped"}).code == 0);

  // A batch of two, so that graphs of two sizes are recorded and replayed.
  work.dir.write("requests.jsonl",
                 "{\"prompt\": \"the \", \"max_tokens\": 7}\n{\"prompt\": \"with a ten\", \"max_tokens\": 3}\n");
  std::vector<std::string> texts;
  for (const char* device : {"cuda", "cpu"}) {
    const RunResult infer = work.llmops({"infer", "run", "--ckpt", "stopped", "--input", "requests.jsonl", "--device", device});
    REQUIRE_MESSAGE(infer.code == 0, infer.err);
    texts.push_back(infer.out);
  }
  CHECK(texts[0] == texts[1]);

  const auto fast = [&](const char* device) {
    return work.llmops({"infer", "run", "--ckpt", "stopped", "--prompt", "the ", "--max-tokens", "3", "--fast-matmul",
                        "--format", "json", "--device", device});
  };
  const RunResult by_library = fast("cuda"), on_cpu = fast("cpu");
  CHECK_MESSAGE(by_library.code == 0, by_library.err);
  CHECK(contains(by_library.out, "\"matmul\":\"cuBLASLt 13.1.0\""));
  CHECK(contains(by_library.err, "matmul by cuBLASLt 13.1.0: answers depend on --batch"));
  CHECK(on_cpu.code == 2);
  CHECK(contains(on_cpu.err, "--fast-matmul is for a CUDA device"));
}

std::string newest_step_in(const std::filesystem::path& run) {
  std::string newest;
  for (const auto& entry : std::filesystem::directory_iterator(run))
    if (const std::string name = entry.path().filename().string(); name.starts_with("step-")) newest = std::max(newest, name);
  return newest;
}

// What a rank that waits can say of a call that all have begun is that it waits: who holds it up, nobody can see.
TEST_CASE("NCCL's asynchronous error, a hang and a failed kernel end all ranks by the deadline, name the rank and the last step") {
  struct Case {
    const char *variable, *inject, *said;
  };
  // The 60th call of NCCL and the 3000th kernel are some steps, and so some saves, into the run.
  for (const Case& c : {Case{"LLMOPS_SIMT_NCCL", "error@1:60", "NCCL error 2 (unhandled system error): injected"},
                        Case{"LLMOPS_SIMT_NCCL", "hang@1:60", "all ranks are in it, and it is not through after 3 s"},
                        Case{"LLMOPS_SIMT_NCCL", "hang@0:60", "all ranks are in it, and it is not through after 3 s"},
                        Case{"LLMOPS_SIMT_INJECT", "hang@1:3000", "the device of rank 1 (pid "},
                        Case{"LLMOPS_SIMT_INJECT", "launch@1:3000", "injected failure"}}) {
    DeviceWork work;
    work.options.env.emplace_back(c.variable, c.inject);
    const RunResult run = work.train({"--steps", "100", "--ranks", "2", "--save-every", "1", "--out", "run", "--deadline", "3s"});
    INFO(c.inject, ": ", run.err);
    CHECK(run.code == 5);
    CHECK(run.wall_s < 60);
    CHECK((contains(run.err, "rank 0: ") || contains(run.err, "rank 1: ")));  // the parent says "rank 1 (pid"
    CHECK(contains(run.err, c.said));
    CHECK(contains(run.err, "the last good step is run/" + newest_step_in(work.dir / "run")));
    CHECK(work.llmops({"ckpt", "verify", "run"}).code == 0);
  }
}

TEST_CASE("a device alone that fails or hangs ends its run by the deadline, with one message and the last step") {
  struct Case {
    const char *inject, *said;
  };
  for (const Case& c : {Case{"launch@0:3000", "injected failure"}, Case{"hang@0:3000", "the device came no further for 2 s"}}) {
    DeviceWork work;
    work.set("LLMOPS_SIMT_INJECT", c.inject);
    const RunResult run = work.train({"--steps", "100", "--save-every", "1", "--out", "run", "--deadline", "2s", "--quiet"});
    INFO(c.inject, ": ", run.err);
    CHECK(run.code == 5);
    CHECK(contains(run.err, c.said));
    CHECK(contains(run.err, "the last good step is run/" + newest_step_in(work.dir / "run")));
    CHECK(std::ranges::count(run.err, '\n') == 1);
  }
}

TEST_CASE("a resume that ends before its first step names the last step too") {
  DeviceWork work;
  REQUIRE(work.train({"--steps", "2", "--ranks", "2", "--out", "run"}).code == 0);
  work.set("LLMOPS_SIMT_NCCL", "error@0:1");
  const RunResult run = work.train({"--steps", "4", "--ranks", "2", "--out", "run", "--resume", "auto"});
  INFO(run.err);
  CHECK(run.code == 5);
  CHECK(contains(run.err, "all_gather of weights #1: NCCL error 2"));
  CHECK(contains(run.err, "the last good step is run/step-00000002"));
}

TEST_CASE("infer run: a device that fails, hangs or is out of memory ends it with one message") {
  DeviceWork work;
  REQUIRE(work.train({"--steps", "1", "--device", "cpu", "--out", "run"}).code == 0);
  struct Case {
    const char* inject;
    int code;
    const char* said;
  };
  for (const Case& c : {Case{"launch@0:20", 5, "injected failure"}, Case{"hang@0:20", 5, "the device came no further for 1 s"},
                        Case{"alloc@0:5", 4, "in use: weights "}}) {
    work.set("LLMOPS_SIMT_INJECT", c.inject);
    const RunResult run = work.llmops({"infer", "run", "--ckpt", "run", "--prompt", "the ", "--max-tokens", "4", "--device",
                                       "cuda", "--deadline", "1s"});
    INFO(c.inject, ": ", run.err);
    CHECK(run.code == c.code);
    CHECK(contains(run.err, c.said));
    CHECK(std::ranges::count(run.err, '\n') == 1);
  }
}

TEST_CASE("memory that is out on one of two ranks, in the first step, ends both") {
  DeviceWork work;
  work.set("LLMOPS_SIMT_INJECT", "alloc@1:15");  // the workspace of the first matmul: all else is there before
  const RunResult run = work.train({"--steps", "2", "--ranks", "2", "--deadline", "5s"});
  INFO(run.err);
  CHECK(run.code == 4);
  CHECK(contains(run.err, "rank 1: matmul: "));
  CHECK(contains(run.err, "out of memory: workspace needs 32.00 MiB more; in use: weights "));
  CHECK(contains(run.err, "ended with code 4"));
}

TEST_CASE("out of device memory: exit 4, with what it was for and what is in use") {
  DeviceWork work;
  work.options.env.emplace_back("LLMOPS_SIMT_MEMORY_BYTES", "400000");
  for (const char* ranks : {"1", "2"}) {
    const RunResult run = work.train({"--steps", "2", "--ranks", ranks});
    INFO(run.err);
    CHECK(run.code == 4);
    CHECK(contains(run.err, "out of memory: "));
    CHECK(contains(run.err, "in use: weights "));
    CHECK(contains(run.err, "are free on CUDA device 0 (SIMT shim)"));
  }
}

TEST_CASE("--device: what is not there is said in one line, and that the CPU works") {
  DeviceWork none("0"), two;
  struct Case {
    const DeviceWork* work;
    std::string device, ranks;
    int code;
    const char* said;
  };
  for (const Case& c : {Case{&none, "cuda", "1", 4, "--device cpu"},
                        Case{&none, "cuda", "2", 4, "cudaGetDeviceCount gave error 100"},
                        Case{&none, "auto", "2", 0, ""},
                        Case{&two, "cuda", "3", 4, "3 ranks need a CUDA device each"},
                        Case{&two, "cuda:1", "2", 4, "found 1 from number 1 on"},
                        Case{&two, "cuda:2", "1", 4, "found 0 such devices"},
                        Case{&two, "cuda:GPU-0", "1", 4, "found 2 such devices"},
                        Case{&two, "auto", "3", 0, ""},
                        Case{&two, "gpu", "1", 2, "--device"},
                        Case{&two, "cuda:", "1", 2, "--device"},
                        Case{&two, "cuda:-1", "1", 2, "--device"},
                        Case{&none, "cuda:x", "1", 2, "--device"}}) {
    const RunResult run =
        c.work->Work::train({"--steps", "1", "--batch", "3", "--device", c.device, "--ranks", c.ranks, "--quiet"});
    INFO(c.device, " ", c.ranks, ": ", run.err);
    CHECK(run.code == c.code);
    CHECK(contains(run.err, c.said));
    CHECK(std::ranges::count(run.err, '\n') == (c.code == 0 ? 0 : 1));
    if (c.code != 0) CHECK(run.out == "");
  }
}

TEST_CASE("auto says in one line why it takes the CPU where there is a driver, and nothing where there is none") {
  DeviceWork none("0"), one("1"), old, bare;
  old.set("LLMOPS_SIMT_CAPABILITY", "75");
  bare.options.env.clear();
  struct Case {
    const DeviceWork* work;
    const char *ranks, *said;
  };
  for (const Case& c : {Case{&none, "1", "the driver (libcuda.so.1) sees no GPU"},
                        Case{&one, "2", "2 ranks need a CUDA device each, found 1"},
                        Case{&old, "2", "CUDA device 0 (SIMT shim) has compute capability 7.5"}}) {
    const RunResult run = c.work->train({"--steps", "1", "--device", "auto", "--ranks", c.ranks, "--out", "run"});
    CHECK(run.code == 0);
    const std::string note = std::string("llmops: train: --device auto takes the CPU: ") + c.said;
    CHECK(contains(run.err, note));
    CHECK(run.err.find("--device auto") == run.err.rfind("--device auto"));  // not by each rank
  }
  const RunResult answer =
      old.llmops({"infer", "run", "--ckpt", "run", "--prompt", "the", "--max-tokens", "1", "--device", "auto"});
  CHECK(answer.code == 0);
  CHECK(contains(answer.err, "llmops: infer run: --device auto takes the CPU: CUDA device 0 (SIMT shim) has"));
  CHECK(std::ranges::count(answer.err, '\n') == 1);
  const std::vector<std::string> automatic = {"--steps", "1", "--device", "auto"};
  const RunResult silent = bare.train(automatic);
  CHECK(silent.code == 0);
  CHECK(!contains(silent.err, "--device"));
  bare.set("LLMOPS_VERBOSE", "1");
  CHECK(contains(bare.train(automatic).err, "--device auto takes the CPU: no NVIDIA driver"));
}

TEST_CASE("a device before compute capability 8.0 is refused, and is none for auto") {
  DeviceWork work;
  work.set("LLMOPS_SIMT_CAPABILITY", "75");
  const RunResult asked = work.train({"--steps", "1"}), automatic = work.train({"--steps", "1", "--device", "auto"});
  CHECK(asked.code == 4);
  CHECK(contains(asked.err, "CUDA device 0 (SIMT shim) has compute capability 7.5, expected 8.0 or later"));
  CHECK(automatic.code == 0);
  CHECK(contains(automatic.out, "\"device\":\"CPU "));
}

TEST_CASE("--device auto and a UUID find the device") {
  DeviceWork two;
  for (const char* device : {"auto", "cuda:GPU-00000000-0000-0000-0000-000000000001"}) {
    const RunResult run = two.train({"--steps", "1", "--device", device});
    REQUIRE_MESSAGE(run.code == 0, run.err);
    CHECK(contains(run.out, "\"device\":\"SIMT shim\""));
  }
}
