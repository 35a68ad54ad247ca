// Status and Result: how every function of src/ and kernels/ reports failure. Nothing here throws.
//
// A Code decides the exit code of the process (the table of README.md); the message is one line for a person:
// what was found, what was expected, what to do.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

namespace llmops {

enum class Code : uint8_t {
  ok,           // exit 0
  finding,      // exit 1: the work was done and the answer is no (mismatch, does not fit)
  usage,        // exit 2: flags, configuration, an output folder in use
  invalid,      // exit 3: input is empty, malformed or corrupt
  io,           // exit 4: path missing, disk full, out of memory, no usable device
  peer,         // exit 5: a device, rank or peer failed or timed out
  interrupted,  // exit 75: stopped by a signal or time limit after saving
};

constexpr int exit_code(Code code) {
  constexpr int kExit[] = {0, 1, 2, 3, 4, 5, 75};
  return kExit[static_cast<int>(code)];
}

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message) : code_(code), message_(std::move(message)) {}
  bool ok() const { return code_ == Code::ok; }
  Code code() const { return code_; }
  const std::string& message() const { return message_; }
  // The same failure with the object it happened to in front: "FILE: message".
  Status in(const std::string& object) const {
    return ok() ? Status() : Status(code_, object + ": " + message_);
  }

 private:
  Code code_ = Code::ok;
  std::string message_;
};

inline Status usage_error(std::string message) { return {Code::usage, std::move(message)}; }
inline Status invalid_error(std::string message) { return {Code::invalid, std::move(message)}; }
inline Status io_error(std::string message) { return {Code::io, std::move(message)}; }
inline Status peer_error(std::string message) { return {Code::peer, std::move(message)}; }

// A value or the reason why there is none.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}
  Result(Status status) : status_(std::move(status)) {
    if (status_.ok()) status_ = Status(Code::invalid, "internal error: a Result was made from an ok Status");
  }
  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  T& operator*() { return *value_; }
  const T& operator*() const { return *value_; }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }
  T take() { return std::move(*value_); }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace llmops

#define LLMOPS_CONCAT_(a, b) a##b
#define LLMOPS_CONCAT(a, b) LLMOPS_CONCAT_(a, b)
// Returns from the enclosing function when `expr` (a Status) failed.
#define LLMOPS_TRY(expr)                                    \
  do {                                                      \
    if (auto try_status_ = (expr); !try_status_.ok()) return try_status_; \
  } while (0)
// LLMOPS_ASSIGN(auto x, f()): declares or assigns x from a Result, or returns its Status.
#define LLMOPS_ASSIGN(lhs, expr) LLMOPS_ASSIGN_(LLMOPS_CONCAT(result_, __LINE__), lhs, expr)
#define LLMOPS_ASSIGN_(tmp, lhs, expr)   \
  auto tmp = (expr);                     \
  if (!tmp.ok()) return tmp.status();    \
  lhs = tmp.take()
