// SPDX-License-Identifier: Apache-2.0
#include "tools/lab/job/ring.h"

#include <algorithm>

namespace mycroft::lab {
namespace {

constexpr size_t kElem = sizeof(float);
constexpr int kRingSliceSteps = kSteps / 4;
constexpr int kRingChunkSteps = kSteps / 2;
constexpr size_t kRingChunk = kStepBytes * kRingChunkSteps / kElem;  // elements
constexpr size_t kMinP2pChunk = 32 * 1024;

size_t RoundUp(size_t x, size_t to) { return (x + to - 1) / to * to; }
size_t DivUp(size_t x, size_t by) { return (x + by - 1) / by; }

// Cuts a chunk into slices. All ranks must cut the same chunk length in the same
// way: the sender's slice is the receiver's slice.
void AddChunk(ChannelProgram* program, SliceOp op, size_t count) {
  const int slices = program->chunk_steps / program->slice_steps;
  const size_t most = static_cast<size_t>(program->slice_steps) * kStepBytes / kElem;
  // NCCL does not cut below 1/32 of a full slice.
  const size_t slice = slices == 1 ? count : std::max(RoundUp(DivUp(count, slices), 16), most / 32);
  size_t done = 0;
  for (int i = 0; i < slices; ++i) {
    SliceOp part = op;
    part.src += done;
    part.dst += done;
    part.count = std::min(slice, count - done);
    done += part.count;
    program->slices.push_back(part);
    program->send_transfers += part.send;
    program->recv_transfers += part.recv;
  }
}

int Mod(int x, int n) { return ((x % n) + n) % n; }

}  // namespace

const char* FuncName(Func func) {
  switch (func) {
    case Func::kBroadcast:
      return "Broadcast";
    case Func::kReduce:
      return "Reduce";
    case Func::kAllGather:
      return "AllGather";
    case Func::kReduceScatter:
      return "ReduceScatter";
    case Func::kAllReduce:
      return "AllReduce";
    case Func::kSend:
      return "Send";
    case Func::kRecv:
      return "Recv";
  }
  return "?";
}

void ChannelPart(size_t total, int channels, int channel, size_t* begin, size_t* count) {
  const size_t part = RoundUp(DivUp(total, channels), 4);
  *begin = std::min(total, part * channel);
  *count = std::min(part, total - *begin);
}

ChannelProgram MakeRing(Func func, size_t count, int nranks, int rank, int root, int channels,
                        int channel) {
  ChannelProgram program;
  size_t begin = 0;
  size_t part = 0;
  ChannelPart(count, channels, channel, &begin, &part);

  if (func == Func::kBroadcast) {
    program.slice_steps = 1;
    program.chunk_steps = 1;
    program.chunk_bytes = static_cast<int>(kStepBytes);
    const size_t chunk = kStepBytes / kElem;
    const bool is_root = rank == root;
    const bool is_last = Mod(rank + 1, nranks) == root;
    const size_t loops = std::max<size_t>(1, DivUp(part, chunk));
    for (size_t loop = 0; loop < loops; ++loop) {
      const size_t offset = begin + loop * chunk;
      SliceOp op;
      op.recv = !is_root;
      op.send = !is_last;
      op.store = true;
      op.src = op.dst = offset;
      AddChunk(&program, op, std::min(chunk, part - std::min(part, loop * chunk)));
    }
    return program;
  }

  program.slice_steps = kRingSliceSteps;
  program.chunk_steps = kRingChunkSteps;
  program.chunk_bytes = static_cast<int>(kRingChunk * kElem);
  // AllReduce cuts the message into one chunk per rank and loop; the other two
  // already have one part per rank.
  const bool all_reduce = func == Func::kAllReduce;
  const size_t per_loop = all_reduce ? kRingChunk * nranks : kRingChunk;
  const size_t loops = std::max<size_t>(1, DivUp(part, per_loop));
  for (size_t loop = 0; loop < loops; ++loop) {
    const size_t left = part - std::min(part, loop * per_loop);
    size_t chunk = kRingChunk;
    if (all_reduce && left < per_loop) chunk = RoundUp(DivUp(left, nranks), 16);
    if (!all_reduce) chunk = std::min(left, kRingChunk);
    // Where the chunk of ring position `i` starts in the user's buffer, and how long it is.
    auto place = [&](int i, size_t* offset) -> size_t {
      if (all_reduce) {
        const size_t start = std::min(left, chunk * i);
        *offset = begin + loop * per_loop + start;
        return std::min(chunk, left - start);
      }
      *offset = count * i + begin + loop * per_loop;
      return chunk;
    };
    auto add = [&](int i, bool recv, bool send, bool reduce, bool store) {
      SliceOp op;
      op.recv = recv;
      op.send = send;
      op.reduce = reduce;
      op.store = store;
      const size_t n = place(Mod(i, nranks), &op.src);
      op.dst = op.src;
      if (func == Func::kAllGather) op.src = begin + loop * per_loop;  // own part only
      if (func == Func::kReduceScatter) op.dst = begin + loop * per_loop;
      AddChunk(&program, op, n);
    };
    switch (func) {
      case Func::kAllReduce:
        add(rank - 1, false, true, false, false);
        for (int j = 2; j < nranks; ++j) add(rank - j, true, true, true, false);
        add(rank, true, true, true, true);
        for (int j = 1; j < nranks - 1; ++j) add(rank - j, true, true, false, true);
        add(rank + 1, true, false, false, true);
        break;
      case Func::kReduceScatter:
        add(rank - 1, false, true, false, false);
        for (int j = 2; j < nranks; ++j) add(rank - j, true, true, true, false);
        add(rank, true, false, true, true);
        break;
      case Func::kAllGather:
        add(rank, false, true, false, true);
        for (int j = 1; j < nranks - 1; ++j) add(rank - j, true, true, false, true);
        add(rank + 1, true, false, false, true);
        break;
      case Func::kBroadcast:
      case Func::kReduce:
      case Func::kSend:
      case Func::kRecv:
        break;
    }
  }
  return program;
}

int P2pChannels(size_t count, int channels) {
  const size_t bytes = count * kElem;
  return static_cast<int>(std::clamp<size_t>(bytes / (64 * 1024), 1, channels));
}

ChannelProgram MakeP2p(Func func, size_t count, int channels, int channel) {
  ChannelProgram program;
  size_t begin = 0;
  size_t part = 0;
  ChannelPart(count, channels, channel, &begin, &part);
  size_t chunk_bytes = kStepBytes;
  while (chunk_bytes > kMinP2pChunk && part * kElem <= chunk_bytes / 2) chunk_bytes /= 2;
  program.chunk_bytes = static_cast<int>(chunk_bytes);
  const size_t chunk = chunk_bytes / kElem;
  const size_t loops = std::max<size_t>(1, DivUp(part, chunk));
  for (size_t loop = 0; loop < loops; ++loop) {
    SliceOp op;
    op.recv = func == Func::kRecv;
    op.send = func == Func::kSend;
    op.store = op.recv;
    op.src = op.dst = begin + loop * chunk;
    AddChunk(&program, op, std::min(chunk, part - std::min(part, loop * chunk)));
  }
  return program;
}

}  // namespace mycroft::lab
