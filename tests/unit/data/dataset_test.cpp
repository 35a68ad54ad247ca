#include "data/dataset.h"

#include <doctest/doctest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <numeric>
#include <set>

#include "pack.h"
#include "support/scratch.h"

using namespace llmops;
using namespace llmops::testing;

namespace {

using Ids = std::vector<int32_t>;

Ids tokens_of(const Corpus& corpus, Split split) {
  Ids ids(static_cast<size_t>(corpus.tokens(split)));
  REQUIRE(corpus.read(split, 0, ids).ok());
  return ids;
}

DataOptions options_for(std::vector<std::string> paths, std::string tokenizer = "byte", double val_fraction = 0) {
  DataOptions options;
  options.paths = std::move(paths);
  options.tokenizer = std::move(tokenizer);
  options.val_fraction = val_fraction;
  return options;
}

Corpus open_corpus(const DataOptions& options) {
  auto corpus = Corpus::open(options);
  REQUIRE_MESSAGE(corpus.ok(), corpus.status().message());
  return corpus.take();
}

std::string failure(const DataOptions& options, Code code = Code::invalid) {
  const auto corpus = Corpus::open(options);
  REQUIRE_FALSE(corpus.ok());
  CHECK(corpus.status().code() == code);
  return corpus.status().message();
}

bool contains(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("char: sorted characters, the first 90 % train") {
  Scratch scratch;
  std::string text;
  for (int i = 0; i < 1001; ++i) text += "zebra\n"[i % 6];
  const Corpus corpus = open_corpus(options_for({scratch.put("a.txt", text)}, "char", 0.1));
  CHECK(corpus.tokens(Split::train) == 900);  // floor(1001 * 0.9)
  CHECK(corpus.tokens(Split::val) == 101);
  CHECK(corpus.vocab_size() == 6);
  CHECK(*corpus.tokenizer()->decode(tokens_of(corpus, Split::train)) == text.substr(0, 900));
  CHECK(*corpus.tokenizer()->decode(tokens_of(corpus, Split::val)) == text.substr(900));
  CHECK(corpus.document_starts(Split::train) == std::vector<int64_t>{0});
  CHECK(corpus.document_starts(Split::val).empty());
  CHECK(corpus.memory_bytes() == 2002);

  DataOptions apart = options_for({scratch.path("a.txt")}, "char");
  apart.val_paths = {scratch.put("v.txt", "Zebra")};  // Z is met in the validation text only
  const Corpus both = open_corpus(apart);
  CHECK(both.vocab_size() == 7);
  CHECK(*both.tokenizer()->decode(tokens_of(both, Split::val)) == "Zebra");
  CHECK(*both.tokenizer()->decode(tokens_of(both, Split::train)) == text);
  CHECK(both.files() == 2);
}

TEST_CASE("the fingerprint sees tokens and splits, not how they are stored") {
  Scratch scratch;
  const std::string text = "the quick brown fox\n";
  const auto print = [&](const std::string& path, double val_fraction) {
    return open_corpus(options_for({path}, "byte", val_fraction)).fingerprint();
  };
  const Hash128 plain = print(scratch.put("a.txt", text), 0.1);
  CHECK(plain == print(scratch.put("a.txt.gz", gzip(text)), 0.1));
  CHECK(plain == print(scratch.put("a.zst", zstd(text)), 0.1));
  CHECK_FALSE(plain == print(scratch.path("a.txt"), 0.2));
  CHECK_FALSE(plain == print(scratch.put("b.txt", "the quick brown fix\n"), 0.1));
  std::vector<uint16_t> ids(text.begin(), text.end());
  DataOptions shard = options_for({scratch.put("s.bin", llmc_header(20240520, 1, 20) + as_bytes(ids))}, "byte", 0.1);
  CHECK(plain == open_corpus(shard).fingerprint());
}

TEST_CASE("jsonl: documents, their end tokens, another field, errors with lines") {
  Scratch scratch;
  const std::string lines = "{\"text\":\"ab\",\"id\":1}\n\n{\"text\":\"\"}\n{\"text\":\"c\"}";
  const std::string path = scratch.put("d.jsonl.zst", zstd(lines));
  const Corpus plain = open_corpus(options_for({path}));
  CHECK(tokens_of(plain, Split::train) == Ids{'a', 'b', 'c'});
  CHECK(plain.document_starts(Split::train) == std::vector<int64_t>{0, 2});
  const Corpus gpt2 = open_corpus(options_for({path}, LLMOPS_TESTDATA "/tokenizers/gpt2"));
  CHECK(tokens_of(gpt2, Split::train) == Ids{397, 50256, 50256, 66, 50256});
  CHECK(gpt2.document_starts(Split::train) == std::vector<int64_t>{0, 2, 3});

  DataOptions field = options_for({scratch.put("f.jsonl", "{\"body\":\"x\"}\n{\"body\":7}\n")});
  field.text_field = "body";
  CHECK(failure(field) == scratch.path("f.jsonl") + ":2: field \"body\" is no text, expected a text");
  CHECK(contains(failure(options_for({scratch.path("f.jsonl")})), ":1: field \"text\" is not there"));
  CHECK(contains(failure(options_for({scratch.put("g.jsonl", "{\"text\":\"a\"}\n{\"text\"\n")})), "g.jsonl:2: column"));
  CHECK(contains(failure(options_for({scratch.put("h.jsonl", "\n\n")})), "h.jsonl: is empty"));
}

TEST_CASE("text is cut for the tokenizer without changing its tokens") {
  Scratch scratch;
  std::string text;  // longer than one chunk of 4 MiB, with few places to cut
  for (int i = 0; text.size() < (size_t{9} << 20); ++i) text += i % 50000 == 49999 ? "end\n\n  next" : " word's";
  const Corpus corpus = open_corpus(options_for({scratch.put("a.txt", text)}, LLMOPS_TESTDATA "/tokenizers/gpt2"));
  CHECK(tokens_of(corpus, Split::train) == *corpus.tokenizer()->encode(text));
}

TEST_CASE("token files: llm.c, nanoGPT, folders, and windows across shards") {
  Scratch scratch;
  std::vector<uint16_t> first(100), second(50);
  std::iota(first.begin(), first.end(), 1);
  std::iota(second.begin(), second.end(), 101);
  scratch.put("s/x_train_000001.bin", llmc_header(20240520, 1, 100) + as_bytes(first));
  scratch.put("s/x_train_000002.bin", llmc_header(20240520, 1, 50) + as_bytes(second));
  scratch.put("s/x_val_000000.bin", llmc_header(20240520, 1, 50) + as_bytes(second));
  const Corpus shards = open_corpus(options_for({scratch.path("s")}));
  CHECK(shards.tokens(Split::train) == 150);
  CHECK(shards.tokens(Split::val) == 50);
  CHECK(shards.vocab_size() == 151);
  CHECK_FALSE(shards.tokenizer());
  CHECK(shards.memory_bytes() == 0);
  Ids window(20);
  CHECK(shards.read(Split::train, 90, window).ok());
  CHECK(window.front() == 91);
  CHECK(window.back() == 110);
  CHECK_FALSE(shards.read(Split::train, 131, window).ok());
  CHECK_FALSE(shards.read(Split::train, -1, window).ok());
  CHECK(open_corpus(options_for({scratch.path("s/x_train_*.bin")})).tokens(Split::train) == 150);

  std::vector<uint32_t> wide = {7, 128000, 9};
  const Corpus llama = open_corpus(options_for({scratch.put("l.bin", llmc_header(20240801, 7, 3) + as_bytes(wide))}));
  CHECK(tokens_of(llama, Split::train) == Ids{7, 128000, 9});
  scratch.put("n/train.bin", as_bytes(first));
  scratch.put("n/val.bin", as_bytes(second));
  scratch.put("n/meta.pkl", "not data");
  const Corpus nano = open_corpus(options_for({scratch.path("n")}));
  CHECK(nano.tokens(Split::train) == 100);
  CHECK(tokens_of(nano, Split::val).front() == 101);
}

TEST_CASE("token files: every damage is named") {
  Scratch scratch;
  const auto bad = [&](const std::string& content) { return failure(options_for({scratch.put("x.bin", content)})); };
  const std::vector<uint16_t> ids = {1, 2, 60000};
  DataOptions llmc = options_for({scratch.put("m.bin", llmc_header(20240521, 1, 3) + as_bytes(ids))});
  llmc.format = DataFormat::llmc;
  CHECK(contains(failure(llmc), "magic 20240521"));
  CHECK(contains(bad(llmc_header(20240520, 2, 3) + as_bytes(ids)), "version 2"));
  CHECK(contains(bad(llmc_header(20240520, 1, 4) + as_bytes(ids)), "says 4 tokens"));
  CHECK(contains(bad(llmc_header(20240520, 1, -1) + as_bytes(ids)), "says -1 tokens"));
  CHECK(contains(bad(llmc_header(20240520, 1, INT32_MAX) + as_bytes(ids)), "says 2147483647 tokens"));
  CHECK(contains(bad(llmc_header(20240520, 1, 0)), "no tokens"));
  CHECK(contains(bad(llmc_header(20240520, 1, 3).substr(0, 100)), "100 bytes"));
  CHECK(contains(bad(std::string("\1\0\2", 3)), "no whole number"));
  CHECK(contains(failure(options_for({scratch.put("x.dat", std::string("\1\0\2\0", 4))})), "binary data"));
  const std::string packed = scratch.put("x.bin.gz", gzip(llmc_header(20240520, 1, 0)));
  CHECK(contains(failure(options_for({packed})), "neither compressed"));

  DataOptions range = options_for({scratch.put("r.bin", llmc_header(20240520, 1, 3) + as_bytes(ids))});
  range.vocab_size = 50257;
  CHECK(failure(range) == scratch.path("r.bin") + ": token 60000 at byte 1028 is outside the vocabulary of 50257 ids");
  range.vocab_size = 0;
  range.tokenizer = LLMOPS_TESTDATA "/tokenizers/gpt2";
  CHECK(contains(failure(range), "token 60000"));
}

TEST_CASE("a token file that shrinks or changes after it was opened is an error, not a crash") {
  Scratch scratch;
  std::vector<uint16_t> ids(1000, 5);
  const std::string path = scratch.put("a.bin", llmc_header(20240520, 1, 1000) + as_bytes(ids));
  const Corpus corpus = open_corpus(options_for({path}));
  Ids window(10);
  ids.assign(1000, 9);
  scratch.put("a.bin", llmc_header(20240520, 1, 1000) + as_bytes(ids));
  CHECK(contains(corpus.read(Split::train, 0, window).message(), "token 9 at byte 1024"));
  REQUIRE(::truncate(path.c_str(), 1100) == 0);
  CHECK(corpus.read(Split::train, 500, window).code() == Code::invalid);
}

TEST_CASE("megatron: every integer type, documents, sequences in any order") {
  Scratch scratch;
  const auto check = [&](uint8_t code, auto zero) {
    using T = decltype(zero);
    CAPTURE(code);
    std::vector<T> data = {1, 2, 3, 4, 5, 6, 7};
    const auto at = [](int64_t i) { return i * static_cast<int64_t>(sizeof(T)); };
    scratch.put("m.bin", as_bytes(data));
    MegatronFile file{.code = code,
                      .lengths = {2, 0, 3, 2},
                      .offsets = {at(0), at(2), at(4), at(2)},
                      .documents = {0, 1, 2, 4}};
    for (const bool modes : {false, true}) {
      file.modes = modes;
      scratch.put("m.idx", file.idx());
      for (const char* name : {"m.idx", "m.bin", "m"}) {
        const Corpus corpus = open_corpus(options_for({scratch.path(name)}));
        CHECK(tokens_of(corpus, Split::train) == Ids{1, 2, 5, 6, 7, 3, 4});
        CHECK(corpus.document_starts(Split::train) == std::vector<int64_t>{0, 2});  // the empty one has no tokens
      }
    }
  };
  check(1, uint8_t{});
  check(2, int8_t{});
  check(3, int16_t{});
  check(4, int32_t{});
  check(5, int64_t{});
  check(8, uint16_t{});
}

TEST_CASE("megatron: every damage is named") {
  Scratch scratch;
  scratch.put("m.bin", as_bytes<uint16_t>({1, 2, 3, 4}));
  const MegatronFile good{.lengths = {2, 2}, .offsets = {0, 4}, .documents = {0, 1, 2}};
  const auto bad_idx = [&](const std::string& idx) {
    scratch.put("m.idx", idx);
    return failure(options_for({scratch.path("m")}));
  };
  const auto bad = [&](auto change) {
    MegatronFile file = good;
    change(file);
    return bad_idx(file.idx());
  };
  CHECK(contains(bad([](auto& f) { f.magic[0] = 'X'; }), "no Megatron index"));
  CHECK(contains(bad([](auto& f) { f.version = 2; }), "version 2"));
  CHECK(contains(bad([](auto& f) { f.code = 6; }), "float64"));
  CHECK(contains(bad([](auto& f) { f.code = 9; }), "code 9"));
  CHECK(contains(bad([](auto& f) { f.offsets[1] = 5; }), "sequence 1 has 2 tokens at byte 5"));
  CHECK(contains(bad([](auto& f) { f.offsets[1] = -2; }), "sequence 1"));
  CHECK(contains(bad([](auto& f) { f.offsets[1] = INT64_MAX; }), "sequence 1"));
  CHECK(contains(bad([](auto& f) { f.lengths[0] = INT32_MAX; }), "sequence 0"));
  CHECK(contains(bad([](auto& f) { f.lengths[0] = -1; }), "sequence 0"));
  CHECK(contains(bad([](auto& f) { f.documents = {1, 2}; }), "does not begin with 0"));
  CHECK(contains(bad([](auto& f) { f.documents = {0, 2, 1, 2}; }), "do not ascend"));
  CHECK(contains(bad([](auto& f) { f.documents = {0, 1}; }), "do not ascend"));
  CHECK(contains(bad([](auto& f) { f.documents = {0, 1, 3}; }), "do not ascend"));
  CHECK(contains(bad([](auto& f) { f.documents.clear(); }), "does not begin with 0"));
  CHECK(contains(bad([](auto& f) { f.lengths = {0}, f.offsets = {0}, f.documents = {0, 1}; }), "no tokens"));
  std::string idx = good.idx();
  CHECK(contains(bad_idx(idx.substr(0, idx.size() - 1)), "do not fit"));
  CHECK(contains(bad_idx(idx + "123"), "do not fit"));
  for (const size_t count_at : {18, 26}) {  // counts that wrap when they are multiplied
    std::string wrap = idx;
    const uint64_t count = (uint64_t{1} << 62) + 2;
    std::memcpy(wrap.data() + count_at, &count, sizeof(count));
    CHECK(contains(bad_idx(wrap), "do not fit"));
  }
  for (size_t cut = 1; cut < 34; ++cut) bad_idx(idx.substr(0, cut));
  CHECK(contains(bad_idx(""), "is empty"));
}

TEST_CASE("what is missing, empty or mixed") {
  Scratch scratch;
  const std::string empty = scratch.put("empty.txt", ""), text = scratch.put("t.txt", "abc");
  CHECK(failure(options_for({empty})) == empty + ": is empty");
  CHECK(failure(options_for({scratch.put("e.gz", gzip(""))})) == scratch.path("e.gz") + ": is empty");
  CHECK(failure(options_for({scratch.put("e.bin", "")})) == scratch.path("e.bin") + ": is empty");
  const std::string absent = scratch.path("absent");
  CHECK(failure(options_for({absent}), Code::io) == absent + ": cannot open: No such file or directory");
  CHECK(contains(failure(options_for({scratch.path("*.none")}), Code::io), "nothing matches"));
  std::filesystem::create_directory(scratch.path("dir"));
  CHECK(contains(failure(options_for({scratch.path("dir")})), "no data files"));
  failure(options_for({}), Code::usage);
  failure(options_for({text}, "byte", 1.0), Code::usage);
  failure(options_for({text}, "byte", -0.1), Code::usage);
  const std::string shard = scratch.put("s.bin", llmc_header(20240520, 1, 1) + as_bytes<uint16_t>({1}));
  CHECK(contains(failure(options_for({text, shard}), Code::usage), "mixed"));
  CHECK(contains(failure(options_for({scratch.put("bad.txt", "ab\xff")}, "char")), "not UTF-8"));
  const auto given = Tokenizer::characters_of("ab");
  CHECK(contains(Corpus::open(options_for({text}), *given).status().message(), "U+0063 \"c\""));
}

TEST_CASE("a folder is read in sorted order, each file once, and hidden ones not at all") {
  Scratch scratch;
  scratch.put("d/b", "2");
  scratch.put("d/a", "1");
  scratch.put("d/.hidden", "x");
  scratch.put("d/deeper/c", "x");
  std::filesystem::create_symlink("b", scratch.path("d/z"));
  const Corpus corpus = open_corpus(options_for({scratch.path("d")}));
  CHECK(tokens_of(corpus, Split::train) == Ids{'1', '2'});
  CHECK(corpus.document_starts(Split::train) == std::vector<int64_t>{0, 1});
}

TEST_CASE("a corpus is handed on through a memory file") {
  Scratch scratch;
  const auto same = [&](const Corpus& corpus) {
    const int fd = ::memfd_create("corpus", MFD_CLOEXEC);
    REQUIRE(fd >= 0);
    REQUIRE(corpus.save_to(fd).ok());
    auto copy = Corpus::load_from(fd);
    ::close(fd);
    REQUIRE_MESSAGE(copy.ok(), copy.status().message());
    if (corpus.tokenizer()) {
      const Ids ids = tokens_of(corpus, Split::train);
      CHECK(*copy->tokenizer()->decode(ids) == *corpus.tokenizer()->decode(ids));
    }
    CHECK(copy->fingerprint() == corpus.fingerprint());
    CHECK(copy->vocab_size() == corpus.vocab_size());
    CHECK(copy->files() == corpus.files());
    CHECK(copy->tokenizer().has_value() == corpus.tokenizer().has_value());
    for (const Split split : {Split::train, Split::val}) {
      CHECK(copy->document_starts(split) == corpus.document_starts(split));
      CHECK(tokens_of(*copy, split) == tokens_of(corpus, split));
    }
  };
  const std::string lines = "{\"text\":\"hello\"}\n{\"text\":\"world\"}\n";
  DataOptions options = options_for({scratch.put("a.jsonl", lines)}, "char", 0.3);
  same(open_corpus(options));
  options.val_paths = {scratch.put("v.txt", "low")};
  same(open_corpus(options));
  same(open_corpus(options_for({scratch.path("v.txt")}, LLMOPS_TESTDATA "/tokenizers/gpt2")));
  const std::vector<uint16_t> ids = {1, 2, 3, 4, 5, 6, 7, 8};
  same(open_corpus(options_for({scratch.put("s.bin", llmc_header(20240520, 1, 8) + as_bytes(ids))}, "byte", 0.5)));
  const int fd = ::memfd_create("damaged", MFD_CLOEXEC);
  REQUIRE(::write(fd, "LLMOPSC1\xff\xff\xff\xff\xff\xff\xff\x7f", 16) == 16);
  CHECK(Corpus::load_from(fd).status().code() == Code::invalid);
  ::close(fd);
}
