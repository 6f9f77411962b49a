// SPDX-License-Identifier: Apache-2.0
//
// Any bytes as a row of batches: two bytes of length (little-endian), then the
// payload, and so on. Each is an error or snapshots; those encode again and come
// back equal.
#include <cstdint>
#include <cstdlib>

#include "userspace/store/snapshot_codec.h"

extern "C" int MycroftPayloadFuzz(const uint8_t* data, size_t size) {
  mycroft::SnapshotDecoder decoder;
  mycroft::SnapshotEncoder encoder;
  mycroft::SnapshotDecoder check;
  while (size >= 2) {
    size_t length = static_cast<size_t>(data[0] | data[1] << 8);
    data += 2;
    size -= 2;
    if (length > size) length = size;
    const auto snapshots = decoder.Decode(data, length);
    data += length;
    size -= length;
    if (!snapshots.ok()) {
      if (!absl::IsDataLoss(snapshots.status()) || snapshots.status().message().empty()) {
        std::abort();
      }
      continue;
    }
    for (const mycroft::Snapshot& snapshot : *snapshots) {
      if (!mycroft::CheckStorable(snapshot).ok()) std::abort();
    }
    const auto payload = encoder.Encode(*snapshots, false);
    if (!payload.ok()) std::abort();
    const auto again = check.Decode(payload->data(), payload->size());
    if (!again.ok() || *again != *snapshots) std::abort();
  }
  return 0;
}

#ifdef MYCROFT_FUZZER
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return MycroftPayloadFuzz(data, size);
}
#endif
