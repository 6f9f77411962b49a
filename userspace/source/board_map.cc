// SPDX-License-Identifier: Apache-2.0
#include "userspace/source/board_map.h"

#include <bit>
#include <utility>

#include "absl/status/status.h"

namespace mycroft {

absl::StatusOr<BoardMap> BoardMap::Open(const std::string& path) {
  auto sealed = SealedMap::Open(path, sizeof(mc_board_header), MC_BOARD_MAX_BYTES);
  if (!sealed.ok()) return sealed.status();
  BoardMap map;
  map.map_ = *std::move(sealed);
  static_assert(offsetof(mc_board_header, magic) == 0);

  mc_board_header header{};
  map.map_.CopyHead(&header, sizeof(header));
  if (header.magic != MC_BOARD_MAGIC) return map.map_.Bad("wrong magic number");
  if (header.version != MC_BOARD_VERSION) {
    return absl::FailedPreconditionError(
        "board " + path + " has version " + std::to_string(header.version) +
        ", this program reads version " + std::to_string(MC_BOARD_VERSION) +
        ": use the plugin and the agent of one release");
  }
  if (header.total_bytes != map.map_.bytes())
    return map.map_.Bad("the size in its header is wrong");
  if (!map.map_.TableFits(header.comms, sizeof(mc_board_comm), 65535) ||
      !map.map_.TableFits(header.threads, sizeof(mc_board_thread), 65535) ||
      !map.map_.TableFits(header.ops, sizeof(mc_board_op), 1u << 20) ||
      !std::has_single_bit(header.ops.capacity) ||
      !map.map_.TableFits(header.flows, sizeof(mc_board_flow), 1u << 20)) {
    return map.map_.Bad("its table directory is out of bounds");
  }
  map.comms_ = header.comms;
  map.threads_ = header.threads;
  map.ops_ = header.ops;
  map.flows_ = header.flows;
  return map;
}

mc_board_header BoardMap::Header() const {
  mc_board_header header{};
  map_.CopyHead(&header, sizeof(header));
  header.comms = comms_;
  header.threads = threads_;
  header.ops = ops_;
  header.flows = flows_;
  return header;
}

bool BoardMap::ReadComm(uint32_t index, mc_board_comm* out) const {
  const std::byte* line = map_.Line(comms_, index);
  return line != nullptr && SealedMap::ReadPart(line, 0, sizeof(*out), out);
}

bool BoardMap::ReadThread(uint32_t index, mc_board_thread* out) const {
  const std::byte* line = map_.Line(threads_, index);
  return line != nullptr && SealedMap::ReadPart(line, 0, sizeof(*out), out);
}

bool BoardMap::ReadFlow(uint32_t index, mc_board_flow* out) const {
  const std::byte* line = map_.Line(flows_, index);
  return line != nullptr && SealedMap::ReadPart(line, 0, sizeof(*out), out);
}

bool BoardMap::ReadOp(uint64_t id, mc_board_op* out) const {
  const std::byte* line = map_.Line(ops_, id & (ops_.capacity - 1));
  if (line == nullptr) return false;
  constexpr size_t kProxy = offsetof(mc_board_op, proxy_seq);
  constexpr size_t kKernel = offsetof(mc_board_op, kernel_seq);
  constexpr int kTries = 16;
  for (int i = 0; i < kTries; ++i) {
    if (!SealedMap::ReadPart(line, 0, kProxy, out)) return false;
    if (!SealedMap::ReadPart(line, kProxy, kKernel - kProxy, out)) return false;
    if (!SealedMap::ReadPart(line, kKernel, sizeof(*out) - kKernel, out)) return false;
    // The slot may have been given to another operation between the parts.
    mc_board_op again{};
    if (!SealedMap::ReadPart(line, 0, kProxy, &again)) return false;
    if (again.id == out->id) return true;
  }
  return false;
}

uint32_t BoardMap::FlowSeq(uint32_t index) const {
  const std::byte* line = map_.Line(flows_, index);
  return line == nullptr ? 0 : SealedMap::LoadSeq(line);
}

BoardMap::OpSeq BoardMap::ReadOpSeq(uint64_t id) const {
  const std::byte* line = map_.Line(ops_, id & (ops_.capacity - 1));
  OpSeq seq;
  if (line == nullptr) return seq;
  seq.launch = SealedMap::LoadSeq(line);
  seq.proxy = SealedMap::LoadSeq(line + offsetof(mc_board_op, proxy_seq));
  seq.kernel = SealedMap::LoadSeq(line + offsetof(mc_board_op, kernel_seq));
  seq.id = __atomic_load_n(reinterpret_cast<const uint64_t*>(line + offsetof(mc_board_op, id)),
                           __ATOMIC_RELAXED);
  return seq;
}

bool BoardMap::RequestLevel(mc_level level) {
  void* head = map_.MapHeadForWriting(sizeof(mc_board_header), MC_BOARD_MAGIC);
  if (head == nullptr) return false;
  __atomic_store_n(&static_cast<mc_board_header*>(head)->requested_level, uint32_t{level},
                   __ATOMIC_RELEASE);
  SealedMap::UnmapHead(head, sizeof(mc_board_header));
  return true;
}

}  // namespace mycroft
