// SPDX-License-Identifier: Apache-2.0
#include "userspace/source/probes/elf_image.h"

#include <fcntl.h>
#include <gelf.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"

#ifndef SHT_RELR
#define SHT_RELR 19
#endif

namespace mycroft {

namespace {

constexpr size_t kMaxSections = 1024;
constexpr size_t kMaxSymbols = 1 << 20;
constexpr size_t kMaxRelocations = 1 << 16;  // in .data.rel.ro; libmlx5 has some 1,000

struct ElfEnd {
  void operator()(Elf* elf) const { elf_end(elf); }
};

absl::Status Malformed(const char* what) {
  return absl::InvalidArgumentError(absl::StrCat("ELF file: ", what));
}

template <typename T>
bool ReadAt(std::span<const char> bytes, uint64_t offset, T* value) {
  if (offset > bytes.size() || bytes.size() - offset < sizeof(T)) return false;
  std::memcpy(value, bytes.data() + offset, sizeof(T));
  return true;
}

}  // namespace

absl::StatusOr<ElfImage> ElfImage::FromFile(const std::string& path, size_t max_bytes) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    const std::string text = absl::StrCat(path, ": ", std::strerror(errno));
    return errno == EACCES || errno == EPERM ? absl::PermissionDeniedError(text)
                                             : absl::NotFoundError(text);
  }
  struct stat s;
  if (fstat(fd, &s) != 0 || !S_ISREG(s.st_mode)) {
    close(fd);
    return absl::InvalidArgumentError(absl::StrCat(path, ": not a regular file"));
  }
  if (s.st_size < 0 || static_cast<uint64_t>(s.st_size) > max_bytes) {
    close(fd);
    return absl::OutOfRangeError(absl::StrCat(path, ": larger than ", max_bytes, " bytes"));
  }
  // A copy, not a mapping: the file may be cut short while it is looked at.
  std::vector<char> bytes(static_cast<size_t>(s.st_size));
  size_t have = 0;
  while (have < bytes.size()) {
    const ssize_t n = pread(fd, bytes.data() + have, bytes.size() - have, static_cast<off_t>(have));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    have += static_cast<size_t>(n);
  }
  close(fd);
  bytes.resize(have);
  return FromBytes(std::move(bytes));
}

absl::StatusOr<ElfImage> ElfImage::FromBytes(std::vector<char> bytes) {
  if (elf_version(EV_CURRENT) == EV_NONE) return absl::InternalError("libelf is too old");
  if (bytes.size() < sizeof(Elf64_Ehdr)) return Malformed("too short");
  ElfImage image;
  image.bytes_ = std::move(bytes);
  // libelf may write into the memory that it is given: into a copy.
  std::vector<char> copy = image.bytes_;
  const std::unique_ptr<Elf, ElfEnd> elf(elf_memory(copy.data(), copy.size()));
  GElf_Ehdr header;
  if (!elf || elf_kind(elf.get()) != ELF_K_ELF || gelf_getehdr(elf.get(), &header) == nullptr)
    return Malformed("no header");
  if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_ident[EI_DATA] != ELFDATA2LSB ||
      header.e_machine != EM_X86_64 || (header.e_type != ET_DYN && header.e_type != ET_EXEC)) {
    return Malformed("not an x86-64 library or program");
  }
  size_t count = 0;
  if (elf_getphdrnum(elf.get(), &count) != 0 || count > kMaxSections)
    return Malformed("program headers");
  const uint64_t size = image.bytes_.size();
  for (size_t i = 0; i < count; ++i) {
    GElf_Phdr p;
    if (gelf_getphdr(elf.get(), static_cast<int>(i), &p) == nullptr)
      return Malformed("program headers");
    if (p.p_type != PT_LOAD) continue;
    if (p.p_offset > size || p.p_filesz > size - p.p_offset ||
        p.p_vaddr > UINT64_MAX - p.p_filesz) {
      return Malformed("a segment is outside of the file");
    }
    image.segments_.push_back({p.p_vaddr, p.p_offset, p.p_filesz, (p.p_flags & PF_X) != 0});
  }
  size_t names = 0;
  if (elf_getshdrnum(elf.get(), &count) != 0 || count > kMaxSections ||
      elf_getshdrstrndx(elf.get(), &names) != 0) {
    return Malformed("section headers");
  }

  struct Range {
    uint64_t begin = 0, end = 0;
    bool Has(uint64_t a) const { return a >= begin && a < end && end - a >= 8; }
  } rel_ro;
  std::vector<std::pair<GElf_Shdr, Elf_Scn*>> sections;
  for (Elf_Scn* section = nullptr; (section = elf_nextscn(elf.get(), section)) != nullptr;) {
    GElf_Shdr s;
    if (gelf_getshdr(section, &s) == nullptr) return Malformed("section headers");
    if (s.sh_type != SHT_NOBITS && (s.sh_offset > size || s.sh_size > size - s.sh_offset))
      return Malformed("a section is outside of the file");
    sections.emplace_back(s, section);
    const char* name = elf_strptr(elf.get(), names, s.sh_name);
    if (name == nullptr) continue;
    if (std::strcmp(name, ".data.rel.ro") == 0 && s.sh_addr <= UINT64_MAX - s.sh_size)
      rel_ro = {s.sh_addr, image.data_end_ = s.sh_addr + s.sh_size};
    if (std::strcmp(name, ".eh_frame_hdr") == 0) {
      // Version 1, pc-relative pointer, count of 4 bytes, table of pairs of 4 bytes relative
      // to this section (LSB, "Exception Frames"): what every x86-64 linker writes.
      const std::span<const char> data(image.bytes_.data() + s.sh_offset, s.sh_size);
      uint8_t head[4];
      uint32_t entries = 0;
      if (ReadAt(data, 0, &head) && head[0] == 1 && (head[1] & 0x0f) == 0x0b && head[2] == 0x03 &&
          head[3] == 0x3b && ReadAt(data, 8, &entries) && entries <= data.size() / 8) {
        for (uint32_t i = 0; i < entries; ++i) {
          int32_t start;
          if (!ReadAt(data, 12 + uint64_t{i} * 8, &start)) break;
          image.function_starts_.push_back(s.sh_addr + static_cast<uint64_t>(int64_t{start}));
        }
        std::sort(image.function_starts_.begin(), image.function_starts_.end());
      }
    }
  }

  // Names of versions by number, and the number of each symbol.
  std::vector<std::string> version_names;
  Elf_Data* version_of = nullptr;
  for (const auto& [s, section] : sections) {
    if (s.sh_type == SHT_GNU_versym) version_of = elf_getdata(section, nullptr);
    if (s.sh_type != SHT_GNU_verdef) continue;
    Elf_Data* data = elf_getdata(section, nullptr);
    if (data == nullptr || data->d_size > INT32_MAX) continue;
    uint64_t at = 0;
    for (size_t i = 0; i < kMaxSections && at < data->d_size; ++i) {
      GElf_Verdef definition;
      GElf_Verdaux name;
      if (gelf_getverdef(data, static_cast<int>(at), &definition) == nullptr) break;
      const uint64_t aux = at + definition.vd_aux;
      if (aux >= data->d_size || gelf_getverdaux(data, static_cast<int>(aux), &name) == nullptr)
        break;
      const char* text = elf_strptr(elf.get(), s.sh_link, name.vda_name);
      const size_t index = definition.vd_ndx & 0x7fff;
      if (text != nullptr && index < kMaxSections) {
        if (version_names.size() <= index) version_names.resize(index + 1);
        version_names[index] = text;
      }
      if (definition.vd_next == 0) break;
      at += definition.vd_next;
    }
  }

  for (const auto& [s, section] : sections) {
    if (s.sh_type != SHT_DYNSYM || !image.symbols_.empty()) continue;
    Elf_Data* data = elf_getdata(section, nullptr);
    if (data == nullptr || s.sh_entsize != sizeof(Elf64_Sym)) return Malformed(".dynsym");
    const size_t symbols = std::min<size_t>(data->d_size / sizeof(Elf64_Sym), kMaxSymbols);
    for (size_t i = 0; i < symbols; ++i) {
      GElf_Sym symbol;
      if (gelf_getsym(data, static_cast<int>(i), &symbol) == nullptr) return Malformed(".dynsym");
      const char* name = elf_strptr(elf.get(), s.sh_link, symbol.st_name);
      const int type = GELF_ST_TYPE(symbol.st_info);
      GElf_Versym number = 0;
      std::string version;
      if (version_of != nullptr &&
          gelf_getversym(version_of, static_cast<int>(i), &number) != nullptr &&
          static_cast<size_t>(number & 0x7fff) < version_names.size()) {
        version = version_names[number & 0x7fff];
      }
      image.symbols_.push_back({name == nullptr ? "" : name, symbol.st_value, symbol.st_size,
                                type == STT_FUNC, symbol.st_shndx != SHN_UNDEF,
                                std::move(version)});
    }
  }
  for (const auto& [s, section] : sections) {
    if (rel_ro.end == 0) break;
    if (s.sh_type == SHT_RELA && (s.sh_flags & SHF_ALLOC) != 0) {
      Elf_Data* data = elf_getdata(section, nullptr);
      if (data == nullptr || s.sh_entsize != sizeof(Elf64_Rela)) continue;
      const size_t n = data->d_size / sizeof(Elf64_Rela);
      for (size_t i = 0; i < n && image.relocations_.size() < kMaxRelocations; ++i) {
        GElf_Rela r;
        if (gelf_getrela(data, static_cast<int>(i), &r) == nullptr) break;
        if (!rel_ro.Has(r.r_offset)) continue;
        ElfRelocation relocation{.address = r.r_offset};
        const uint64_t index = GELF_R_SYM(r.r_info);
        switch (GELF_R_TYPE(r.r_info)) {
          case R_X86_64_RELATIVE:
            relocation.target = static_cast<uint64_t>(r.r_addend);
            break;
          case R_X86_64_64:
          case R_X86_64_GLOB_DAT:
            if (index >= image.symbols_.size()) continue;
            if (image.symbols_[index].defined) {
              relocation.target = image.symbols_[index].address + static_cast<uint64_t>(r.r_addend);
            }
            relocation.symbol = image.symbols_[index].name;
            break;
          default:
            continue;
        }
        image.relocations_.push_back(std::move(relocation));
      }
    } else if (s.sh_type == SHT_RELR) {
      // An even word is an address; an odd word is a bitmap of the 63 words after the last one.
      // The addend stands in the place itself.
      uint64_t next = 0;
      const std::span<const char> data(image.bytes_.data() + s.sh_offset, s.sh_size);
      const auto add = [&](uint64_t address) {
        if (!rel_ro.Has(address) || image.relocations_.size() >= kMaxRelocations) return;
        for (const Segment& segment : image.segments_) {
          uint64_t target;
          if (address >= segment.address && address - segment.address < segment.bytes &&
              ReadAt(std::span<const char>(image.bytes_),
                     segment.offset + (address - segment.address), &target)) {
            image.relocations_.push_back({.address = address, .target = target});
            return;
          }
        }
      };
      uint64_t word;
      for (uint64_t at = 0; ReadAt(data, at, &word); at += 8) {
        if ((word & 1) == 0) {
          add(word);
          next = word + 8;
        } else {
          for (int bit = 0; bit < 63; ++bit)
            if ((word >> (bit + 1)) & 1) add(next + static_cast<uint64_t>(bit) * 8);
          next += 63 * 8;
        }
      }
    }
  }
  std::sort(image.relocations_.begin(), image.relocations_.end(),
            [](const ElfRelocation& a, const ElfRelocation& b) { return a.address < b.address; });
  return image;
}

std::vector<ElfFunction> ElfImage::Exports(const std::string& name) const {
  std::vector<ElfFunction> functions;
  for (const Symbol& symbol : symbols_) {
    if (!symbol.function || !symbol.defined || symbol.name != name) continue;
    const std::optional<uint64_t> offset = OffsetOf(symbol.address);
    if (!offset) continue;
    const bool known = std::any_of(functions.begin(), functions.end(), [&](const ElfFunction& f) {
      return f.address == symbol.address;
    });
    if (!known) functions.push_back({symbol.address, *offset, symbol.bytes, symbol.version});
  }
  return functions;
}

bool ElfImage::ImportsPrefix(const std::string& prefix) const {
  return std::any_of(symbols_.begin(), symbols_.end(), [&](const Symbol& symbol) {
    return !symbol.defined && symbol.name.rfind(prefix, 0) == 0;
  });
}

bool ElfImage::IsFunctionStart(uint64_t address) const {
  return std::binary_search(function_starts_.begin(), function_starts_.end(), address);
}

std::optional<uint64_t> ElfImage::NextFunction(uint64_t address) const {
  const auto it = std::upper_bound(function_starts_.begin(), function_starts_.end(), address);
  if (it == function_starts_.end()) return std::nullopt;
  return *it;
}

std::optional<uint64_t> ElfImage::OffsetOf(uint64_t address) const {
  for (const Segment& s : segments_) {
    if (s.executable && address >= s.address && address - s.address < s.bytes)
      return address - s.address + s.offset;
  }
  return std::nullopt;
}

std::optional<uint64_t> ElfImage::AddressOf(uint64_t offset) const {
  for (const Segment& s : segments_) {
    if (s.executable && offset >= s.offset && offset - s.offset < s.bytes)
      return offset - s.offset + s.address;
  }
  return std::nullopt;
}

std::span<const uint8_t> ElfImage::Code(uint64_t address, size_t max_bytes) const {
  for (const Segment& s : segments_) {
    if (!s.executable || address < s.address || address - s.address >= s.bytes) continue;
    const uint64_t skip = address - s.address;
    return {reinterpret_cast<const uint8_t*>(bytes_.data()) + s.offset + skip,
            std::min<uint64_t>(max_bytes, s.bytes - skip)};
  }
  return {};
}

}  // namespace mycroft
