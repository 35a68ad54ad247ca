#include "layout/params.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "base/checked.h"

namespace llmops {
namespace {

constexpr int64_t kAlign = 16;  // a parameter starts on a 64-byte line

// Collects the parameters of one group: fused pieces lie one after the other along `axis`.
class GroupBuilder {
 public:
  GroupBuilder(const std::vector<LogicalTensor>& tensors, const std::unordered_map<std::string, int>& index)
      : tensors_(tensors), index_(index) {}

  void add(Role role, const std::vector<std::string>& names, int axis = 0) {
    if (!index_.contains(names.front())) return;  // the model has no such parameter
    Param param{.role = role, .shape = {}, .decay = false, .offset = 0, .pieces = {}};
    for (const std::string& name : names) {
      const int logical = index_.at(name);
      const LogicalTensor& tensor = tensors_[logical];
      Shape at(tensor.shape.size(), 0);
      if (param.pieces.empty()) {
        param.shape = tensor.shape;
        param.decay = tensor.decay;
      } else {
        at[axis] = param.shape[axis];
        param.shape[axis] += tensor.shape[axis];
      }
      param.pieces.push_back({logical, whole(tensor.shape), std::move(at)});
    }
    params_.push_back(std::move(param));
  }

  Group finish(std::string name, int64_t multiple) {
    Group group{.name = std::move(name), .params = std::move(params_)};
    std::ranges::stable_partition(group.params, [](const Param& p) { return p.decay; });
    int64_t offset = 0;
    for (Param& param : group.params) {
      param.offset = offset;
      offset += round_up(elems_of(param.shape), kAlign);
      if (param.decay) group.decay_elems = offset;
    }
    group.elems = round_up(offset, multiple);
    params_.clear();
    return group;
  }

 private:
  const std::vector<LogicalTensor>& tensors_;
  const std::unordered_map<std::string, int>& index_;
  std::vector<Param> params_;
};

void add_gpt2_block(GroupBuilder& b, const std::string& p) {
  const auto fused = [](const std::string& name) { return std::vector{name + "#q", name + "#k", name + "#v"}; };
  b.add(Role::norm1, {p + "ln_1.weight"});
  b.add(Role::norm1_bias, {p + "ln_1.bias"});
  b.add(Role::qkv, fused(p + "attn.c_attn.weight"), 1);
  b.add(Role::qkv_bias, fused(p + "attn.c_attn.bias"));
  b.add(Role::attn_out, {p + "attn.c_proj.weight"});
  b.add(Role::attn_out_bias, {p + "attn.c_proj.bias"});
  b.add(Role::norm2, {p + "ln_2.weight"});
  b.add(Role::norm2_bias, {p + "ln_2.bias"});
  b.add(Role::mlp_up, {p + "mlp.c_fc.weight"});
  b.add(Role::mlp_up_bias, {p + "mlp.c_fc.bias"});
  b.add(Role::mlp_down, {p + "mlp.c_proj.weight"});
  b.add(Role::mlp_down_bias, {p + "mlp.c_proj.bias"});
}

void add_llama_block(GroupBuilder& b, const std::string& p) {
  const std::string a = p + "self_attn.", m = p + "mlp.";
  b.add(Role::norm1, {p + "input_layernorm.weight"});
  for (const char* kind : {".weight", ".bias"}) {
    const bool bias = kind[1] == 'b';
    b.add(bias ? Role::qkv_bias : Role::qkv, {a + "q_proj" + kind, a + "k_proj" + kind, a + "v_proj" + kind});
    b.add(bias ? Role::attn_out_bias : Role::attn_out, {a + "o_proj" + kind});
    b.add(bias ? Role::mlp_up_bias : Role::mlp_up, {m + "gate_proj" + kind, m + "up_proj" + kind});
    b.add(bias ? Role::mlp_down_bias : Role::mlp_down, {m + "down_proj" + kind});
  }
  b.add(Role::q_norm, {a + "q_norm.weight"});
  b.add(Role::k_norm, {a + "k_norm.weight"});
  b.add(Role::norm2, {p + "post_attention_layernorm.weight"});
}

}  // namespace

Status check(const Parallel& p, int world) {
  if (p.tp != 1 || p.pp != 1 || p.cp != 1 || p.ep != 1 || p.etp != 1 || p.vpp != 1 || p.sp)
    return usage_error(fmt::format(
        "parallel plan: tp {} pp {} cp {} ep {} etp {} vpp {} sp {}: this release trains with dp and ZeRO 0 or 1 only; "
        "set the others to 1",
        p.tp, p.pp, p.cp, p.ep, p.etp, p.vpp, p.sp));
  if (p.zero != 0 && p.zero != 1)
    return usage_error(fmt::format("parallel plan: zero is {}, this release has 0 and 1", p.zero));
  if (p.dp < 1 || p.dp != world)
    return usage_error(fmt::format("parallel plan: dp is {} for {} ranks; they must agree", p.dp, world));
  if (p.shards != 0 && (p.shards < 1 || (p.shards & (p.shards - 1)) != 0 || p.shards % p.dp != 0))
    return usage_error(
        fmt::format("shards is {}, expected a power of two that is a multiple of the ranks, {}", p.shards, p.dp));
  return {};
}

MeshPlace mesh_place(const Parallel& p, int rank) {
  MeshPlace place;
  place.tp = rank % p.tp;
  place.cp = rank / p.tp % p.cp;
  place.dp = rank / (p.tp * p.cp) % p.dp;
  place.pp = rank / (p.tp * p.cp * p.dp);
  return place;
}

const Param* Group::find(Role role) const {
  for (const Param& param : params)
    if (param.role == role) return &param;
  return nullptr;
}

std::vector<Group> param_groups(const ModelConfig& config, const Parallel& parallel, int) {
  const std::vector<LogicalTensor> tensors = logical_tensors(config);
  std::unordered_map<std::string, int> index;
  for (size_t i = 0; i < tensors.size(); ++i) index[tensors[i].name] = static_cast<int>(i);
  const int64_t multiple = kGroupBlock * parallel.dp;
  const bool gpt2 = config.family == Family::gpt2;
  GroupBuilder builder(tensors, index);
  std::vector<Group> groups;

  builder.add(Role::token_table, {gpt2 ? "transformer.wte.weight" : "model.embed_tokens.weight"});
  builder.add(Role::position_table, {"transformer.wpe.weight"});
  groups.push_back(builder.finish("embed", multiple));
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    if (gpt2)
      add_gpt2_block(builder, fmt::format("transformer.h.{}.", layer));
    else
      add_llama_block(builder, fmt::format("model.layers.{}.", layer));
    groups.push_back(builder.finish(fmt::format("block {}", layer), multiple));
  }
  builder.add(Role::final_norm, {gpt2 ? "transformer.ln_f.weight" : "model.norm.weight"});
  builder.add(Role::final_norm_bias, {"transformer.ln_f.bias"});
  builder.add(Role::head, {"lm_head.weight"});
  groups.push_back(builder.finish("head", multiple));
  return groups;
}

int64_t slice_elems(const Group& group, const Parallel& parallel) {
  return parallel.zero == 0 ? group.elems : group.elems / parallel.dp;
}

namespace {

// The part of `piece` inside `box` of its parameter, if any.
bool intersect(const Param& param, const Piece& piece, const Box& box, StoredBox* out) {
  const size_t rank = param.shape.size();
  out->logical = piece.logical;
  out->box = Box{Shape(rank), Shape(rank)};
  int64_t stride = 1;
  out->offset = param.offset;
  for (size_t i = rank; i-- > 0;) {
    const int64_t begin = std::max(box.offset[i], piece.at[i]);
    const int64_t end = std::min(box.offset[i] + box.extent[i], piece.at[i] + piece.box.extent[i]);
    if (begin >= end) return false;
    out->box.offset[i] = piece.box.offset[i] + begin - piece.at[i];
    out->box.extent[i] = end - begin;
    out->offset += begin * stride;
    if (i + 1 == rank) out->row_stride = param.shape[i];
    stride *= param.shape[i];
  }
  return true;
}

}  // namespace

std::vector<StoredBox> stored_boxes(const Group& group, int64_t begin, int64_t end) {
  std::vector<StoredBox> stored;
  for (const Param& param : group.params) {
    const int64_t from = std::max<int64_t>(begin - param.offset, 0);
    const int64_t to = std::min<int64_t>(end - param.offset, elems_of(param.shape));
    for (const Box& box : boxes_of_range(param.shape, from, to))
      for (const Piece& piece : param.pieces) {
        StoredBox part;
        if (intersect(param, piece, box, &part)) stored.push_back(std::move(part));
      }
  }
  return stored;
}

}  // namespace llmops
