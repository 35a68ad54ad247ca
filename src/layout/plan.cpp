#include "layout/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "base/io.h"
#include "base/text.h"
#include "base/toml.h"

namespace llmops {
namespace {

struct Key {
  std::string name;  // "parallel.dp"
  std::function<Status(const Json&)> read;
};

template <class Int>
std::function<Status(const Json&)> integer(Int* out, int64_t min, int64_t max) {
  return [=](const Json& value) -> Status {
    if (!value.is_integer() || value.as_int() < min || value.as_int() > max)
      return usage_error(fmt::format("is {}, expected an integer from {} to {}", value.dump(), min, max));
    *out = static_cast<Int>(value.as_int());
    return {};
  };
}

std::function<Status(const Json&)> text(std::string* out) {
  return [=](const Json& value) -> Status {
    if (!value.is_string()) return usage_error(fmt::format("is {}, expected a string", value.dump()));
    *out = value.as_string();
    return {};
  };
}

std::function<Status(const Json&)> boolean(bool* out) {
  return [=](const Json& value) -> Status {
    if (!value.is_bool()) return usage_error(fmt::format("is {}, expected true or false", value.dump()));
    *out = value.as_bool();
    return {};
  };
}

std::function<Status(const Json&)> price(double* out) {
  return [=](const Json& value) -> Status {
    if (!value.is_number() || !(value.as_double() >= 0))
      return usage_error(fmt::format("is {}, expected a number >= 0", value.dump()));
    *out = value.as_double();
    return {};
  };
}

std::vector<Key> keys_of(Plan* p) {
  constexpr int64_t kBig = int64_t{1} << 40;
  std::vector<Key> keys = {
      {"model.descriptor", text(&p->model)},
      {"model.config",
       [p](const Json& value) {
         p->model_is_file = true;
         return text(&p->model)(value);
       }},
      {"cluster.device", text(&p->device)},
      {"cluster.nodes", integer(&p->nodes, 1, 1 << 20)},
      {"cluster.devices_per_node", integer(&p->devices_per_node, 1, 1 << 10)},
      {"parallel.sp", boolean(&p->parallel.sp)},
      {"parallel.zero", integer(&p->parallel.zero, 0, 3)},
      {"parallel.shards", integer(&p->parallel.shards, 0, 1 << 20)},
      {"parallel.order", text(&p->order)},
      {"parallel.placement", text(&p->placement)},
      {"train.micro_batch", integer(&p->micro_batch, 1, kBig)},
      {"train.global_batch", integer(&p->global_batch, 1, kBig)},
      {"train.seq", integer(&p->seq, 1, kBig)},
      {"train.dtype", text(&p->dtype)},
      {"train.recompute", text(&p->recompute)},
      {"train.schedule", text(&p->schedule)},
      {"checkpoint.dir", text(&p->checkpoint_dir)},
      {"checkpoint.save_every", integer(&p->save_every, 0, kBig)},
      {"checkpoint.keep", integer(&p->keep, 0, kBig)},
      {"cost.price_per_device_hour", price(&p->price_per_device_hour)},
      {"cost.currency", text(&p->currency)},
  };
  struct Degree {
    const char* name;
    int* value;
  };
  for (const Degree& degree : {Degree{"dp", &p->parallel.dp},
                               {"tp", &p->parallel.tp},
                               {"pp", &p->parallel.pp},
                               {"cp", &p->parallel.cp},
                               {"ep", &p->parallel.ep},
                               {"etp", &p->parallel.etp},
                               {"vpp", &p->parallel.vpp}})
    keys.push_back({fmt::format("parallel.{}", degree.name), integer(degree.value, 1, 1 << 20)});
  return keys;
}

}  // namespace

Result<Plan> plan_from_toml(const std::string& path, std::string_view content) {
  auto entries = toml_parse(content);
  if (!entries.ok()) return entries.status().in(path);
  Plan plan;
  const std::vector<Key> keys = keys_of(&plan);
  std::vector<std::string> names;
  for (const Key& key : keys) names.push_back(key.name);
  for (const TomlEntry& entry : *entries) {
    const std::string name = fmt::format("{}", fmt::join(entry.path, "."));
    const std::string place = fmt::format("{}:{}:{}", path, entry.line, entry.column);
    if (entry.is_table && std::ranges::any_of(names, [&](const std::string& n) { return n.starts_with(name + "."); }))
      continue;
    const auto key = std::ranges::find(keys, name, &Key::name);
    if (key == keys.end()) {
      const std::string near = nearest(name, names);
      return usage_error(fmt::format("{}: unknown key {}{}", place, escape_control(name),
                                     near.empty() ? "" : "; did you mean " + near + "?"));
    }
    if (Status status = key->read(entry.value); !status.ok())
      return usage_error(fmt::format("{}: {} {}", place, name, status.message()));
  }
  return plan;
}

Result<Plan> plan_from_file(const std::string& path) {
  LLMOPS_ASSIGN(const std::string content, read_file(path, 1 << 20));
  return plan_from_toml(path, content);
}

}  // namespace llmops
