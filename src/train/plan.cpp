// What a run will be, and how its records look.
#include <algorithm>

#include "base/run.h"
#include "kernels/ops.h"
#include "layout/activations.h"
#include "layout/flops.h"
#include "layout/schedule.h"
#include "nn/parts.h"
#include "train/batch.h"
#include "train/peak.h"
#include "train/run.h"

namespace llmops {

Json to_json(const StepRecord& r) {
  Json json(Json::Object{});
  json["step"] = r.step;
  json["loss"] = r.loss;
  json["grad_norm"] = r.grad_norm;
  json["lr"] = r.lr;
  json["step_ms"] = r.step_ms;
  json["data_ms"] = r.data_ms;
  json["comm_ms"] = r.comm_ms;
  json["stall_ms"] = r.stall_ms;
  json["tokens_per_s"] = r.tokens_per_s;
  json["flops_per_s"] = r.flops_per_s;
  json["mfu"] = r.mfu > 0 ? Json(r.mfu) : Json();
  json["tokens"] = r.tokens;
  if (r.val_loss) json["val_loss"] = *r.val_loss;
  return json;
}

namespace {

// Windows of a pass and how many shards it takes: more than one while they fit a micro-batch and one product of the head.
// The first shards are the longest.
void plan_passes(const TrainOptions& o, int shards, int local, TrainPlan* plan) {
  const int64_t wanted = o.micro_batch > 0 ? o.micro_batch : std::max<int64_t>(1, kMicroTokens / o.seq);
  const auto windows = [&](int count) { return split_range(o.batch, shards, count - 1).end; };
  int count = 1;
  while (o.joins_shards && 2 * count <= std::min(local, kPartsMax) && windows(2 * count) <= wanted &&
         windows(2 * count) * o.seq <= kHeadRows)
    count *= 2;
  plan->shards_at_once = count;
  plan->micro_batch = std::min(wanted, windows(count));
  plan->windows = windows(local);
}

}  // namespace

TrainPlan plan_of(const TrainOptions& o, int world) {
  TrainPlan plan;
  const int shards = std::max(o.parallel.shards, world);
  plan.params = parameter_count(o.model);
  plan.tokens_per_step = o.batch * o.seq;
  plan_passes(o, shards, shards / world, &plan);
  plan.flops_per_step = train_flops_per_token(o.model, o.seq) * static_cast<double>(plan.tokens_per_step);
  const int64_t tokens = plan.micro_batch * o.seq;
  const std::vector<Group> groups = param_groups(o.model, o.parallel, 0);
  int64_t elems = 0, slices = 0;
  for (const Group& group : groups) {
    elems += group.elems;
    slices += slice_elems(group, o.parallel);
  }
  int levels = 1;
  for (int passes = shards / world / plan.shards_at_once; passes > 1; passes /= 2) ++levels;
  const bool master = o.dtype != DType::f32;
  plan.memory_bytes = {
      {"weights", elems * info(o.dtype).block_bytes},
      {"grads", elems * 4 * levels + part_bytes(groups, plan.shards_at_once)},
      {"optim", slices * 4 * (master ? 3 : 2)},
      {"saved", o.model.layers * bytes_of_rows(block_activations(o.model, tokens), o.dtype) +
                    bytes_of_rows(head_activations(o.model, tokens), o.dtype)},
      {"windows", plan.windows * (o.seq + 1) * 4 + BatchFeed::bytes_of(plan.windows, o.seq)},
      {"transient", bytes_of_rows(transient_activations(o.model, tokens), o.dtype)},
  };
  if (!o.out.empty()) plan.memory_bytes.push_back({"staging", plan.params * 12 / world});
  plan.checkpoint_bytes = plan.params * 12;
  return plan;
}

// Data sheets, collected in stas00/ml-engineering, compute/accelerator. Longer names first: "H200" begins with "H20".
double gpu_peak_flops_per_s(std::string_view name, DType dtype) {
  struct Row {
    std::string_view part;
    double bf16_tflops;
  };
  constexpr Row kRows[] = {{"GB300", 2500}, {"GB200", 2500},     {"B300", 2250},     {"B200", 2250}, {"GH200", 989.4},
                           {"H200", 989.4}, {"H100 PCIe", 756},  {"H100 NVL", 835.5}, {"H100", 989.4}, {"H20", 148},
                           {"A100", 312},   {"L40S", 362},       {"L40", 181},        {"L4", 121},     {"A40", 149.7},
                           {"A10G", 70},    {"A10", 125}};
  if (dtype != DType::bf16) return 0;
  for (const Row& row : kRows)
    if (name.find(row.part) != std::string_view::npos) return row.bf16_tflops * 1e12;
  return 0;
}

int64_t matmul_peak_size(const Device& device) { return device.kind() == DeviceKind::cpu ? 512 : 4096; }

double measure_matmul_flops_per_s(Device& device) {
  const int64_t size = matmul_peak_size(device);
  const auto buffer = device.alloc(3 * size * size * 4, Category::workspace);
  if (!buffer.ok()) return 0;
  const auto view = [&](int64_t i) { return buffer->view(DType::f32, {size, size}, i * size * size * 4); };
  double best_s = 1e30;
  const double stop_s = monotonic_s() + 0.08;
  do {
    const double start_s = monotonic_s();
    const Status status =
        matmul(device.compute(), {.a = view(0),
                                  .b = {.data = view(1), .pack = Pack::plain, .scales = {}, .group = 0},
                                  .out = view(2),
                                  .bias = {},
                                  .residual = {},
                                  .aux = {},
                                  .act_backward = {},
                                  .act = Activation::none,
                                  .a_trans = false,
                                  .b_trans = true,
                                  .accumulate = false});
    if (!status.ok() || !device.compute().sync().ok()) return 0;
    best_s = std::min(best_s, monotonic_s() - start_s);
  } while (monotonic_s() < stop_s);
  const auto n = static_cast<double>(size);
  return 2.0 * n * n * n / best_s;
}

}  // namespace llmops
