#include "data/sources.h"

#include <fmt/format.h>
#include <glob.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <set>

#include "base/io.h"
#include "base/text.h"
#include "data/shards.h"

namespace llmops {
namespace {

constexpr std::string_view kNames[] = {"detect", "text", "jsonl", "llmc", "u16", "megatron"};
constexpr size_t kSniffBytes = size_t{64} << 10;

bool stat_path(const std::string& path, struct stat* info) { return ::stat(path.c_str(), info) == 0; }
bool exists(const std::string& path) {
  struct stat info;
  return stat_path(path, &info);
}

std::string without_suffix(std::string name, std::initializer_list<std::string_view> suffixes) {
  for (const std::string_view suffix : suffixes)
    if (name.ends_with(suffix)) return name.substr(0, name.size() - suffix.size());
  return name;
}

bool is_validation_name(const std::string& name) {
  if (!name.ends_with(".bin")) return false;
  const std::string stem = without_suffix(name, {".bin"});
  return stem == "val" || stem.ends_with("_val") || stem.find("_val_") != std::string::npos;
}

// Files of one folder that are no data of their own: an index is read with its .bin, meta.pkl is nanoGPT's vocabulary.
bool is_companion(const std::string& folder, const std::string& name) {
  if (name == "meta.pkl") return true;
  return name.ends_with(".idx") && exists(folder + "/" + without_suffix(name, {".idx"}) + ".bin");
}

Status expand_folder(const std::string& folder, Sources* out) {
  LLMOPS_ASSIGN(const Dir dir, Dir::open(folder));
  LLMOPS_ASSIGN(const auto names, dir.list());
  std::set<std::pair<dev_t, ino_t>> seen;
  const size_t before = out->train.size() + out->val.size();
  for (const std::string& name : names) {
    const std::string path = folder + (folder.ends_with('/') ? "" : "/") + name;
    struct stat info;
    if (name.starts_with('.') || is_companion(folder, name)) continue;
    if (!stat_path(path, &info) || !S_ISREG(info.st_mode)) continue;
    if (!seen.emplace(info.st_dev, info.st_ino).second) continue;
    (is_validation_name(name) ? out->val : out->train).push_back(path);
  }
  if (out->train.size() + out->val.size() == before) return invalid_error(folder + ": holds no data files");
  return {};
}

Status expand_path(const std::string& path, Sources* out) {
  struct stat info;
  if (path == "-" || (stat_path(path, &info) && !S_ISDIR(info.st_mode)) || !megatron_index_path(path).empty()) {
    out->train.push_back(path);
    return {};
  }
  if (exists(path)) return expand_folder(path, out);
  if (path.find_first_of("*?[") == std::string::npos) return errno_status(path, "open", ENOENT);
  glob_t found = {};
  const int code = ::glob(path.c_str(), 0, nullptr, &found);  // sorted
  for (size_t i = 0; code == 0 && i < found.gl_pathc; ++i) out->train.emplace_back(found.gl_pathv[i]);
  ::globfree(&found);
  return code == 0 ? Status() : io_error(path + ": nothing matches this pattern");
}

}  // namespace

std::string_view data_format_name(DataFormat format) { return kNames[static_cast<int>(format)]; }

Result<DataFormat> parse_data_format(std::string_view name) {
  for (int i = 0; i < static_cast<int>(std::size(kNames)); ++i)
    if (kNames[i] == name) return static_cast<DataFormat>(i);
  return usage_error(fmt::format("data format: found \"{}\", expected detect, text, jsonl, llmc, u16 or megatron",
                                 escape_control(name)));
}

Result<Sources> expand_paths(const DataOptions& options) {
  Sources train, val;
  for (const std::string& path : options.paths) LLMOPS_TRY(expand_path(path, &train));
  for (const std::string& path : options.val_paths) LLMOPS_TRY(expand_path(path, &val));
  if (train.train.empty()) return usage_error("no training data is given");
  if (options.val_paths.empty()) return train;
  val.train.insert(val.train.end(), val.val.begin(), val.val.end());
  return Sources{std::move(train.train), std::move(val.train)};
}

std::string megatron_index_path(const std::string& path) {
  if (path.ends_with(".idx")) return path;
  const std::string index = without_suffix(path, {".bin"}) + ".idx";
  return (path.ends_with(".bin") || !exists(path)) && exists(index) ? index : std::string();
}

Result<DataFormat> detect_format(Input& input) {
  LLMOPS_ASSIGN(const std::string_view head, input.peek(kSniffBytes));
  int32_t magic = 0;
  if (head.size() >= sizeof(magic)) std::memcpy(&magic, head.data(), sizeof(magic));
  if (magic == kLlmcMagicU16 || magic == kLlmcMagicU32) return DataFormat::llmc;
  const std::string name = without_suffix(input.path(), {".gz", ".zst"});
  if (name.ends_with(".jsonl") || name.ends_with(".ndjson")) return DataFormat::jsonl;
  if (head.find('\0') == std::string_view::npos) return DataFormat::text;
  if (name.ends_with(".bin")) return DataFormat::u16;
  return invalid_error(input.path() + ": binary data of no known format; say which (text, u16, ...) if it is one");
}

}  // namespace llmops
