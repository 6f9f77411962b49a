// SPDX-License-Identifier: Apache-2.0
//
// Tables of a recording; docs/format.md explains them. The reader compares the
// statements letter by letter with those in the file, so that a file from
// somewhere else cannot bring views or generated columns of its own: a change
// here is a new kRecordingSchemaVersion.
#ifndef MYCROFT_USERSPACE_STORE_SCHEMA_H_
#define MYCROFT_USERSPACE_STORE_SCHEMA_H_

#include <cstdint>

namespace mycroft::store_internal {

inline constexpr int64_t kApplicationId = 0x4d594352;  // "MYCR", bytes 68-71 of the file

struct Table {
  const char* name;
  const char* sql;
};

inline constexpr Table kTables[] = {
    {"meta", "CREATE TABLE meta(key TEXT PRIMARY KEY, value) WITHOUT ROWID"},
    // In order of first appearance, from 1.
    {"host", "CREATE TABLE host(id INTEGER PRIMARY KEY, name TEXT, host_id TEXT)"},
    // keyframe: id of the batch from which decoding must start. Times are those of
    // the snapshots of `host`, the first one in the batch. payload comes last, so
    // that the other columns can be read without it.
    {"batch",
     "CREATE TABLE batch(id INTEGER PRIMARY KEY, keyframe INTEGER, host INTEGER, t0_ns INTEGER, "
     "t1_ns INTEGER, wall0_ns INTEGER, wall1_ns INTEGER, snapshots INTEGER, raw_bytes INTEGER, "
     "crc INTEGER, payload BLOB)"},
    {"incident", "CREATE TABLE incident(id INTEGER PRIMARY KEY, json TEXT)"},
};

// Keys in `meta`, before the name of a host: how well its clock is known.
inline constexpr char kClockPrefix[] = "clock:";

// No batch is larger; the reader refuses what is.
inline constexpr int kMaxPayloadBytes = 64 << 20;

}  // namespace mycroft::store_internal

#endif  // MYCROFT_USERSPACE_STORE_SCHEMA_H_
