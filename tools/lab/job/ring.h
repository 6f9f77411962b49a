// SPDX-License-Identifier: Apache-2.0
//
// The ring algorithms as a program of slices, for one channel of one rank.
//
// NCCL moves a message in chunks; a chunk has a few slices, and one slice is one
// network transfer. A slice takes `slice_steps` of the 8 steps (slots) of a
// connection's FIFO. AllReduce, n ranks, per loop over n chunks:
//
//   send own chunk → (n-2) x receive, add, send → receive, add, store, send
//   → (n-2) x receive, store, send → receive, store
//
// that is 2(n-1) sends and 2(n-1) receives per loop. A transfer of length 0 is
// still made, so that both sides count the same steps. Pure functions.
#ifndef MYCROFT_TOOLS_LAB_JOB_RING_H_
#define MYCROFT_TOOLS_LAB_JOB_RING_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace mycroft::lab {

inline constexpr int kSteps = 8;                 // NCCL_STEPS
inline constexpr size_t kBufferBytes = 1 << 20;  // of one connection
inline constexpr size_t kStepBytes = kBufferBytes / kSteps;

enum class Func { kBroadcast, kReduce, kAllGather, kReduceScatter, kAllReduce, kSend, kRecv };
const char* FuncName(Func func);  // NCCL's word, static

// What one block of a kernel does with one slice. Offsets and lengths in elements
// (float32). Value = slot (+ source when `reduce`), or source without `recv`.
struct SliceOp {
  bool recv = false;
  bool send = false;
  bool reduce = false;
  bool store = false;  // write the value to the destination
  size_t src = 0;
  size_t dst = 0;
  size_t count = 0;
};

struct ChannelProgram {
  std::vector<SliceOp> slices;
  int slice_steps = 1;     // steps per transfer
  int chunk_steps = 1;     // steps per chunk; the FIFO position is rounded up to it
  int chunk_bytes = 0;     // of one step group as the proxy knows it, before x slice_steps
  int send_transfers = 0;  // slices with `send`
  int recv_transfers = 0;
};

// Elements [*begin, *begin + *count) of `total` that belong to a channel.
void ChannelPart(size_t total, int channels, int channel, size_t* begin, size_t* count);

// `count`: elements of the whole message (AllReduce, Broadcast), of one rank's part
// (AllGather: sent; ReduceScatter: received).
ChannelProgram MakeRing(Func func, size_t count, int nranks, int rank, int root, int channels,
                        int channel);

// One direction of a point-to-point message; `func` kSend or kRecv.
ChannelProgram MakeP2p(Func func, size_t count, int channels, int channel);
// Channels that a message of this size uses.
int P2pChannels(size_t count, int channels);

}  // namespace mycroft::lab

#endif  // MYCROFT_TOOLS_LAB_JOB_RING_H_
