// SPDX-License-Identifier: Apache-2.0
//
// Made call sequences that no NCCL would make, from fixed seeds: whatever comes, the
// plugin survives and the board stays within its bounds. MYCROFT_FUZZ_CALLS sets
// the number of calls per seed.
#include <random>
#include <vector>

#include "cupti/nccl/plugin_driver.h"

namespace mycroft::nccl {
namespace {

template <int kVersion>
class Fuzzer {
 public:
  using D = Driver<kVersion>;

  explicit Fuzzer(uint64_t seed) : random_(seed) {
    for (int i = 0; i < 3; ++i) contexts_.push_back(n_.Init(static_cast<uint64_t>(i), "c", 0, 4));
  }

  void Run(int calls) {
    for (int i = 0; i < calls; ++i) {
      if (Chance(100)) At(Below(1'000'000));  // also backwards
      Call();
      if (i % 20'000 == 0) n_.board().ExpectSane();
      if (::testing::Test::HasFatalFailure()) return;
    }
    n_.board().ExpectSane();
  }

 private:
  uint64_t Below(uint64_t n) { return random_() % n; }
  bool Chance(uint64_t one_in) { return Below(one_in) == 0; }
  template <class T>
  T Pick(const std::vector<T>& from) {
    return from[Below(from.size())];
  }

  // Mostly handles that were given, some of them damaged, some made up.
  void* Handle() {
    if (handles_.empty() || Chance(30)) {
      return reinterpret_cast<void*>(Chance(2) ? random_() : Below(3) * 0x1000);
    }
    auto value = reinterpret_cast<uint64_t>(Pick(handles_));
    if (Chance(30)) value ^= uint64_t{1} << Below(64);
    if (Chance(50)) value += Below(5);
    return reinterpret_cast<void*>(value);
  }
  void* Context() { return Chance(20) ? Handle() : Pick(contexts_); }

  void Keep(void* handle) {
    if (handle == nullptr) return;
    if (handles_.size() < 500) {
      handles_.push_back(handle);
    } else {
      handles_[Below(handles_.size())] = handle;
    }
  }

  void Call() {
    static const std::vector<const char*> funcs = {"AllReduce", "Send", "Recv", "", nullptr, "x"};
    static const std::vector<int> steps = {0, 1, 2, 3, 5, 7, 8, 15, 16, 17, 131072, INT_MAX, -1};
    switch (Below(12)) {
      case 0:
        return Keep(n_.StartIn(Context(), D::CollEvent(Handle(), Pick(funcs), random_())));
      case 1:
        return Keep(n_.StartIn(Context(),
                               D::P2pEvent(Handle(), Pick(funcs), static_cast<int>(Below(5)) - 1)));
      case 2:
      case 3: {
        auto d = D::ProxyEvent(Handle(), static_cast<int>(Below(4)), static_cast<int>(Below(3)),
                               Chance(2), Pick(steps), Chance(20) ? 1 : getpid());
        if (Chance(20)) d.proxy_op.chunk_size = -5;
        return Keep(n_.StartIn(Context(), d));
      }
      case 4:
      case 5: {
        auto d = D::Event(kProxyStep, Handle());
        d.proxy_step.step = Pick(steps);
        return Keep(n_.StartIn(Context(), d));
      }
      case 6: {
        auto d = D::Event(kKernelCh, Handle());
        d.kernel_ch.channel = static_cast<uint8_t>(Below(256));
        d.kernel_ch.gpu_timer = random_();
        return Keep(n_.StartIn(Context(), d));
      }
      case 7: {
        auto d = D::Event(kGroup, Handle());
        d.type = static_cast<decltype(d.type)>(Chance(5) ? random_() : uint64_t{1} << Below(18));
        // A Coll or P2p with garbage for strings is not what NCCL can send.
        if (d.type == kColl || d.type == kP2p) return;
        return Keep(n_.StartIn(Context(), d));
      }
      case 8:
        return n_.Stop(Handle());
      case 9:
      case 10: {
        const auto state = static_cast<EventState>(Chance(10) ? Below(60) : 8 + Below(15));
        if (Chance(5)) return n_.StateWithoutArgs(Handle(), state);
        return n_.State(Handle(), state, Below(1 << 20));
      }
      case 11:
        if (!Chance(40)) return;
        if (Chance(3)) n_.board().header().requested_level = static_cast<uint32_t>(Below(5));
        const size_t which = Below(contexts_.size());
        n_.Finalize(Chance(5) ? Handle() : contexts_[which]);
        contexts_[which] = n_.Init(random_(), Chance(2) ? nullptr : "f", 1, 4);
        return;
    }
  }

  D n_{false};
  std::mt19937_64 random_;
  std::vector<void*> contexts_, handles_;
};

int Calls() {
  const char* text = getenv("MYCROFT_FUZZ_CALLS");
  return text != nullptr ? atoi(text) : 60'000;
}

TEST(Fuzz, V4) {
  for (uint64_t seed = 1; seed <= 3; ++seed) Fuzzer<4>(seed).Run(Calls());
}
TEST(Fuzz, V5) {
  for (uint64_t seed = 1; seed <= 3; ++seed) Fuzzer<5>(seed).Run(Calls());
}
TEST(Fuzz, V6) {
  for (uint64_t seed = 1; seed <= 3; ++seed) Fuzzer<6>(seed).Run(Calls());
}

// The same with another plugin behind ours; it aborts on a handle that is not its own.
TEST(Fuzz, Chained) {
  Env chain("MYCROFT_CHAIN_PLUGIN", MYCROFT_CHAINED_PATH);
  Env asked("MYCROFT_TEST_CHAIN_MASK", "32767");
  void* library = dlopen(MYCROFT_CHAINED_PATH, RTLD_NOW | RTLD_LOCAL);
  auto* take_log = reinterpret_cast<const char* (*)()>(dlsym(library, "chainedTakeLog"));
  for (uint64_t seed = 1; seed <= 2; ++seed) {
    Fuzzer<5>(seed).Run(Calls());
    EXPECT_NE(std::string(take_log()).find("type 16"), std::string::npos);
  }
}

}  // namespace
}  // namespace mycroft::nccl
