// SPDX-License-Identifier: Apache-2.0
//
// Xids (of GPUs) and SXids (of NVSwitches): what NVIDIA's driver reports to the kernel
// log, and what each number means.
//
//   NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python3, GPU has fallen off the bus.
//   NVRM: Xid (0000:03:00): 14, Channel 00000001                          before 2014
//   NVRM: Xid (PCI:0000:3b:00 GPU-I:05): 94, pid='<unknown>', ...         MIG
//   NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.                   as an Xid 79
//   nvidia-nvswitch3: SXid (PCI:0000:c5:00.0): 20034, Fatal, Link 24 LTSSM Fault Up
//
// Sources of the facts: NVIDIA, "XID Errors" (docs.nvidia.com/deploy/xid-errors) and
// "Fabric Manager User Guide"; Linux, Documentation/ABI/testing/dev-kmsg. The words are
// ours. The functions are thread-safe, KernelLog is not.
#ifndef MYCROFT_USERSPACE_SOURCE_XID_H_
#define MYCROFT_USERSPACE_SOURCE_XID_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace mycroft {

// Whose fault such a report usually is.
enum class XidOrigin : uint8_t {
  kApplication,  // what a program asked for
  kDriver,       // software of the driver, or cannot be told from it
  kGpu,          // the chip, its microcontrollers, power
  kMemory,       // of the GPU
  kNvlink,
  kPcie,         // the GPU's way to the host
};
const char* ToString(XidOrigin origin);

struct XidMeaning {
  uint32_t number;
  const char* name;  // a few words, for sentences
  XidOrigin origin;
  bool hardware;     // alone reason enough to suspect the device
  bool follower;     // usually the after-effect of another one
};
// nullptr: not in the table.
const XidMeaning* FindXid(uint32_t number);

struct XidReport {
  bool nvswitch = false;  // an SXid
  bool fatal = false;     // SXid: it says so
  std::string address;    // PCI function, "0000:3b:00.0"
  uint32_t number = 0;
  uint32_t pid = 0;       // in the initial pid namespace; 0: not known
  std::string process;    // its name; empty: not known
  std::optional<uint32_t> link;          // SXid: of the switch
  std::optional<uint32_t> gpu_instance;  // MIG
  std::string text;                      // what follows, at most 160 characters
};

enum class XidParse { kOther, kXid, kMalformed };
// kMalformed: it claims to be a report and is none that is understood.
XidParse ParseXid(std::string_view message, XidReport* report);

// "6,339,5140900,-;message"; escapes (\x0a) undone, characters that do not print
// replaced. nullopt: not a record.
struct KmsgRecord {
  uint64_t sequence = 0;
  uint64_t time_us = 0;  // of the log's own clock: nearly CLOCK_MONOTONIC
  std::string message;
};
std::optional<KmsgRecord> ParseKmsg(std::string_view line);

struct TimedXid {
  XidReport report;
  uint64_t t_ns = 0;  // CLOCK_MONOTONIC, not later than when it was read
  bool backlog = false;  // from before the log was opened: t_ns drifts with the log's clock
};
struct KernelLogBatch {
  std::vector<TimedXid> xids;
  bool more = false;  // the bound was reached: there is more to read
};

// /dev/kmsg, from its oldest record on: an agent that is started because a job stands
// still must see what happened before. Never blocks.
class KernelLog {
 public:
  // PermissionDenied, NotFound, Unavailable: the message says what to do.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<KernelLog>> Open(const std::string& path);
  ~KernelLog();
  KernelLog(const KernelLog&) = delete;
  KernelLog& operator=(const KernelLog&) = delete;

  // At most `max_records` of them. `now_ns`: CLOCK_MONOTONIC.
  KernelLogBatch Read(uint64_t now_ns, size_t max_records = 4096);

  uint64_t records() const { return records_; }
  // Records that were overwritten before they were read (gaps in their numbers).
  uint64_t lost() const { return lost_; }
  // Lines that are no records, or reports that are not understood.
  uint64_t malformed() const { return malformed_; }

 private:
  explicit KernelLog(int fd) : fd_(fd) {}
  void Take(std::string_view line, uint64_t now_ns, KernelLogBatch* out);

  const int fd_;
  std::string partial_;  // a line without its end (files of tests)
  std::optional<uint64_t> next_sequence_;
  uint64_t last_read_ns_ = 0;  // 0: the backlog is not read yet
  uint64_t records_ = 0, lost_ = 0, malformed_ = 0;
};

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_SOURCE_XID_H_
