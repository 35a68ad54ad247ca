// llmops ckpt ls: the tensors of a checkpoint.
#include "ckpt/checkpoint.h"
#include "ckpt/steps.h"
#include "cmds/command.h"

namespace llmops {
namespace {

struct Options {
  std::string dir;
};

void declare(Options& o, OptionTable& t) { t.argument("DIR", &o.dir, "step folder, or run folder: its newest step"); }

Json shape_of(const TensorSummary& tensor) {
  Json::Array shape;
  for (int64_t n : tensor.shape) shape.push_back(n);
  return shape;
}

Status run(Options& o, Context& context) {
  LLMOPS_ASSIGN(const std::string path, newest_step(o.dir));
  LLMOPS_ASSIGN(const std::unique_ptr<Checkpoint> checkpoint, Checkpoint::open(path));
  Report report{{"name", "tensor"},   {"dtype", "dtype"},
                {"shape", "shape"},   {"size_bytes", "size", Unit::bytes},
                {"chunks", "chunks"}, {"digest", "logical digest"}};
  const std::vector<TensorSummary> tensors = checkpoint->summaries();
  for (const TensorSummary& t : tensors)
    report.row({t.name, info(t.dtype).name, shape_of(t), t.bytes, t.chunks, to_hex(t.digest)});
  report.summary({"path", "path"}, path);
  report.summary({"step", "step"}, checkpoint->step());
  report.summary({"tensors", "tensors"}, static_cast<int64_t>(tensors.size()));
  report.summary({"size_bytes", "size", Unit::bytes}, checkpoint->bytes());
  report.extra("meta", checkpoint->meta());
  return context.print(report);
}

}  // namespace

Command ckpt_ls_command() {
  return make_command<Options, declare, run>({
      .name = "ckpt ls",
      .summary = "list the tensors of a checkpoint with their logical digests",
      .description = "A logical digest says what the elements of a tensor are, whatever ranks and files hold them: two "
                     "steps with equal digests hold equal "
                     "tensors, however they were saved. optim.m: and optim.v: are AdamW's moments. The content is not "
                     "read; ckpt verify does that.",
      .examples = {{"llmops ckpt ls runs/char", "the newest step of a run"},
                   {"llmops ckpt ls runs/char/step-00000200 --format csv", "one step, to compare with another"}},
  });
}

}  // namespace llmops
