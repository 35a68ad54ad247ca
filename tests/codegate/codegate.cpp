// The machine code gate: codegate BUDGET OBJECT...
//
// Each OBJECT is a CUDA source compiled for several architectures, with what `ptxas -v` said of it in OBJECT.ptxas
// (keep_log.sh). Registers, spills, stack and static shared memory are taken from there; the accesses to local memory
// and the 128-bit accesses to global memory are counted in the machine code itself, since cuobjdump is not part of
// every toolkit. Prints a line for each kernel, with a value for each architecture, and fails on every kernel that
//   - spills or uses local memory, or has no launch bounds (ptxas then cannot weigh registers against threads);
//   - takes more registers, or leaves fewer warps resident on a multiprocessor, than its line of BUDGET allows;
//   - has no 128-bit load or store although its line asks for them;
//   - is not in BUDGET, or is in it but not in the machine code.
// Exit: 0 within the budget, 1 not, 2 unusable arguments or files.
#include <cuda_occupancy.h>
#include <cxxabi.h>
#include <elf.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

namespace {

// CUDA C++ Programming Guide, "Technical Specifications per Compute Capability": KiB of shared memory of a
// multiprocessor, and what one block may have of it. All three have 64 warps and 64 Ki registers; of each block's
// shared memory the system keeps 1 KiB.
struct Arch {
  int sm, shared_kib, block_kib;
};
constexpr std::array<Arch, 3> kArchs = {{{80, 164, 163}, {90, 228, 227}, {100, 228, 227}}};
constexpr int kWarp = 32, kThreads = 2048, kRegisters = 64 << 10, kSharedReserved = 1 << 10;

// What was measured of one kernel on one architecture.
struct Code {
  int registers = 0, stack = 0, spill_stores = 0, spill_loads = 0, shared = 0;  // bytes, but for registers
  int threads = 0;                                                              // launch bounds; 0: none
  int local = 0, wide_loads = 0, wide_stores = 0;                               // instructions
};
struct Name {
  std::string file, kernel;
  bool operator<(const Name& o) const { return std::tie(file, kernel) < std::tie(o.file, o.kernel); }
};
using Kernels = std::map<Name, std::map<int, Code>>;  // by architecture

struct Limits {
  int shared = 0, registers = 0;           // dynamic shared memory of the launch, bytes; registers of a thread at most
  std::array<int, kArchs.size()> warps{};  // resident on a multiprocessor, at least
  std::string wide;                        // "load", "store", "load,store" or "-"
};

std::string contents(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error(path + ": cannot be opened");
  return {std::istreambuf_iterator<char>(in), {}};
}

// "forward<float, 4>" of the mangled name: without namespaces, return type and parameters.
std::string kernel_name(const std::string& mangled) {
  int status = 0;
  char* const full = abi::__cxa_demangle(mangled.c_str(), nullptr, nullptr, &status);
  std::string name = status == 0 ? full : mangled;
  std::free(full);
  for (const std::string_view part : {"llmops::", "cuda::", "(anonymous namespace)::", "void "})
    for (size_t at; (at = name.find(part)) != std::string::npos;) name.erase(at, part.size());
  int depth = 0;
  for (size_t i = 0; i < name.size(); ++i) {
    depth += name[i] == '<' ? 1 : name[i] == '>' ? -1 : 0;
    if (name[i] == '(' && depth == 0) return name.substr(0, i);
  }
  return name;
}

// What ptxas -v says of each entry function: a line that names it and its architecture, one with its stack and spills,
// one that starts with its registers.
using Mangled = std::map<std::pair<int, std::string>, Code>;
Mangled read_log(const std::string& path) {
  Mangled codes;
  Code* code = nullptr;
  std::istringstream lines(contents(path));
  for (std::string line; std::getline(lines, line);) {
    int sm = 0, n = 0;
    char name[4096];
    if (std::sscanf(line.c_str(), "ptxas info : Compiling entry function '%4095[^']' for 'sm_%d", name, &sm) == 2) {
      code = &codes[{sm, name}];
    } else if (code != nullptr && line.find(" bytes stack frame") != std::string::npos) {
      if (std::sscanf(line.c_str(), " %d bytes stack frame, %d bytes spill stores, %d bytes spill loads", &code->stack,
                      &code->spill_stores, &code->spill_loads) != 3)
        throw std::runtime_error(path + ": not understood: " + line);
    } else if (code != nullptr && std::sscanf(line.c_str(), "ptxas info : Used %d registers", &n) == 1) {
      code->registers = n;
      const size_t smem = line.find(" bytes smem");
      if (smem != std::string::npos) code->shared = std::atoi(line.c_str() + line.rfind(' ', smem - 1));
      code = nullptr;
    }
  }
  return codes;
}

// Instructions are 16 bytes on all of these architectures: the low 12 bits are the operation, bits 73 to 75 the size of
// a memory access (74 to 76 for a copy to shared memory on sm_100), of which 6 is 128 bits. finds.sh shows that the
// numbers are right, by kernels whose accesses are known.
void count_accesses(std::string_view text, int sm, Code& code) {
  constexpr uint64_t kLoadGlobal = 0x981, kStoreGlobal = 0x986, kLoadLocal = 0x983, kStoreLocal = 0x387;
  constexpr uint64_t kCopyToShared = 0xfae, kWide = 6;  // the copy is cp.async
  for (; text.size() >= 16; text.remove_prefix(16)) {
    uint64_t word[2];
    std::memcpy(word, text.data(), sizeof word);
    const uint64_t operation = word[0] & 0xfff;
    const bool copies = operation == kCopyToShared;
    const bool wide = (word[1] >> (copies && sm >= 100 ? 10 : 9) & 7) == kWide;
    code.local += operation == kLoadLocal || operation == kStoreLocal;
    code.wide_loads += wide && (copies || operation == kLoadGlobal);
    code.wide_stores += wide && operation == kStoreGlobal;
  }
}

// Entries of a kernel's .nv.info are {format, attribute, size} and, in format 4, size bytes; attribute 5 is the three
// dimensions of its launch bounds.
int launch_bounds(std::string_view entries) {
  while (entries.size() >= 4) {
    uint16_t size = 0;
    std::memcpy(&size, entries.data() + 2, sizeof size);
    if (entries[0] == 4 && entries[1] == 5 && entries.size() >= 16) {
      uint32_t dim[3];
      std::memcpy(dim, entries.data() + 4, sizeof dim);
      return static_cast<int>(dim[0] * dim[1] * dim[2]);
    }
    entries.remove_prefix(std::min(entries.size(), size_t{4} + (entries[0] == 4 ? size : 0u)));
  }
  return 0;
}

// Adds to `codes` what the sections of one architecture's machine code, an ELF file, say.
void read_machine_code(std::string_view elf, const std::string& path, Mangled& codes) {
  const auto at = [&](uint64_t offset, uint64_t bytes) {
    if (offset > elf.size() || bytes > elf.size() - offset)
      throw std::runtime_error(path + ": machine code is cut off");
    return elf.substr(offset, bytes);
  };
  Elf64_Ehdr header;
  std::memcpy(&header, at(0, sizeof header).data(), sizeof header);
  const int sm = static_cast<int>(header.e_flags >> 8 & 0xff);
  std::vector<Elf64_Shdr> sections(header.e_shnum);
  const uint64_t table_bytes = sections.size() * sizeof(Elf64_Shdr);
  std::memcpy(sections.data(), at(header.e_shoff, table_bytes).data(), table_bytes);
  const Elf64_Shdr& names = sections.at(header.e_shstrndx);
  for (const Elf64_Shdr& s : sections) {
    const std::string_view all_names = at(names.sh_offset, names.sh_size);
    const std::string_view name = std::string_view(all_names.substr(s.sh_name).data());
    for (const std::string_view kind : {".text.", ".nv.info."}) {
      if (!name.starts_with(kind)) continue;
      const auto code = codes.find({sm, std::string(name.substr(kind.size()))});
      if (code == codes.end()) throw std::runtime_error(fmt::format("{}: ptxas said nothing of {}", path, name));
      if (kind == ".text.") count_accesses(at(s.sh_offset, s.sh_size), sm, code->second);
      else code->second.threads = launch_bounds(at(s.sh_offset, s.sh_size));
    }
  }
}

// Machine code lies uncompressed in the object, each architecture's an ELF file of machine 190 (CUDA).
void read_object(const std::string& path, Kernels& kernels) {
  Mangled codes = read_log(path + ".ptxas");
  const std::string object = contents(path);
  for (size_t at = 1; (at = object.find(ELFMAG, at)) != std::string::npos; ++at) {
    uint16_t machine = 0;
    if (at + sizeof(Elf64_Ehdr) > object.size()) break;
    std::memcpy(&machine, object.data() + at + offsetof(Elf64_Ehdr, e_machine), sizeof machine);
    if (machine == EM_CUDA) read_machine_code(std::string_view(object).substr(at), path, codes);
  }
  std::string file = path.substr(path.rfind('/') + 1);
  file = file.substr(0, file.find(".cu") + 3);
  for (const auto& [key, code] : codes)
    if (!kernels[{file, kernel_name(key.second)}].emplace(key.first, code).second)
      throw std::runtime_error(path + ": two kernels are " + kernel_name(key.second));
}

// Tab-separated: file, kernel, dynamic shared memory, registers, warps on each architecture, 128-bit accesses; or # and
// a comment.
std::map<Name, Limits> read_budget(const std::string& path) {
  std::map<Name, Limits> budget;
  std::istringstream lines(contents(path));
  for (std::string line; std::getline(lines, line);) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream fields(line);
    Name name;
    Limits l;
    std::getline(fields, name.file, '\t'), std::getline(fields, name.kernel, '\t');
    fields >> l.shared >> l.registers;
    for (int& warps : l.warps) fields >> warps;
    fields >> l.wide;
    if (!fields || (l.wide != "load" && l.wide != "store" && l.wide != "load,store" && l.wide != "-"))
      throw std::runtime_error(path + ": not understood: " + line);
    if (!budget.emplace(name, l).second) throw std::runtime_error(path + ": twice: " + line);
  }
  return budget;
}

// Warps that are resident on a multiprocessor, by the toolkit's own occupancy calculator.
int resident_warps(const Arch& arch, const Code& code, int dynamic_shared) {
  cudaOccDeviceProp device;
  device.computeMajor = arch.sm / 10;
  device.computeMinor = arch.sm % 10;
  device.maxThreadsPerBlock = 1024;
  device.maxThreadsPerMultiprocessor = kThreads;
  device.regsPerBlock = device.regsPerMultiprocessor = kRegisters;
  device.warpSize = kWarp;
  device.sharedMemPerBlock = 48 << 10;
  device.sharedMemPerMultiprocessor = size_t(arch.shared_kib) << 10;
  device.sharedMemPerBlockOptin = size_t(arch.block_kib) << 10;
  device.reservedSharedMemPerBlock = kSharedReserved;
  device.numSms = 1;
  cudaOccFuncAttributes function;
  function.maxThreadsPerBlock = code.threads;
  function.numRegs = code.registers;
  function.sharedSizeBytes = size_t(code.shared);
  function.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
  function.maxDynamicSharedSizeBytes = size_t(dynamic_shared);
  const cudaOccDeviceState state;
  cudaOccResult result;
  const cudaOccError error = cudaOccMaxActiveBlocksPerMultiprocessor(&result, &device, &function, &state, code.threads,
                                                                     size_t(dynamic_shared));
  if (error != CUDA_OCC_SUCCESS) return 0;
  return result.activeBlocksPerMultiprocessor * ((code.threads + kWarp - 1) / kWarp);
}

class Gate {
 public:
  explicit Gate(std::map<Name, Limits> budget) : budget_(std::move(budget)) {}

  void check(const Name& name, const std::map<int, Code>& codes) {
    const auto limits = budget_.find(name);
    const bool listed = limits != budget_.end();
    const Limits l = listed ? limits->second : Limits{};
    std::array<int, kArchs.size()> warps{};
    for (size_t i = 0; i < kArchs.size(); ++i) {
      const auto code = codes.find(kArchs[i].sm);
      if (code == codes.end())
        throw std::runtime_error(fmt::format("{}: not compiled for sm_{}", name.kernel, kArchs[i].sm));
      if (code->second.threads > 0) warps[i] = resident_warps(kArchs[i], code->second, l.shared);
      hold(name, kArchs[i].sm, code->second);
      if (listed) hold_to_budget(name, i, code->second, warps[i], l);
    }
    if (!listed) fail(name, "not in the budget");
    print(name, codes, warps, l);
    seen_.insert(name);
  }

  // True when all is within the budget and every line of it was used.
  bool finish() {
    for (const auto& [name, limits] : budget_)
      if (!seen_.contains(name)) fail(name, "in the budget, but there is no such kernel");
    fmt::print("{} kernels on sm_80, sm_90 and sm_100, {} outside of their budget\n", seen_.size(), failures_);
    return failures_ == 0;
  }

 private:
  void fail(const Name& name, const std::string& what) {
    ++failures_;
    fmt::print(stderr, "codegate: {} {}: {}\n", name.file, name.kernel, what);
  }
  // What holds for every kernel.
  void hold(const Name& name, int sm, const Code& c) {
    if (c.spill_stores + c.spill_loads > 0)
      fail(name, fmt::format("sm_{} spills {} bytes by stores and {} by loads; none are allowed", sm, c.spill_stores,
                             c.spill_loads));
    if (c.stack + c.local > 0)
      fail(name, fmt::format("sm_{} has {} bytes of stack and {} accesses to local memory; none are allowed", sm,
                             c.stack, c.local));
    if (c.threads == 0) fail(name, fmt::format("sm_{} has no launch bounds", sm));
  }
  void hold_to_budget(const Name& name, size_t arch, const Code& c, int warps, const Limits& l) {
    const int sm = kArchs[arch].sm;
    if (c.registers > l.registers)
      fail(name, fmt::format("sm_{} takes {} registers, {} are allowed", sm, c.registers, l.registers));
    if (warps < l.warps[arch])
      fail(name, fmt::format("sm_{} has {} warps resident, at least {} are expected", sm, warps, l.warps[arch]));
    if (l.wide.find("load") != std::string::npos && c.wide_loads == 0)
      fail(name, fmt::format("sm_{} has no 128-bit load from global memory", sm));
    if (l.wide.find("store") != std::string::npos && c.wide_stores == 0)
      fail(name, fmt::format("sm_{} has no 128-bit store to global memory", sm));
  }
  void print(const Name& name, const std::map<int, Code>& codes, const std::array<int, kArchs.size()>& warps,
             const Limits& l) {
    constexpr const char* kLine = "{:<22} {:<44} {:>7}  {:<12}  {:<12}  {:<8}  {:<12}  {:<12}  {:<12}\n";
    if (seen_.empty()) {
      constexpr const char* kEach = "sm_80/90/100";
      fmt::print(kLine, "file", "kernel", "threads", "registers", "spilled B", "shared B", "warps", "128b ld",
                 "128b st");
      fmt::print(kLine, "", "", "", kEach, kEach, "", kEach, kEach, kEach);
    }
    const auto each = [&](auto value) {
      std::string text;
      for (size_t i = 0; i < kArchs.size(); ++i)
        text += fmt::format("{}{}", i > 0 ? "/" : "", value(codes.at(kArchs[i].sm)));
      return text;
    };
    const Code& first = codes.begin()->second;
    fmt::print(kLine, name.file, name.kernel, first.threads, each([](const Code& c) { return c.registers; }),
               each([](const Code& c) { return c.spill_stores + c.spill_loads; }), first.shared + l.shared,
               fmt::format("{}", fmt::join(warps, "/")), each([](const Code& c) { return c.wide_loads; }),
               each([](const Code& c) { return c.wide_stores; }));
  }

  std::map<Name, Limits> budget_;
  std::set<Name> seen_;
  int failures_ = 0;
};

}  // namespace

int main(int argc, char** argv) try {
  if (argc < 3) return std::fputs("usage: codegate BUDGET OBJECT...\n", stderr), 2;
  Kernels kernels;
  for (int i = 2; i < argc; ++i) read_object(argv[i], kernels);
  Gate gate(read_budget(argv[1]));
  for (const auto& [name, codes] : kernels) gate.check(name, codes);
  return gate.finish() ? 0 : 1;
} catch (const std::exception& e) {
  std::fprintf(stderr, "codegate: %s\n", e.what());
  return 2;
}
