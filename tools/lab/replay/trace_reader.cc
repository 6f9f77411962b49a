// SPDX-License-Identifier: Apache-2.0
#include "tools/lab/replay/trace_reader.h"

#include <zlib.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

namespace mycroft {
namespace {

using nlohmann::json;

constexpr size_t kMaxLineBytes = 1 << 20;
constexpr size_t kMaxStrings = 1 << 16;

gzFile Gz(void* p) { return static_cast<gzFile>(p); }

// What is wrong with a line, found while its fields are read: the first problem
// is kept, so that the caller checks once per line.
class Fields {
 public:
  explicit Fields(const json& line) : line_(line) {}

  bool Has(const char* key) const { return line_.contains(key); }

  uint64_t U64(const char* key) {
    const auto it = line_.find(key);
    if (it == line_.end()) return 0;
    if (it->is_number_unsigned()) return it->get<uint64_t>();
    Fail(key, "is not a whole number >= 0");
    return 0;
  }
  int64_t I64(const char* key) {
    const auto it = line_.find(key);
    if (it == line_.end()) return 0;
    if (it->is_number_integer()) return it->get<int64_t>();
    if (it->is_boolean()) return it->get<bool>() ? 1 : 0;
    Fail(key, "is not a whole number");
    return 0;
  }
  // An opaque value: a hex string without prefix, or a number.
  uint64_t Hex(const char* key) {
    const auto it = line_.find(key);
    if (it == line_.end()) return 0;
    if (it->is_number_unsigned()) return it->get<uint64_t>();
    if (it->is_string()) {
      const std::string& s = it->get_ref<const std::string&>();
      if (!s.empty() && s.size() <= 16) {
        uint64_t value = 0;
        size_t i = 0;
        for (; i < s.size(); ++i) {
          const char c = s[i];
          const int digit = c >= '0' && c <= '9'   ? c - '0'
                            : c >= 'a' && c <= 'f' ? c - 'a' + 10
                            : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                                   : -1;
          if (digit < 0) break;
          value = value << 4 | static_cast<uint64_t>(digit);
        }
        if (i == s.size()) return value;
      }
    }
    Fail(key, "is not a hex string of at most 16 digits");
    return 0;
  }
  const std::string* Text(const char* key) {
    const auto it = line_.find(key);
    if (it == line_.end() || it->is_null()) return nullptr;
    if (it->is_string()) return &it->get_ref<const std::string&>();
    Fail(key, "is not a string");
    return nullptr;
  }
  void Require(const char* key) {
    if (!Has(key)) Fail(key, "is missing");
  }
  void Fail(const char* key, const char* why) {
    if (problem_.empty()) problem_ = std::string("\"") + key + "\" " + why;
  }
  const std::string& problem() const { return problem_; }

 private:
  const json& line_;
  std::string problem_;
};

std::optional<TraceKind> ParseKind(const std::string& k) {
  if (k == "b") return TraceKind::kStart;
  if (k == "s") return TraceKind::kState;
  if (k == "e") return TraceKind::kStop;
  if (k == "init") return TraceKind::kInit;
  if (k == "fini") return TraceKind::kFinalize;
  if (k == "thr") return TraceKind::kThread;
  if (k == "clk") return TraceKind::kEnd;
  return std::nullopt;
}

}  // namespace

TraceReader::TraceReader(std::string path, void* gz) : path_(std::move(path)), gz_(gz) {}

TraceReader::~TraceReader() {
  if (gz_ != nullptr) gzclose_r(Gz(gz_));
}

absl::StatusOr<std::unique_ptr<TraceReader>> TraceReader::Open(const std::string& path) {
  errno = 0;
  gzFile gz = gzopen(path.c_str(), "rb");
  if (gz == nullptr) {
    const std::string text = path + ": " + (errno != 0 ? strerror(errno) : "cannot be opened");
    if (errno == ENOENT) return absl::NotFoundError(text);
    if (errno == EACCES) return absl::PermissionDeniedError(text);
    return absl::UnknownError(text);
  }
  gzbuffer(gz, 256 << 10);
  auto reader = std::unique_ptr<TraceReader>(new TraceReader(path, gz));
  if (absl::Status s = reader->ReadHeader(); !s.ok()) return s;
  return reader;
}

absl::Status TraceReader::Bad(const std::string& why) const {
  return absl::InvalidArgumentError(path_ + ":" + std::to_string(line_) + ": " + why);
}

absl::StatusOr<bool> TraceReader::ReadText() {
  text_.clear();
  complete_ = false;
  char buffer[8192];
  while (true) {
    if (gzgets(Gz(gz_), buffer, sizeof buffer) == nullptr) {
      int error = Z_OK;
      const char* why = gzerror(Gz(gz_), &error);
      // A gzip stream that was cut off is what a killed process leaves.
      if (error != Z_OK && error != Z_BUF_ERROR && error != Z_STREAM_END) {
        ++line_;
        return Bad(error == Z_ERRNO ? strerror(errno) : std::string("damaged gzip data: ") + why);
      }
      break;
    }
    text_ += buffer;
    if (!text_.empty() && text_.back() == '\n') {
      text_.pop_back();
      complete_ = true;
      break;
    }
    if (text_.size() > kMaxLineBytes) {
      ++line_;
      return Bad("line longer than 1 MiB");
    }
  }
  if (text_.empty() && !complete_) return false;
  ++line_;
  return true;
}

absl::Status TraceReader::ReadHeader() {
  absl::StatusOr<bool> more = ReadText();
  if (!more.ok()) return more.status();
  line_ = 1;
  if (!*more) return Bad("empty file; expected profiler callbacks as JSON Lines");
  const json line = json::parse(text_, nullptr, false);
  if (line.is_discarded() || !line.is_object()) return Bad("not a JSON object");
  Fields f(line);
  const std::string* kind = f.Text("k");
  if (kind == nullptr || *kind != "hdr") {
    return Bad("the first line is not a header (\"k\":\"hdr\"); not a file of profiler callbacks");
  }
  for (const char* key : {"v", "pid", "av", "mono", "wall"}) f.Require(key);
  header_.format = f.I64("v");
  header_.pid = static_cast<uint32_t>(f.U64("pid"));
  header_.api = static_cast<int>(f.I64("av"));
  header_.mono_ns = f.U64("mono");
  header_.wall_ns = f.U64("wall");
  if (const std::string* nccl = f.Text("nccl")) header_.nccl = *nccl;
  if (!f.problem().empty()) return Bad(f.problem());
  if (header_.format != 1) {
    return Bad("trace format version " + std::to_string(header_.format) +
               " is not known; this program reads version 1");
  }
  if (header_.api < 4 || header_.api > 6) {
    return Bad("profiler plugin API version " + std::to_string(header_.api) +
               " is not supported; 4, 5 and 6 are");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<TraceLine>> TraceReader::Next() {
  do {
    absl::StatusOr<bool> more = ReadText();
    if (!more.ok()) return more.status();
    if (!*more) return std::nullopt;
  } while (text_.empty());

  const json line = json::parse(text_, nullptr, false);
  if (line.is_discarded() || !line.is_object()) {
    if (!complete_) return std::nullopt;
    return Bad("malformed JSON: " + text_.substr(0, 60) + (text_.size() > 60 ? "..." : ""));
  }
  Fields f(line);
  f.Require("k");
  f.Require("t");
  const std::string* k = f.Text("k");
  if (!f.problem().empty()) return Bad(f.problem());
  const std::optional<TraceKind> kind = k != nullptr ? ParseKind(*k) : std::nullopt;
  if (!kind) return Bad("unknown kind of line \"" + (k != nullptr ? *k : "") + "\"");

  auto intern = [&](const char* key) -> const char* {
    const std::string* s = f.Text(key);
    if (s == nullptr) return nullptr;
    if (const auto it = strings_.find(*s); it != strings_.end()) return it->c_str();
    if (strings_.size() >= kMaxStrings) {
      f.Fail(key, "is one of too many different strings");
      return nullptr;
    }
    return strings_.insert(*s).first->c_str();
  };

  TraceLine out;
  out.kind = *kind;
  out.t_ns = f.U64("t");
  out.thread = static_cast<uint32_t>(f.U64("th"));
  if (out.t_ns < last_t_ns_) return Bad("time goes backwards");
  last_t_ns_ = out.t_ns;
  switch (out.kind) {
    case TraceKind::kThread:
      out.name = intern("name");
      break;
    case TraceKind::kInit:
      for (const char* key : {"c", "comm", "n", "r"}) f.Require(key);
      out.context = f.U64("c");
      out.comm_id = f.Hex("comm");
      out.name = intern("name");
      out.nodes = f.I64("nn");
      out.ranks = f.I64("n");
      out.rank = f.I64("r");
      out.mask = f.I64("mask");
      break;
    case TraceKind::kStart:
      for (const char* key : {"c", "ty", "h"}) f.Require(key);
      out.context = f.U64("c");
      out.type = f.U64("ty");
      out.handle = f.U64("h");
      out.parent = f.U64("p");
      out.raw_parent = f.Hex("praw");
      out.parent_group = f.U64("pg");
      out.rank = f.I64("rk");
      out.func = intern("fn");
      out.datatype = intern("dt");
      out.algo = intern("al");
      out.proto = intern("pr");
      out.sync = intern("sync");
      out.seq = f.U64("seq");
      out.count = f.U64("cnt");
      out.root = f.I64("root");
      out.peer = f.I64("peer");
      out.channels = f.I64("nch");
      out.warps = f.I64("nw");
      out.send_buffer = f.Hex("sb");
      out.recv_buffer = f.Hex("rb");
      out.buffer = f.Hex("buf");
      out.stream = f.Hex("str");
      out.pid = f.I64("pid");
      out.channel = f.I64("ch");
      out.steps = f.I64("ns");
      out.chunk_bytes = f.I64("cs");
      out.is_send = f.I64("snd");
      out.step = f.I64("step");
      out.graph_captured = f.I64("cap");
      out.group_depth = f.I64("dep");
      out.net_id = f.I64("id");
      out.net_data = f.Hex("data");
      out.intra = f.I64("intra");
      out.batch_size = f.I64("bs");
      out.batches = f.I64("nb");
      out.ce_seq = f.I64("ceseq");
      out.done = f.I64("done");
      out.nranks = f.I64("n");
      out.ops = f.I64("nops");
      out.bytes = f.U64("bytes");
      out.device_ns = f.U64("pt");
      break;
    case TraceKind::kState:
      f.Require("h");
      f.Require("st");
      out.handle = f.U64("h");
      out.state = f.I64("st");
      out.has_args = f.Has("sz") || f.Has("app") || f.Has("data") || f.Has("pt");
      out.size = f.U64("sz");
      out.appended = f.I64("app");
      out.net_data = f.Hex("data");
      out.device_ns = f.U64("pt");
      break;
    case TraceKind::kStop:
      f.Require("h");
      out.handle = f.U64("h");
      break;
    case TraceKind::kFinalize:
      f.Require("c");
      out.context = f.U64("c");
      break;
    case TraceKind::kEnd:
      out.signal = f.I64("sig");
      break;
  }
  if (!f.problem().empty()) return Bad(f.problem());
  return out;
}

}  // namespace mycroft
