// What a Corpus is made of. Private to dataset.cpp and corpus_share.cpp.
#pragma once

#include "data/dataset.h"
#include "data/token_stream.h"

namespace llmops {

struct Corpus::State {
  // A split is a part of a stream: both of the same one when it was divided by val_fraction.
  struct Part {
    size_t stream = 0;
    int64_t begin = 0, count = 0;
    std::vector<int64_t> document_starts;  // from the beginning of the part
  };
  std::optional<Tokenizer> tokenizer;
  int64_t vocab_size = 0;
  TokenStream streams[2];
  Part parts[2];  // by Split
  Hash128 fingerprint;
  int64_t files = 0;
};

}  // namespace llmops
