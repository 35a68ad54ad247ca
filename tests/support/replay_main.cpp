// Runs a fuzz target on files without libFuzzer: every file given (or in a folder given), and, with --mutations N, N
// damaged versions of each, the same ones in every run. A run that found no file fails.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

using Bytes = std::vector<uint8_t>;

// Exactly as long as its content, so that a sanitizer sees a read beyond the end.
void run(const Bytes& bytes) { LLVMFuzzerTestOneInput(Bytes(bytes).data(), bytes.size()); }

Bytes mutated(Bytes bytes, std::mt19937& random) {
  const uint8_t kTelling[] = {0, 1, 0x7f, 0x80, 0xff, '"', '{', '[', '\n', '\\'};
  for (int edits = 1 + static_cast<int>(random() % 4); edits > 0 && !bytes.empty(); --edits) {
    const size_t at = random() % bytes.size();
    switch (random() % 5) {
      case 0: bytes[at] ^= static_cast<uint8_t>(1u << random() % 8); break;
      case 1: bytes[at] = kTelling[random() % std::size(kTelling)]; break;
      case 2: bytes.resize(at); break;
      case 3: bytes.insert(bytes.begin() + static_cast<ptrdiff_t>(at), static_cast<uint8_t>(random())); break;
      default: std::fill(bytes.begin() + static_cast<ptrdiff_t>(at),
                         bytes.begin() + static_cast<ptrdiff_t>(std::min(bytes.size(), at + 8)), uint8_t{0xff});
    }
  }
  return bytes;
}

std::vector<std::string> files_of(const std::string& path) {
  if (!std::filesystem::is_directory(path)) return {path};
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(path))
    if (entry.is_regular_file()) files.push_back(entry.path().string());
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

int main(int argc, char** argv) {
  int mutations = 0, count = 0;
  for (int i = 1; i < argc; ++i) {
    if (std::string(argv[i]) == "--mutations" && i + 1 < argc) {
      mutations = std::atoi(argv[++i]);
      continue;
    }
    for (const std::string& path : files_of(argv[i])) {
      std::ifstream in(path, std::ios::binary);
      if (!in) return std::fprintf(stderr, "%s: cannot open\n", path.c_str()), 1;
      const Bytes bytes{std::istreambuf_iterator<char>(in), {}};
      run(bytes);
      std::mt19937 random(static_cast<unsigned>(bytes.size()));
      for (int m = 0; m < mutations; ++m) run(mutated(bytes, random));
      ++count;
    }
  }
  std::printf("%d files, %d mutations of each\n", count, mutations);
  if (count == 0) std::fputs("no file was run\n", stderr);
  return count == 0 ? 1 : 0;
}
