#include "report/report.h"

#include <algorithm>

namespace llmops {
void Report::row(std::vector<Json> cells) {
  Json::Object object;
  for (size_t i = 0; i < std::min(cells.size(), columns_.size()); ++i)
    object.emplace_back(columns_[i].key, std::move(cells[i]));
  rows_.emplace_back(std::move(object));
}
void Report::record(Json object) { rows_.push_back(std::move(object)); }
void Report::summary(Column what, Json value) { facts_.push_back({std::move(what), std::move(value)}); }
void Report::note(std::string text) { notes_.push_back(std::move(text)); }
void Report::extra(std::string key, Json value) { extras_.emplace_back(std::move(key), std::move(value)); }

}  // namespace llmops
