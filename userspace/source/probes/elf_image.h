// SPDX-License-Identifier: Apache-2.0
//
// A shared library as bytes: its functions by name in every version, its relocations,
// where functions begin, and which offset of the file an address is. The file comes
// from another process's file system and is hostile: everything is bounded, what does
// not fit is an error or is not there.
//
// Addresses are those of the file (before the loader adds its base); offsets are those
// of uprobes. x86-64 only. Immutable once made: const members may be called by several threads.
#ifndef MYCROFT_USERSPACE_SOURCE_PROBES_ELF_IMAGE_H_
#define MYCROFT_USERSPACE_SOURCE_PROBES_ELF_IMAGE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace mycroft {

struct ElfFunction {
  uint64_t address = 0;
  uint64_t offset = 0;  // in the file
  uint64_t bytes = 0;   // 0: unknown
  std::string version;  // "IBVERBS_1.1"; empty: none
};

// A pointer that the loader fills in.
struct ElfRelocation {
  uint64_t address = 0;  // of the pointer
  uint64_t target = 0;   // address within this file; 0: an imported symbol
  std::string symbol;    // name of the imported symbol; empty: none
};

class ElfImage {
 public:
  // Invalid argument: not an ELF shared library or program for x86-64, or malformed.
  static absl::StatusOr<ElfImage> FromBytes(std::vector<char> bytes);
  // Not found, permission denied, or out of range (larger than `max_bytes`).
  static absl::StatusOr<ElfImage> FromFile(const std::string& path,
                                           size_t max_bytes = size_t{64} << 20);
  ElfImage(ElfImage&&) = default;
  ElfImage& operator=(ElfImage&&) = default;
  ElfImage(const ElfImage&) = delete;
  ElfImage& operator=(const ElfImage&) = delete;

  // Exported functions of that name, one per version (libibverbs has two of many, and the
  // loader binds a program to either), each address once. From .dynsym.
  std::vector<ElfFunction> Exports(const std::string& name) const;
  // True when .dynsym has an imported symbol whose name begins so.
  bool ImportsPrefix(const std::string& prefix) const;

  // Relocations of .data.rel.ro, by address: RELATIVE and symbolic, RELR included.
  const std::vector<ElfRelocation>& data_relocations() const { return relocations_; }
  // Where .data.rel.ro ends; 0: there is none.
  uint64_t data_end() const { return data_end_; }
  // True when .eh_frame_hdr has a function that begins there.
  bool IsFunctionStart(uint64_t address) const;
  // Where the next function begins: an upper bound of the end; nullopt when unknown.
  std::optional<uint64_t> NextFunction(uint64_t address) const;
  bool HasFunctionTable() const { return !function_starts_.empty(); }

  std::optional<uint64_t> OffsetOf(uint64_t address) const;  // of executable segments only
  std::optional<uint64_t> AddressOf(uint64_t offset) const;  // likewise
  // At most `max_bytes` of code from there, fewer at the end of the segment.
  std::span<const uint8_t> Code(uint64_t address, size_t max_bytes) const;

 private:
  struct Segment {
    uint64_t address, offset, bytes;
    bool executable;
  };
  struct Symbol {
    std::string name;
    uint64_t address, bytes;
    bool function, defined;
    std::string version;
  };
  ElfImage() = default;

  std::vector<char> bytes_;
  std::vector<Segment> segments_;
  std::vector<Symbol> symbols_;  // .dynsym
  std::vector<ElfRelocation> relocations_;
  std::vector<uint64_t> function_starts_;  // sorted
  uint64_t data_end_ = 0;
};

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_SOURCE_PROBES_ELF_IMAGE_H_
