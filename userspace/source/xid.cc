// SPDX-License-Identifier: Apache-2.0
#include "userspace/source/xid.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>

#include "absl/status/status.h"
#include "userspace/source/pci.h"

namespace mycroft {
namespace {

constexpr size_t kRecordBytes = 8192;  // the kernel's CONSOLE_EXT_LOG_MAX
constexpr int kMaxRetries = 64;
constexpr size_t kMaxMessage = 1024;
constexpr size_t kMaxText = 160, kMaxName = 32;

using O = XidOrigin;
// Ascending. "XID Errors", chapters 3 to 5, and the catalogue of newer drivers.
constexpr XidMeaning kXids[] = {
    {8, "the GPU stopped processing", O::kDriver, false, false},
    {13, "exception in the compute engine", O::kApplication, false, false},
    {31, "access to memory that is not mapped", O::kApplication, false, false},
    {32, "corrupted stream of commands", O::kPcie, false, false},
    {38, "firmware error of the driver", O::kDriver, false, false},
    {43, "a channel was reset after an error", O::kApplication, false, true},
    {44, "fault in a context switch", O::kDriver, false, false},
    {45, "channels removed after an error", O::kApplication, false, true},
    {46, "the GPU does not answer within its time", O::kGpu, false, false},
    {48, "double bit ECC error", O::kMemory, true, false},
    {54, "auxiliary power is not connected", O::kGpu, true, false},
    {57, "error in training the memory interface", O::kMemory, true, false},
    {58, "instability of the memory's timing", O::kMemory, true, false},
    {61, "internal microcontroller stopped with a warning", O::kGpu, true, false},
    {62, "internal microcontroller halt", O::kGpu, true, false},
    {63, "ECC page or row remapping", O::kMemory, true, true},
    {64, "ECC row remapping failed", O::kMemory, true, true},
    {68, "exception in the video decoder", O::kApplication, false, false},
    {69, "exception of a graphics class", O::kApplication, false, false},
    {74, "NVLink error", O::kNvlink, true, false},
    {79, "fell off the bus", O::kPcie, true, false},
    {92, "high rate of single bit ECC errors", O::kMemory, true, false},
    {94, "contained ECC error", O::kMemory, true, false},
    {95, "uncontained ECC error", O::kMemory, true, false},
    {109, "timeout of a context switch", O::kDriver, false, false},
    {110, "security fault", O::kGpu, true, false},
    {119, "GSP timeout", O::kGpu, true, false},
    {120, "GSP error", O::kGpu, true, false},
    {121, "error of the link to the CPU", O::kNvlink, true, false},
    {122, "SPI error of the power unit", O::kGpu, true, false},
    {123, "SPI error of the power unit's memory", O::kGpu, true, false},
    {136, "link training failed", O::kNvlink, true, false},
    {137, "access over NVLink that is not mapped", O::kApplication, false, false},
    {140, "ECC error that was not recovered", O::kMemory, true, false},
    {143, "the GPU could not be initialized", O::kGpu, true, false},
    {144, "NVLink: SAW error", O::kNvlink, true, false},
    {145, "NVLink: RLW error", O::kNvlink, true, false},
    {146, "NVLink: TLW error", O::kNvlink, true, false},
    {147, "NVLink: TREX error", O::kNvlink, true, false},
    {148, "NVLink: NVLPW_CTRL error", O::kNvlink, true, false},
    {149, "NVLink: NETIR error", O::kNvlink, true, false},
    {150, "NVLink: MSE error", O::kNvlink, true, false},
    {154, "the action that recovers the GPU has changed", O::kDriver, false, true},
};

// A cursor over the text: each step either takes what it expects or stays.
class Cursor {
 public:
  explicit Cursor(std::string_view text) : rest_(text) {}
  bool Take(std::string_view expected) {
    if (rest_.substr(0, expected.size()) != expected) return false;
    rest_.remove_prefix(expected.size());
    return true;
  }
  void Blanks() {
    while (!rest_.empty() && rest_.front() == ' ') rest_.remove_prefix(1);
  }
  // Up to the first of these characters, which stays.
  std::string_view Until(std::string_view stops) {
    const size_t at = std::min(rest_.find_first_of(stops), rest_.size());
    const std::string_view taken = rest_.substr(0, at);
    rest_.remove_prefix(at);
    return taken;
  }
  std::optional<uint32_t> Number(int base = 10) {
    uint32_t value = 0;
    const auto [end, error] =
        std::from_chars(rest_.data(), rest_.data() + rest_.size(), value, base);
    if (error != std::errc()) return std::nullopt;
    rest_.remove_prefix(static_cast<size_t>(end - rest_.data()));
    return value;
  }
  std::string_view rest() const { return rest_; }

 private:
  std::string_view rest_;
};

// "0000:3b:00" and "0000:3b:00.0"; a domain may be missing in very old drivers.
std::string Address(std::string_view text) {
  std::string address(text.substr(0, 16));
  for (char& c : address) c = c >= 'A' && c <= 'F' ? static_cast<char>(c - 'A' + 'a') : c;
  if (address.find('.') == std::string::npos) address += ".0";
  return IsPciAddress(address) ? address : "";
}

std::string_view Trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == ',')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\n')) text.remove_suffix(1);
  return text;
}

// "pid=1234, name=python3, "; both may be '<unknown>' or <unknown>, or not there.
void TakeProcess(Cursor& at, XidReport* report) {
  const auto unquoted = [](std::string_view value) {
    if (value.size() >= 2 && value.front() == '\'' && value.back() == '\'') {
      value = value.substr(1, value.size() - 2);
    }
    return value;
  };
  at.Blanks();
  if (at.Take("pid=")) {
    Cursor value(unquoted(at.Until(",")));
    const auto pid = value.Number();
    if (pid && value.rest().empty()) report->pid = *pid;
    at.Take(",");
  }
  at.Blanks();
  if (at.Take("name=")) {
    const std::string_view name = unquoted(at.Until(","));
    if (name != "<unknown>") report->process = name.substr(0, kMaxName);
    at.Take(",");
  }
}

// After "Xid (" or "SXid (": "PCI:0000:3b:00 GPU-I:05): 79, ...".
bool TakeHead(Cursor& at, XidReport* report) {
  at.Take("PCI:");
  report->address = Address(at.Until(" )"));
  at.Blanks();
  if (at.Take("GPU-I:")) report->gpu_instance = at.Number(16);
  at.Until(")");
  if (report->address.empty() || !at.Take("):")) return false;
  at.Blanks();
  const auto number = at.Number();
  if (!number || *number == 0 || *number > 999'999) return false;
  report->number = *number;
  at.Take(",");
  return true;
}

absl::Status OpenProblem(const std::string& path, int error) {
  const std::string what = path + ": " + std::strerror(error);
  switch (error) {
    case EPERM:
    case EACCES:
      return absl::PermissionDeniedError(
          what + ": run as root, or with CAP_SYSLOG (kernel.dmesg_restrict)");
    case ENOENT:
      return absl::NotFoundError(what + ": in a container, mount /dev/kmsg");
    default:
      return absl::UnavailableError(what);
  }
}

}  // namespace

const char* ToString(XidOrigin origin) {
  switch (origin) {
    case XidOrigin::kApplication:
      return "application";
    case XidOrigin::kDriver:
      return "driver";
    case XidOrigin::kGpu:
      return "GPU";
    case XidOrigin::kMemory:
      return "memory of the GPU";
    case XidOrigin::kNvlink:
      return "NVLink";
    case XidOrigin::kPcie:
      return "PCIe";
  }
  return "";
}

const XidMeaning* FindXid(uint32_t number) {
  const auto it = std::lower_bound(
      std::begin(kXids), std::end(kXids), number,
      [](const XidMeaning& meaning, uint32_t wanted) { return meaning.number < wanted; });
  return it != std::end(kXids) && it->number == number ? it : nullptr;
}

XidParse ParseXid(std::string_view message, XidReport* report) {
  *report = {};
  Cursor at(message);
  if (at.Take("NVRM:")) {
    at.Blanks();
    if (at.Take("Xid")) {
      at.Blanks();
      if (!at.Take("(") || !TakeHead(at, report)) return XidParse::kMalformed;
      TakeProcess(at, report);
      report->text = Trimmed(at.rest()).substr(0, kMaxText);
      return XidParse::kXid;
    }
    if (!at.Take("GPU ")) return XidParse::kOther;
    at.Take("at ");
    at.Take("PCI:");
    const std::string address = Address(at.Until(" ,"));
    const size_t colon = at.rest().find("fallen off the bus");
    if (colon == std::string_view::npos) return XidParse::kOther;
    // "0000:3b:00.0:" with the colon that ends it.
    report->address = address;
    if (report->address.empty()) {
      Cursor again(message.substr(message.find("GPU ") + 4));
      again.Take("at ");
      again.Take("PCI:");
      std::string_view text = again.Until(" ,");
      if (!text.empty() && text.back() == ':') text.remove_suffix(1);
      report->address = Address(text);
    }
    if (report->address.empty()) return XidParse::kMalformed;
    report->number = 79;
    report->text = "GPU has fallen off the bus";
    return XidParse::kXid;
  }
  if (!at.Take("nvidia-nvswitch")) return XidParse::kOther;
  at.Until(":");
  if (!at.Take(":")) return XidParse::kOther;
  at.Blanks();
  if (!at.Take("SXid")) return XidParse::kOther;
  at.Blanks();
  report->nvswitch = true;
  if (!at.Take("(") || !TakeHead(at, report)) return XidParse::kMalformed;
  report->text = Trimmed(at.rest()).substr(0, kMaxText);
  report->fatal = report->text.rfind("Fatal", 0) == 0;
  if (const size_t link = report->text.find("Link "); link != std::string::npos) {
    report->link = Cursor(std::string_view(report->text).substr(link + 5)).Number();
  }
  return XidParse::kXid;
}

std::optional<KmsgRecord> ParseKmsg(std::string_view line) {
  KmsgRecord record;
  const size_t head_end = line.find(';');
  if (head_end == std::string_view::npos) return std::nullopt;
  std::string_view head = line.substr(0, head_end);
  std::array<uint64_t, 3> numbers{};  // level and facility, sequence, microseconds
  for (size_t i = 0; i < numbers.size(); ++i) {
    const size_t comma = head.find(',');
    const std::string_view field = head.substr(0, comma);
    const auto [end, error] =
        std::from_chars(field.data(), field.data() + field.size(), numbers[i]);
    if (error != std::errc() || end != field.data() + field.size()) return std::nullopt;
    if (comma == std::string_view::npos) {
      if (i + 1 < numbers.size()) return std::nullopt;
      head = {};
    } else {
      head.remove_prefix(comma + 1);
    }
  }
  record.sequence = numbers[1];
  record.time_us = numbers[2];
  const std::string_view text = line.substr(head_end + 1);
  const auto hex = [](char c) {
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
  };
  for (size_t i = 0; i < text.size() && record.message.size() < kMaxMessage; ++i) {
    char c = text[i];
    if (c == '\\' && i + 3 < text.size() && text[i + 1] == 'x' && hex(text[i + 2]) >= 0 &&
        hex(text[i + 3]) >= 0) {
      c = static_cast<char>(hex(text[i + 2]) * 16 + hex(text[i + 3]));
      i += 3;
    }
    record.message += c < 0x20 || c > 0x7e ? '?' : c;
  }
  return record;
}

absl::StatusOr<std::unique_ptr<KernelLog>> KernelLog::Open(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) return OpenProblem(path, errno);
  return std::unique_ptr<KernelLog>(new KernelLog(fd));
}

KernelLog::~KernelLog() { ::close(fd_); }

KernelLogBatch KernelLog::Read(uint64_t now_ns, size_t max_records) {
  KernelLogBatch out;
  std::array<char, kRecordBytes> buffer;
  bool drained = false;
  int retries = 0;
  const uint64_t first = records_ + malformed_;
  while (!drained && records_ + malformed_ - first < max_records) {
    const ssize_t n = ::read(fd_, buffer.data(), buffer.size());
    // Overwritten while we looked: the next one. A log that floods is left for a while.
    if (n < 0 && (errno == EPIPE || errno == EINTR) && ++retries < kMaxRetries) continue;
    if (n <= 0) {
      drained = true;
      continue;
    }
    partial_.append(buffer.data(), static_cast<size_t>(n));
    size_t begin = 0;
    for (size_t end; (end = partial_.find('\n', begin)) != std::string::npos; begin = end + 1) {
      // What begins with a blank says more of the record before.
      if (end > begin && partial_[begin] != ' ') {
        Take(std::string_view(partial_).substr(begin, end - begin), now_ns, &out);
      }
    }
    partial_.erase(0, begin);
    if (partial_.size() > 4 * kRecordBytes) {
      ++malformed_;
      partial_.clear();
    }
  }
  out.more = !drained;
  if (drained) last_read_ns_ = now_ns;
  return out;
}

void KernelLog::Take(std::string_view line, uint64_t now_ns, KernelLogBatch* out) {
  const auto record = ParseKmsg(line);
  if (!record) {
    ++malformed_;
    return;
  }
  ++records_;
  if (next_sequence_ && record->sequence > *next_sequence_) {
    lost_ += record->sequence - *next_sequence_;
  }
  next_sequence_ = record->sequence + 1;
  TimedXid xid;
  switch (ParseXid(record->message, &xid.report)) {
    case XidParse::kOther:
      return;
    case XidParse::kMalformed:
      ++malformed_;
      return;
    case XidParse::kXid:
      break;
  }
  xid.backlog = last_read_ns_ == 0;
  // The log's clock is not slewed as CLOCK_MONOTONIC is and may be seconds off after
  // weeks; what was not there at the last look came after it.
  xid.t_ns = record->time_us > UINT64_MAX / 1000 ? now_ns : record->time_us * 1000;
  xid.t_ns = std::clamp(xid.t_ns, std::min(last_read_ns_, now_ns), now_ns);
  out->xids.push_back(std::move(xid));
}

}  // namespace mycroft
