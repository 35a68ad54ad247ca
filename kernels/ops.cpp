// The free functions: the contract is checked once, here, then the entry of the device's table is enqueued with its
// arguments by value.
#include "kernels/ops.h"

#include <fmt/format.h>

#include "kernels/contract.h"

namespace llmops {
namespace {

template <class Args>
Status submit(Stream& stream, const char* name, const Op<Args>& op, const Args& args) {
  const Contract contract = contract_of(args, stream.device().id());
  LLMOPS_TRY(contract.status());
  if (!op.run) {
    const std::string_view table = stream.device().ops().name;
    return usage_error(fmt::format("{}: table {} has no kernel for {}", name, table, contract.operands()));
  }
  stream.enqueue(
      [&stream, run = op.run, args] {
        const Status status = run(stream, args);
        return status.ok() ? status : status.in(contract_of(args, stream.device().id()).operands());
      },
      name);
  return {};
}

}  // namespace

#define X(op, Args) \
  Status op(Stream& stream, const Args& args) { return submit(stream, #op, stream.device().ops().op, args); }
LLMOPS_OPS(X)
#undef X

}  // namespace llmops
