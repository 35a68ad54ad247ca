#include "data/tokenizer.h"

#include <doctest/doctest.h>

#include <functional>
#include <random>

#include "base/text.h"
#include "data/input.h"
#include "support/scratch.h"

using namespace llmops;
using testing::Scratch;

namespace {

const std::string kTokenizers = LLMOPS_TESTDATA "/tokenizers/";

const Tokenizer& gpt2() {
  static auto loaded = Tokenizer::load(kTokenizers + "gpt2");
  REQUIRE_MESSAGE(loaded.ok(), loaded.status().message());
  return *loaded;
}

const Json& cases() {
  static const Json json = [] {
    auto text = read_all(kTokenizers + "gpt2_cases.json", 1 << 20);
    REQUIRE(text.ok());
    auto parsed = json_parse(*text);
    REQUIRE(parsed.ok());
    return parsed.take();
  }();
  return json;
}

std::vector<int32_t> ids_of(const Json& list) {
  std::vector<int32_t> ids;
  for (const Json& id : list.as_array()) ids.push_back(static_cast<int32_t>(id.as_int(-1)));
  return ids;
}

std::string unhex(const std::string& hex) {
  std::string out;
  for (size_t i = 0; i < hex.size(); i += 2) out.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  return out;
}

// A tokenizer.json of the right kind over single bytes a..c, "ab" and an end token; `change` edits it.
std::string small_tokenizer_json(const std::function<void(Json&)>& change = [](Json&) {}) {
  auto json = json_parse(R"({"version":"1.0","truncation":null,"padding":null,
    "added_tokens":[{"id":4,"content":"<|endoftext|>","single_word":false,"lstrip":false,"rstrip":false,
                     "normalized":false,"special":true}],
    "normalizer":null,
    "pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true},
    "post_processor":{"type":"TemplateProcessing","single":[{"Sequence":{"id":"A","type_id":0}}],"special_tokens":{}},
    "decoder":{"type":"ByteLevel"},
    "model":{"type":"BPE","dropout":null,"unk_token":null,"continuing_subword_prefix":"","end_of_word_suffix":"",
             "fuse_unk":false,"byte_fallback":false,"ignore_merges":false,
             "vocab":{"a":0,"b":1,"c":2,"ab":3},"merges":[["a","b"]]}})");
  REQUIRE(json.ok());
  change(*json);
  return json->dump();
}

std::string refusal(const std::function<void(Json&)>& change) {
  const auto parsed = Tokenizer::parse_tokenizer_json(small_tokenizer_json(change));
  REQUIRE_FALSE(parsed.ok());
  CHECK(parsed.status().code() == Code::invalid);
  return parsed.status().message();
}

bool contains(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("gpt2 gives the ids of the reference tokenizer on all recorded strings") {
  const auto& list = cases().find("cases")->as_array();
  REQUIRE(list.size() == 160);
  for (const Json& item : list) {
    const std::string& text = item.find("text")->as_string();
    CAPTURE(item.find("name")->as_string());
    const auto ids = gpt2().encode(text);
    REQUIRE(ids.ok());
    CHECK(*ids == ids_of(*item.find("ids")));
    const Json* plain = item.find("special_as_text");
    CHECK(*gpt2().encode(text, Specials::as_text) == ids_of(plain ? *plain : *item.find("ids")));
    CHECK(*gpt2().decode(*ids) == text);
  }
}

TEST_CASE("gpt2 replaces what is not UTF-8") {
  const auto& list = cases().find("invalid")->as_array();
  REQUIRE(list.size() == 20);
  for (const Json& item : list) {
    CAPTURE(item.find("hex")->as_string());
    CHECK(*gpt2().encode(unhex(item.find("hex")->as_string())) == ids_of(*item.find("ids")));
  }
}

TEST_CASE("streamed text is the text of the growing prefix, without its unfinished character") {
  const auto& list = cases().find("prefix_decode")->as_array();
  REQUIRE(list.size() == 4);
  for (const Json& item : list) {
    StreamDecoder decoder(gpt2());
    std::string text;
    const auto ids = ids_of(*item.find("ids"));
    const auto& decoded = item.find("decoded")->as_array();
    for (size_t i = 0; i < ids.size(); ++i) {
      text += *decoder.push(ids[i]);
      CHECK(utf8_valid(text));
      StreamDecoder stopped = decoder;
      CHECK(text + stopped.finish() == decoded[i].as_string());
    }
  }
}

TEST_CASE("gpt2 knows its vocabulary") {
  CHECK(gpt2().vocab_size() == 50257);
  CHECK(gpt2().eos() == 50256);
  CHECK(gpt2().is_special(50256));
  CHECK_FALSE(gpt2().is_special(0));
  CHECK(gpt2().kind_name() == "gpt2");
  CHECK(gpt2().token_bytes(262) == " the");
  CHECK(gpt2().token_bytes(50257).empty());
  CHECK(gpt2().token_bytes(-1).empty());
  const int32_t bad[] = {11, 50257};
  CHECK(gpt2().decode(bad).status().message() == "token id 50257 is not in the vocabulary of 50257 ids");
}

TEST_CASE("a tokenizer comes back from what a checkpoint stores") {
  const Json json = gpt2().to_json();
  CHECK(json.dump().size() < 200);
  auto back = Tokenizer::from_json(json, gpt2().files());
  REQUIRE(back.ok());
  CHECK(*back->encode("Hello world<|endoftext|>") == std::vector<int32_t>{15496, 995, 50256});
  CHECK(back->eos() == 50256);
  auto files = gpt2().files();
  files.pop_back();
  CHECK(contains(Tokenizer::from_json(json, files).status().message(), "neither"));

  const auto text = Tokenizer::characters_of("h\xC3\xA9llo\n");
  REQUIRE(text.ok());
  auto same = Tokenizer::from_json(*json_parse(text->to_json().dump()), {});
  REQUIRE(same.ok());
  CHECK(*same->encode("\n\xC3\xA9") == std::vector<int32_t>{0, 4});
  CHECK(same->vocab_size() == 5);
  CHECK(Tokenizer::from_json(Tokenizer::bytes().to_json(), {})->vocab_size() == 256);
  CHECK(contains(Tokenizer::from_json(*json_parse(R"({"kind":"word"})"), {}).status().message(), "\"word\""));
  CHECK_FALSE(Tokenizer::from_json(*json_parse(R"({"kind":"char","characters":["ab"]})"), {}).ok());
  CHECK_FALSE(Tokenizer::from_json(*json_parse(R"({"kind":"char","characters":["a","a"]})"), {}).ok());
}

TEST_CASE("char: sorted code points, unknown ones are named") {
  const auto tokenizer = Tokenizer::characters_of("banana\n");
  REQUIRE(tokenizer.ok());
  CHECK(*tokenizer->encode("abn\n") == std::vector<int32_t>{1, 2, 3, 0});
  CHECK(*tokenizer->decode(std::vector<int32_t>{3, 1}) == "na");
  const auto bad = tokenizer->encode("ban\xC3\xA9");
  CHECK(bad.status().code() == Code::invalid);
  CHECK(contains(bad.status().message(), "U+00E9"));
  CHECK(contains(bad.status().message(), "byte 3"));
  CHECK_FALSE(Tokenizer::characters_of("").ok());
  CHECK_FALSE(Tokenizer::characters_of("\xff").ok());
}

TEST_CASE("byte: any bytes go through") {
  std::string all;
  for (int b = 0; b < 256; ++b) all.push_back(static_cast<char>(b));
  const auto ids = Tokenizer::bytes().encode(all);
  REQUIRE(ids->size() == 256);
  CHECK((*ids)[200] == 200);
  CHECK(*Tokenizer::bytes().decode(*ids) == all);
  CHECK_FALSE(Tokenizer::bytes().eos());
}

TEST_CASE("long words and words of any cut give the same ids; the cache changes nothing") {
  std::mt19937 random(1);
  const std::string alphabet = "aab 'se1\n\t\xC2\xA0\xE2\x80\x83\xE4\xBD\xA0.<|";
  Encoder encoder(gpt2());
  for (int round = 0; round < 200; ++round) {
    std::string text;
    for (int i = 0; i < 300; ++i) text.push_back(alphabet[random() % alphabet.size()]);
    text = utf8_repair(text);
    std::vector<int32_t> warm;
    REQUIRE(encoder.append(text, warm).ok());
    CHECK(warm == *gpt2().encode(text));
    const size_t cut = encoder.safe_cut(text);
    auto parts = *gpt2().encode(text.substr(0, cut));
    const auto rest = *gpt2().encode(text.substr(cut));
    parts.insert(parts.end(), rest.begin(), rest.end());
    CHECK(parts == warm);
  }
  // Short words go by scanning, long ones by a heap: 'a' n times must be the greedy merge of both.
  const auto long_word = *gpt2().encode(std::string(100000, 'a'));
  CHECK(*gpt2().decode(long_word) == std::string(100000, 'a'));
  CHECK(long_word.size() < 60000);
}

TEST_CASE("tokenizer.json of GPT-2's kind is read, in both spellings of merges") {
  auto tokenizer = Tokenizer::parse_tokenizer_json(small_tokenizer_json());
  REQUIRE_MESSAGE(tokenizer.ok(), tokenizer.status().message());
  CHECK(*tokenizer->encode("abc<|endoftext|>ba") == std::vector<int32_t>{3, 2, 4, 1, 0});
  CHECK(tokenizer->eos() == 4);
  CHECK(tokenizer->encode("d").status().message() == "byte 0x64 has no token in the vocabulary");
  tokenizer = Tokenizer::parse_tokenizer_json(small_tokenizer_json([](Json& json) {
    json["model"]["merges"] = Json::Array{"a b"};
    json["post_processor"] = Json();
  }));
  REQUIRE(tokenizer.ok());
  CHECK(*tokenizer->encode("abab") == std::vector<int32_t>{3, 3});
}

TEST_CASE("tokenizer.json of another kind is refused by field and value") {
  CHECK(contains(refusal([](Json& j) { j["model"]["type"] = "Unigram"; }), "model.type: found \"Unigram\""));
  CHECK(contains(refusal([](Json& j) { j["normalizer"] = Json::Object{{"type", "NFC"}}; }),
                 "normalizer: found \"NFC\", expected null"));
  CHECK(contains(refusal([](Json& j) { j["pre_tokenizer"] = Json::Object{{"type", "Sequence"}}; }),
                 "pre_tokenizer.type: found \"Sequence\""));
  CHECK(contains(refusal([](Json& j) { j["pre_tokenizer"]["add_prefix_space"] = true; }),
                 "pre_tokenizer.add_prefix_space: found true"));
  CHECK(contains(refusal([](Json& j) { j["model"]["ignore_merges"] = true; }), "model.ignore_merges: found true"));
  CHECK(contains(refusal([](Json& j) { j["model"]["new_rule"] = 1; }), "model.new_rule"));
  CHECK(contains(refusal([](Json& j) { j["added_tokens"].push_back(Json::Object{{"id", 9}, {"content", ""}}); }),
                 "added_tokens[1].content"));
  CHECK(contains(refusal([](Json& j) { j["post_processor"] = Json::Object{{"type", "BertProcessing"}}; }),
                 "post_processor: found \"BertProcessing\""));
  CHECK(contains(refusal([](Json& j) { j["decoder"] = Json(); }), "decoder.type: found null"));
}

TEST_CASE("damaged vocabularies are refused") {
  const auto message = [](std::string_view vocab, std::string_view merges) {
    const auto parsed = Tokenizer::parse_gpt2(vocab, merges);
    return parsed.ok() ? std::string("ok") : parsed.status().message();
  };
  CHECK(message(R"({"a":0,"b":1,"ab":2})", "#version: 0.2\na b\n") == "ok");
  CHECK(contains(message(R"({"a":0,"b":0})", ""), "id 0 belongs to"));
  CHECK(contains(message(R"({"a":-1})", ""), "has id -1"));
  CHECK(contains(message(R"({"a":4194304})", ""), "has id 4194304"));
  CHECK(contains(message(R"({"a":1.5})", ""), "has id 1.5"));
  CHECK(contains(message(R"({})", ""), "vocab.json"));
  CHECK(contains(message(R"({"a b":0})", ""), "not spelled in byte symbols"));
  CHECK(contains(message(R"({"a":0,"b":1})", "a b\n"), "token \"ab\" is not in the vocabulary"));
  CHECK(contains(message(R"({"a":0,"b":1,"ab":2})", "a b\na b\n"), "merge 2"));
  CHECK(contains(message(R"({"a":0})", "#version\na\n"), "merges.txt:2"));
  CHECK(contains(message("[1", ""), "vocab.json"));
}

TEST_CASE("load finds files by path, folder and compression, and says what is missing") {
  Scratch scratch;
  scratch.put("hf/tokenizer.json", small_tokenizer_json());
  CHECK(Tokenizer::load(scratch.path("hf"))->vocab_size() == 5);
  scratch.put("hf/tokenizer_config.json", R"({"eos_token":{"content":"ab"}})");
  CHECK(Tokenizer::load(scratch.path("hf/tokenizer.json"))->eos() == 4);  // "ab" is no added token
  CHECK(Tokenizer::load(kTokenizers + "gpt2/vocab.json.gz")->vocab_size() == 50257);
  CHECK(Tokenizer::load("byte")->vocab_size() == 256);
  CHECK(Tokenizer::load(scratch.path("nowhere")).status().code() == Code::io);
  CHECK(Tokenizer::load(scratch.path()).status().code() == Code::io);
  scratch.put("only/vocab.json", R"({"a":0})");
  CHECK(Tokenizer::load(scratch.path("only/vocab.json")).status().code() == Code::io);
  CHECK(Tokenizer::load("char").status().code() == Code::usage);
}
