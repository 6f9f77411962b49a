// SPDX-License-Identifier: Apache-2.0
//
// RC verbs in memory, for tests: devices on one fabric, with the rules that the link
// relies on. Work requests of a queue pair are executed in order and acknowledged in
// order, later; an unsignaled one has no completion unless it fails; a write with
// immediate consumes a posted receive, and without one is retried (RNR); keys and
// bounds are checked; after an error everything of the pair is flushed; a send queue
// is emptied by polling only. Nothing moves but by Step(), in an order drawn from a
// seed, and a 64-byte write may be seen half done.
//
// Retries are counted in steps, not in time; 7 is for ever.
//
// Threads: everything may be called from any thread. The fabric outlives all that was
// made from it.
#ifndef MYCROFT_TOOLS_LAB_JOB_VERBS_FAKE_H_
#define MYCROFT_TOOLS_LAB_JOB_VERBS_FAKE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>

#include "tools/lab/job/verbs.h"

namespace mycroft::lab {

class FakePair;
class FakeDevice;

class FakeFabric {
 public:
  explicit FakeFabric(uint64_t seed) : random_(seed) {}
  FakeFabric(const FakeFabric&) = delete;
  FakeFabric& operator=(const FakeFabric&) = delete;

  // GID table: 0 link-local, 1 the right one (RoCE v2, IPv4), others empty.
  std::unique_ptr<VerbsDevice> Open(const std::string& name);

  // Executes one request or delivers one acknowledgement. False: nothing could move.
  bool Step();
  // No packet arrives while it holds.
  void SetBlackout(bool on);
  // The next registration fails as with a memlock limit that is too low.
  void FailNextRegistration();
  void RaiseFatal(VerbsDevice* device);
  void RaiseFatal(uint32_t pair_number);
  size_t pairs() const;
  uint64_t rnr_naks() const;

 private:
  friend class FakePair;
  friend class FakeDevice;
  friend class FakeQueue;
  friend class FakeRegion;

  struct Region {
    FakeDevice* device = nullptr;
    uint64_t address = 0;
    size_t bytes = 0;
  };
  bool Covers(uint32_t key, const FakeDevice* device, uint64_t address, size_t bytes) const;
  void Execute(FakePair* pair);
  // The head request is not answered. True: it failed for good.
  void Unanswered(FakePair* pair, int* attempts, int limit, int status);
  void Fail(FakePair* pair, int status);
  void Flush(FakePair* pair);
  // False: a part of it only, call again.
  bool Write(void* to, const void* from, size_t bytes, bool again);

  mutable std::mutex mutex_;
  std::mt19937_64 random_;
  std::map<uint32_t, FakePair*> pairs_;
  std::map<uint32_t, Region> regions_;  // by key
  uint32_t next_number_ = 17;
  uint32_t next_key_ = 0x1000;
  bool blackout_ = false;
  bool fail_registration_ = false;
  uint64_t rnr_naks_ = 0;
};

}  // namespace mycroft::lab

#endif  // MYCROFT_TOOLS_LAB_JOB_VERBS_FAKE_H_
