// SPDX-License-Identifier: Apache-2.0
//
// Any bytes as lines of the kernel log, and each line as a message of the driver, too:
// what comes out is bounded, printable and names a PCI function, or nothing comes out.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "userspace/source/pci.h"
#include "userspace/source/xid.h"

namespace {

void Check(bool fine) {
  if (!fine) std::abort();
}

void CheckMessage(std::string_view message) {
  mycroft::XidReport report;
  const mycroft::XidParse parsed = mycroft::ParseXid(message, &report);
  if (parsed != mycroft::XidParse::kXid) return;
  Check(mycroft::IsPciAddress(report.address));
  Check(report.number > 0 && report.number < 1'000'000);
  Check(report.text.size() <= 160 && report.process.size() <= 32);
  Check(!report.nvswitch || report.pid == 0);
  if (const mycroft::XidMeaning* meaning = mycroft::FindXid(report.number)) {
    Check(meaning->number == report.number && *mycroft::ToString(meaning->origin) != '\0');
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view text(reinterpret_cast<const char*>(data), size);
  while (!text.empty()) {
    const size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    CheckMessage(line);
    const auto record = mycroft::ParseKmsg(line);
    if (!record) continue;
    Check(record->message.size() <= 1024);
    for (const char c : record->message) Check(c >= 0x20 && c <= 0x7e);
    CheckMessage(record->message);
  }
  return 0;
}
