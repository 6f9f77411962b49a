// SPDX-License-Identifier: Apache-2.0
//
// Where the fields of activity records are. Their layout depends on the version of the
// libcupti that writes them, not on the header we were built with: each release may
// append fields, and so names a new struct (Kernel8 in 12.0, Kernel9 up to 12.9,
// Kernel10 in 13.0). We read only fields that are in the table of that version; for a
// version that is not in the table no record is read at all (callbacks only), and the
// board says so.
//
// Source: cupti_activity.h and cupti_activity_deprecated.h; every offset in the table
// is asserted against the structs of the header at hand (layout.cc).
#ifndef MYCROFT_CUPTI_AGENT_LAYOUT_H_
#define MYCROFT_CUPTI_AGENT_LAYOUT_H_

#include <cstdint>
#include <cstring>

namespace mycroft::agent {

struct WorkLayout {
  uint16_t start, end, device, context, stream, correlation, graph;  // offsets in bytes
};

struct RecordLayout {
  uint32_t first_version, last_version;  // of cuptiGetVersion, both included
  WorkLayout kernel;
  uint16_t kernel_name;  // const char*
  WorkLayout copy;
  uint16_t copy_kind;  // uint8_t, CUpti_ActivityMemcpyKind
  uint16_t copy_bytes;
  WorkLayout peer;  // copies between devices: a kind of its own, copy_kind and copy_bytes as above
  WorkLayout set;
  uint16_t set_bytes;
  uint16_t overhead_start, overhead_end;
};

// Null: not known.
const RecordLayout* FindLayout(uint32_t cupti_version);

// A field of a record. Records are packed to 8 bytes, but nothing is assumed of it.
template <class T>
T Field(const void* record, uint16_t offset) {
  T value;
  memcpy(&value, static_cast<const char*>(record) + offset, sizeof(T));
  return value;
}

}  // namespace mycroft::agent

#endif  // MYCROFT_CUPTI_AGENT_LAYOUT_H_
