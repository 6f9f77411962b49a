// SPDX-License-Identifier: Apache-2.0
//
// The training loop of one rank: what it computes, which calls it makes per
// iteration, and the check that every sum is exact.
//
//   flat   compute, then the operations of --ops on "world"
//   dpxpp  1F1B over the pipeline: forward and backward of each microbatch with
//          activations and gradients between stages, then --ops on "dp<stage>"
//   dpxtp  per microbatch compute and an AllReduce on "tp<dp>", then --ops on "dp<tp>"
// The last two end with a small AllReduce on "world".
//
// Data are small whole numbers as float32, so sums are exact in any order. User
// thread only.
#ifndef MYCROFT_TOOLS_LAB_JOB_TRAIN_H_
#define MYCROFT_TOOLS_LAB_JOB_TRAIN_H_

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tools/lab/job/comm.h"
#include "tools/lab/job/config.h"

namespace mycroft::lab {

// Element i of the message that `rank` contributes in `iter`: changes with the
// iteration at every `stride`-th element, so that old data is noticed.
class Pattern {
 public:
  explicit Pattern(size_t count) : stride_(count / 256 + 1) {}
  float Base(size_t i, int rank) const {
    return static_cast<float>(i % 13 + 1 + static_cast<size_t>(rank));
  }
  float At(size_t i, int rank, int64_t iter) const {
    return Base(i, rank) + (i % stride_ == 0 ? Stamp(iter) : 0.0f);
  }
  static float Stamp(int64_t iter) { return static_cast<float>(iter % 101); }
  size_t stride() const { return stride_; }

 private:
  size_t stride_;
};

class Trainer {
 public:
  // `comms` outlive the trainer.
  Trainer(const JobConfig& config, int job_rank, std::vector<Communicator*> comms,
          Process* process);

  // Small operations, one of each kind. False when aborted or wrong.
  bool WarmUp();
  // Enqueues everything of one iteration.
  void Enqueue(int64_t iter);
  // After the stream is synchronized: true when all data are exact. A `full` check
  // looks at every element, else at a sample. A mismatched call makes it false.
  bool Verify(int64_t iter, bool full);

 private:
  struct Message {  // one operation and its buffers
    OpKind kind = OpKind::kAllReduce;
    Communicator* comm = nullptr;
    size_t count = 0;  // elements of the whole message
    std::vector<float> send;
    std::vector<float> recv;
    int peer_from = 0;  // kSendRecv and stages: sender of `recv`
    size_t part() const { return send.size() / static_cast<size_t>(comm->size()); }  // kAllToAll
  };
  Message MakeMessage(OpKind kind, Communicator* comm, int64_t bytes);
  void Stamp(Message* message, int64_t iter, size_t count) const;
  void Compute(bool opens_iteration, int64_t iter);
  void Issue(Message* message, int64_t iter);
  void IssueAllToAll(Message* message, int64_t iter);
  void IssueOps(int64_t iter);
  void Pipeline(int64_t iter);
  size_t StageCount(int64_t iter, int microbatch) const;
  bool Check(const Message& message, int64_t iter, bool full) const;
  bool CheckStage(const Message& message, int64_t iter, int microbatch, bool full) const;

  const JobConfig& config_;
  Process* process_;
  Api api_;
  Communicator* world_ = nullptr;
  Communicator* data_ = nullptr;  // where --ops run; null: data parallel size 1
  Communicator* stages_ = nullptr;
  Communicator* tensor_ = nullptr;
  std::vector<Message> ops_;
  std::vector<Message> tensor_messages_;  // by microbatch
  Message world_message_;
  // By microbatch. Activations go up, gradients go down.
  std::vector<Message> forward_;
  std::vector<Message> backward_;
  std::mt19937_64 random_;
  bool opened_ = false;  // the first compute phase of this iteration was enqueued
};

}  // namespace mycroft::lab

#endif  // MYCROFT_TOOLS_LAB_JOB_TRAIN_H_
