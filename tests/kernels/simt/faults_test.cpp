// What only a kernel can see reaches the stream: ids outside their tables and logits that cannot be drawn from, in the words
// of the cpu table.
#include "support/cuda_case.h"

namespace llmops::test {
namespace {

struct Rig {
  std::unique_ptr<Device> device;
  std::vector<std::unique_ptr<Mirror>> mirrors;
  explicit Rig(simt::Schedule schedule = {}) {
    simt::set_schedule(schedule);
    device = open_cuda_device();
  }
  TensorView on_device(const GuardedTensor& t) {
    mirrors.push_back(std::make_unique<Mirror>(*device, t));
    return mirrors.back()->view();
  }
};

// The cuda table's message under every schedule, which must be the end of the cpu table's.
template <class Args, class Make>
std::string fault(OpFunction<Args> op, const std::vector<GuardedTensor*>& tensors, Make make) {
  std::vector<TensorView> views;
  for (GuardedTensor* t : tensors) views.push_back(t->view());
  const std::string cpu = run_on(*open_device({.threads = 2}), op, make(views));
  std::string cuda;
  for (const simt::Schedule schedule : schedules()) {
    Rig rig(schedule);
    for (size_t i = 0; i < tensors.size(); ++i) views[i] = rig.on_device(*tensors[i]);
    cuda = run_on(*rig.device, op, make(views));
    CHECK_MESSAGE((!cuda.empty() && cpu.ends_with(cuda)), fmt::format("cpu '{}', cuda '{}'", cpu, cuda));
  }
  return cuda;
}

TEST_CASE("cuda: an id outside its table is named with its place and the limit, the first of several") {
  GuardedTensor table = random_tensor(DType::f32, {5, 8}, 1), pos_table = random_tensor(DType::f32, {2, 8}, 2);
  GuardedTensor tokens = random_tensor(DType::f32, {40, 8}, 3), good = random_ints(DType::i32, 40, 0, 2, 4);
  for (int wrong : {5, -1, 1 << 30, INT32_MIN}) {
    CAPTURE(wrong);
    GuardedTensor bad(good);
    bad.set(11, wrong), bad.set(39, 77), bad.set(12, -3);
    const std::string place = fmt::format("[11] is {}, expected 0 or more and less than ", wrong);
    const auto names = [&](const std::string& message, const std::string& tensor) {
      CHECK_MESSAGE(message.find(tensor + place) != std::string::npos, message);
    };
    names(fault(embedding, {&bad, &good, &table, &pos_table, &tokens},
                [](auto& t) { return EmbeddingArgs{t[0], t[1], t[2], t[3], t[4]}; }), "embedding: ids");
    names(fault(embedding, {&good, &bad, &table, &pos_table, &tokens},
                [](auto& t) { return EmbeddingArgs{t[0], t[1], t[2], t[3], t[4]}; }), "embedding: positions");
    for (const char* tensor : {"ids", "positions"}) {
      const bool ids = tensor == std::string("ids");
      names(fault(embedding_backward, {ids ? &bad : &good, ids ? &good : &bad, &tokens, &table, &pos_table},
                  [](auto& t) { return EmbeddingBackwardArgs{t[0], t[1], t[2], t[3], t[4], true, true}; }),
            std::string("embedding_backward: ") + tensor);
    }
    GuardedTensor heads = random_tensor(DType::f32, {40, 1, 8}, 5), angles = random_tensor(DType::f32, {5, 4, 2}, 6);
    names(fault(rope, {&heads, &bad, &angles}, [](auto& t) { return RopeArgs{t[0], t[1], t[2], t[0], false, false}; }),
          "rope: positions");
    GuardedTensor k_cache = random_tensor(DType::f32, {5, 1, 8}, 7), v_cache(k_cache);
    names(fault(kv_store, {&heads, &bad, &k_cache, &v_cache},
                [](auto& t) { return KvStoreArgs{t[0], t[0], t[1], t[2], t[3]}; }), "kv_store: rows");
    GuardedTensor q(heads);
    for (const char* tensor : {"rows", "positions"}) {
      const bool of_row = tensor == std::string("rows");
      names(fault(kv_store, {&heads, of_row ? &bad : &good, &k_cache, &v_cache, &q, of_row ? &good : &bad, &angles},
                  [](auto& t) { return KvStoreArgs{t[0], t[0], t[1], t[2], t[3], t[4], t[5], t[6], false}; }),
            std::string("kv_store: ") + tensor);
    }
  }
  GuardedTensor targets = tensor_of<int>(DType::i32, {1, -5, 8, 9}), logits = random_tensor(DType::f32, {4, 9}, 8);
  GuardedTensor losses(DType::f32, {4});
  const std::string message = fault(cross_entropy, {&logits, &targets, &losses},
                                    [](auto& t) { return CrossEntropyArgs{t[0], t[1], t[2], {}, 8, 1}; });
  CHECK(message.find("cross_entropy: targets[2] is 8, expected less than 8") != std::string::npos);
}

TEST_CASE("cuda sample: errors name the first bad row") {
  const double inf = std::numeric_limits<double>::infinity(), nan = std::nan("");
  const auto error = [&](auto spoil) {
    GuardedTensor logits = random_tensor(DType::f32, {6, 18}, 1), temperature(DType::f32, {6}), top_p(DType::f32, {6});
    GuardedTensor top_k(DType::i32, {6}), key(DType::i64, {6}), ids(DType::i32, {6});
    temperature.fill(1), top_p.fill(0.9), top_k.fill(3), key.fill(7);
    spoil(logits, temperature, top_k, top_p);
    return fault(sample, {&logits, &temperature, &top_k, &top_p, &key, &ids},
                 [](auto& t) { return SampleArgs{t[0], t[1], t[2], t[3], t[4], t[4], t[5], 18}; });
  };
  CHECK(error([&](auto& x, auto&, auto&, auto&) { x.set(2 * 18 + 17, nan), x.set(5 * 18, -nan); }).find("row 2: a NaN") == 0);
  CHECK(error([&](auto& x, auto& t, auto&, auto&) { x.set(3, -nan), t.set(0, 0); }).find("row 0: a NaN") == 0);
  CHECK(error([&](auto& x, auto&, auto&, auto&) { x.set(20, inf); }).find("row 1: an infinite") == 0);
  CHECK(error([&](auto& x, auto&, auto&, auto&) {
          for (int i = 0; i < 18; ++i) x.set(i, -inf);
        }).find("row 0: an infinite") == 0);
  CHECK(error([&](auto&, auto& t, auto&, auto&) { t.set(4, nan); }).find("row 4: temperature") == 0);
  CHECK(error([&](auto&, auto& t, auto&, auto&) { t.set(4, -1); }).find("row 4: temperature") == 0);
  CHECK(error([&](auto&, auto&, auto& k, auto&) { k.set(3, -2); }).find("row 3: top_k") == 0);
  CHECK(error([&](auto&, auto&, auto&, auto& p) { p.set(1, 1.5); }).find("row 1: top_p") == 0);
}

TEST_CASE("cuda: the first op that finds a fault is named, by a sync with a deadline too, and the device stays failed") {
  GuardedTensor table = random_tensor(DType::f32, {5, 8}, 1), out(DType::f32, {2, 8});
  GuardedTensor heads = random_tensor(DType::f32, {2, 1, 8}, 2), angles = random_tensor(DType::f32, {5, 4, 2}, 3);
  GuardedTensor good = tensor_of<int>(DType::i32, {1, 0}), bad = tensor_of<int>(DType::i32, {0, 9});
  for (double deadline_s : {0.0, 60.0}) {
    Rig rig;
    Stream& stream = rig.device->compute();
    const TensorView t = rig.on_device(table), o = rig.on_device(out), x = rig.on_device(heads), a = rig.on_device(angles);
    const TensorView right = rig.on_device(good), wrong = rig.on_device(bad);
    REQUIRE(embedding(stream, {right, {}, t, {}, o}).ok());
    REQUIRE(stream.sync(deadline_s).ok());
    REQUIRE(rope(stream, {x, wrong, a, x, false, false}).ok());
    REQUIRE(embedding(stream, {wrong, {}, t, {}, o}).ok());
    const Status status = stream.sync(deadline_s);
    CHECK(status.code() == Code::invalid);
    CHECK_MESSAGE(status.message().find("rope: positions[1] is 9") == 0, status.message());
    CHECK(rig.device->new_stream()->sync().message() == status.message());
  }
}

}  // namespace
}  // namespace llmops::test
