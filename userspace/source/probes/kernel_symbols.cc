// SPDX-License-Identifier: Apache-2.0
#include "userspace/source/probes/kernel_symbols.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace mycroft {
namespace {

constexpr size_t kMaxBytes = size_t{256} << 20;

}  // namespace

absl::StatusOr<KernelSymbols> KernelSymbols::Read(int fd) {
  std::string text;
  char buffer[65536];
  off_t offset = 0;
  while (text.size() < kMaxBytes) {
    const ssize_t n = pread(fd, buffer, sizeof(buffer), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return absl::UnavailableError(absl::StrCat("/proc/kallsyms: ", strerror(errno)));
    if (n == 0) break;
    text.append(buffer, static_cast<size_t>(n));
    offset += n;
  }
  return Parse(text);
}

absl::StatusOr<KernelSymbols> KernelSymbols::Parse(std::string_view text) {
  KernelSymbols out;
  bool any = false;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    // "ffffffff81000000 T name" or "ffffffffc0123000 t name\t[module]"
    uint64_t address = 0;
    const auto [rest, error] = std::from_chars(line.data(), line.data() + line.size(), address, 16);
    if (error != std::errc()) continue;
    line.remove_prefix(static_cast<size_t>(rest - line.data()));
    if (line.size() < 4 || line[0] != ' ' || line[2] != ' ') continue;
    any = true;
    if (address == 0 || std::strchr("tTwW", line[1]) == nullptr) continue;
    line = line.substr(3, 512);
    if (out.names_.size() + line.size() > UINT32_MAX) break;
    out.symbols_.push_back(
        {address, static_cast<uint32_t>(out.names_.size()), static_cast<uint32_t>(line.size())});
    for (char c : line) out.names_.push_back(c == '\t' ? ' ' : c);
  }
  if (out.symbols_.empty()) {
    return absl::PermissionDeniedError(
        any ? "/proc/kallsyms hides its addresses (needs CAP_SYSLOG, or kernel.kptr_restrict=0)"
            : "/proc/kallsyms has no symbols (CONFIG_KALLSYMS)");
  }
  std::stable_sort(out.symbols_.begin(), out.symbols_.end(),
                   [](const Symbol& a, const Symbol& b) { return a.address < b.address; });
  out.symbols_.shrink_to_fit();
  out.names_.shrink_to_fit();
  return out;
}

std::string KernelSymbols::Name(uint64_t address) const {
  auto it = std::upper_bound(symbols_.begin(), symbols_.end(), address,
                             [](uint64_t a, const Symbol& s) { return a < s.address; });
  if (it == symbols_.begin()) return "";
  --it;
  // The first of several names of one address: the others are aliases.
  while (it != symbols_.begin() && std::prev(it)->address == it->address) --it;
  return names_.substr(it->name, it->length);
}

}  // namespace mycroft
