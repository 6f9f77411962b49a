// SPDX-License-Identifier: Apache-2.0
#include "userspace/source/probes/verbs_probes.h"

#if MYCROFT_HAVE_BPF
#include <bpf/bpf.h>
#endif
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "userspace/source/proc.h"

#if MYCROFT_HAVE_BPF
#include "userspace/source/probes/elf_image.h"
#include "userspace/source/probes/mapped_file.h"
#include "userspace/source/probes/ops_finder.h"
#include "userspace/source/probes/probe_point.h"
#include "userspace/source/probes/verbs_names.h"
#endif

namespace mycroft {

#if MYCROFT_HAVE_BPF

namespace {

constexpr char kObject[] = "verbs";
constexpr size_t kMaxEvents = 4096;
constexpr size_t kMaxImages = 64;
constexpr uint64_t kSecond = 1'000'000'000;

// Functions of libibverbs, by name, and what is attached to them.
struct Hook {
  const char* probe;
  const char* function;
  const char* program;
  bool on_return;
  int arguments = 0;  // that the program reads
};
constexpr Hook kVerbsHooks[] = {
    {"verbs.open", "ibv_open_device", "verbs_open_return", true},
    {"verbs.qp", "ibv_cmd_create_qp", "verbs_create_qp", false, 2},
    {"verbs.qp", "ibv_cmd_create_qp", "verbs_create_qp_return", true},
    {"verbs.qp", "ibv_cmd_create_qp_ex", "verbs_create_qp", false, 2},
    {"verbs.qp", "ibv_cmd_create_qp_ex", "verbs_create_qp_return", true},
    {"verbs.qp", "ibv_cmd_create_qp_ex2", "verbs_create_qp", false, 2},
    {"verbs.qp", "ibv_cmd_create_qp_ex2", "verbs_create_qp_return", true},
    {"verbs.qp", "ibv_modify_qp", "verbs_modify_qp", false, 3},
    {"verbs.qp", "ibv_modify_qp", "verbs_modify_qp_return", true},
    {"verbs.qp", "ibv_cmd_destroy_qp", "verbs_destroy_qp", false, 1},
    {"verbs.mr", "ibv_cmd_reg_mr", "verbs_reg_mr", false, 5},
    {"verbs.mr", "ibv_cmd_reg_mr", "verbs_reg_mr_return", true},
    {"verbs.mr", "ibv_cmd_reg_dmabuf_mr", "verbs_reg_dmabuf", false, 6},
    {"verbs.mr", "ibv_cmd_reg_dmabuf_mr", "verbs_reg_mr_return", true},
    {"verbs.async", "ibv_get_async_event", "verbs_async", false, 2},
    {"verbs.async", "ibv_get_async_event", "verbs_async_return", true},
    {"verbs.async", "ibv_ack_async_event", "verbs_ack_async", false, 1},
};
// Not in every release of rdma-core: nothing is amiss without them.
constexpr const char* kOptional[] = {"ibv_cmd_create_qp_ex", "ibv_cmd_create_qp_ex2",
                                     "ibv_cmd_reg_dmabuf_mr"};

struct DeepHook {
  const char* program;
  bool on_return;
};
constexpr DeepHook kCompletionHooks[] = {{"verbs_poll_cq_return", true}, {"verbs_poll_cq", false}};
constexpr DeepHook kFailureHooks[] = {{"verbs_post_return", true}, {"verbs_post", false}};

std::string BaseName(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? path : path.substr(slash + 1);
}

bool IsVerbsLibrary(const std::string& path) {
  return BaseName(path).rfind("libibverbs.so", 0) == 0;
}

// By name, so that not every library of a process is read: plugins are called
// libX-rdmavN.so, and those that also have an interface of their own are links to libX.so.N.
bool MayBeProvider(const std::string& path) {
  const std::string name = BaseName(path);
  if (name.find("-rdmav") != std::string::npos) return true;
  if (path.find("/libibverbs/") != std::string::npos) return true;
  for (const char* prefix : {"libmlx5.so", "libmlx4.so", "libefa.so", "libmana.so", "libhns.so",
                             "libbnxt_re.so", "libirdma.so", "libionic.so"}) {
    if (name.rfind(prefix, 0) == 0) return true;
  }
  return false;
}

std::string Hex(uint64_t value) { return absl::StrCat("0x", absl::Hex(value)); }

std::string Device(const char (&name)[64]) {
  return std::string(name, strnlen(name, sizeof(name)));
}

std::string GidText(const uint8_t (&gid)[16]) {
  std::string text;
  for (int i = 0; i < 16; i += 2) {
    char group[6];
    std::snprintf(group, sizeof(group), "%s%02x%02x", i == 0 ? "" : ":", gid[i], gid[i + 1]);
    text += group;
  }
  return text;
}

}  // namespace

struct VerbsProbes::Impl {
  using FileKey = std::tuple<uint64_t, uint64_t, uint64_t, uint64_t>;  // dev, inode, size, mtime

  struct Attachment {
    uint64_t number = 0;
    std::string probe;
    std::string label;  // "libmlx5.so.1.24.44.0:0x552e0"
  };
  using AttachmentKey = std::tuple<FileKey, std::string, uint64_t>;  // program, offset

  struct Library {
    std::string name, open_path;
    bool verbs = false, provider = false;
    bool replaced = false;
    bool by_pointer = false;
    std::string table;  // how its functions were found, or why not
    // Offsets in the file of the fast functions' cheap places.
    std::set<uint64_t> sends, receives, polls;
    // The same for return probes of the deep ones.
    std::set<uint64_t> send_returns, poll_returns;
  };
  struct Process {
    uint64_t start_time = 0;
    std::map<FileKey, Library> libraries;
    std::map<AttachmentKey, Attachment> attachments;
    std::map<std::string, std::set<std::string>> problems;  // probe -> texts
    uint64_t next_scan_ns = 0, scan_interval_ns = kSecond;
    bool completions = false, failures = false;  // armed
  };

  ProbeSet* set;
  std::string proc;
  std::map<uint32_t, Process> processes;
  std::set<uint32_t> gone;  // rows to be given once more
  std::map<FileKey, std::shared_ptr<const ElfImage>> images;
  std::vector<std::pair<mc_qp_key, mc_qp_row>> gone_rows;
  std::vector<VerbsEvent> events;
  uint64_t lost_events = 0;

  // ---- files ----------------------------------------------------------------------

  absl::StatusOr<std::shared_ptr<const ElfImage>> Image(const FileKey& key,
                                                        const std::string& path) {
    if (const auto it = images.find(key); it != images.end()) return it->second;
    absl::StatusOr<ElfImage> image = ElfImage::FromFile(path);
    if (!image.ok()) return image.status();
    if (images.size() >= kMaxImages) images.clear();
    auto shared = std::make_shared<const ElfImage>(*std::move(image));
    images.emplace(key, shared);
    return std::shared_ptr<const ElfImage>(shared);
  }

  static bool KeyOf(const std::string& path, FileKey* key) {
    struct stat s;
    if (stat(path.c_str(), &s) != 0) return false;
    *key = {s.st_dev, s.st_ino, static_cast<uint64_t>(s.st_size),
            static_cast<uint64_t>(s.st_mtim.tv_sec) * kSecond +
                static_cast<uint64_t>(s.st_mtim.tv_nsec)};
    return true;
  }

  // ---- attaching ------------------------------------------------------------------

  void Attach(uint32_t pid, Process* process, const FileKey& file, const Library& library,
              const char* probe, const char* program, uint64_t offset, bool on_return) {
    const AttachmentKey key{file, program, offset};
    if (process->attachments.contains(key)) return;
    ProbeSet::UprobeTarget target;
    target.pid = pid;
    target.path = library.open_path;
    target.offset = offset;
    target.on_return = on_return;
    const absl::StatusOr<uint64_t> number = set->AttachUprobe(kObject, program, target);
    if (!number.ok()) {
      process->problems[probe].insert(std::string(number.status().message()));
      return;
    }
    process->attachments[key] = {*number, probe, absl::StrCat(library.name, ":", Hex(offset))};
  }

  void Detach(Process* process, const FileKey& file, const std::string& program, uint64_t offset) {
    const auto it = process->attachments.find({file, program, offset});
    if (it == process->attachments.end()) return;
    set->DetachUprobe(it->second.number);
    process->attachments.erase(it);
  }

  void DetachAll(Process* process) {
    for (const auto& [key, attachment] : process->attachments) set->DetachUprobe(attachment.number);
    process->attachments.clear();
    set->FlushDetached(false);
  }

  // The offset of the cheap place in the function at `address`; nullopt: said in problems.
  std::optional<uint64_t> Place(Process* process, const Library& library, const ElfImage& image,
                                uint64_t address, const char* probe, const char* function,
                                bool on_return, int arguments) {
    const ProbePoint point = FindProbePoint(image, address, on_return, arguments);
    const std::optional<uint64_t> offset = image.OffsetOf(point.address);
    if (point.cheap && offset) return offset;
    process->problems[probe].insert(absl::StrCat(library.name, " ", function, ": ", point.why,
                                                 "; a probe there would be single-stepped"));
    return std::nullopt;
  }

  void AttachVerbs(uint32_t pid, Process* process, const FileKey& key, const Library& library,
                   const ElfImage& image) {
    for (const Hook& hook : kVerbsHooks) {
      const std::vector<ElfFunction> functions = image.Exports(hook.function);
      const bool optional =
          std::any_of(std::begin(kOptional), std::end(kOptional),
                      [&](const char* name) { return std::strcmp(name, hook.function) == 0; });
      if (functions.empty() && !optional) {
        process->problems[hook.probe].insert(absl::StrCat(library.name, " has no ", hook.function));
      }
      for (const ElfFunction& f : functions) {
        // The old version converts its structs, which are laid out otherwise, and calls the
        // new one: seen there.
        if (f.version == "IBVERBS_1.0" && functions.size() > 1) continue;
        const std::optional<uint64_t> offset = Place(process, library, image, f.address, hook.probe,
                                                     hook.function, hook.on_return, hook.arguments);
        if (offset) {
          Attach(pid, process, key, library, hook.probe, hook.program, *offset, hook.on_return);
        }
      }
    }
  }

  // Attaches to the fast functions as they are known now, and to no others.
  void AttachFast(uint32_t pid, Process* process, const FileKey& key, const Library& library) {
    const auto follow = [&](const char* probe, const char* program, bool on_return, bool wanted,
                            const std::set<uint64_t>& offsets) {
      std::vector<uint64_t> stale;
      for (const auto& [k, attachment] : process->attachments) {
        if (std::get<0>(k) == key && std::get<1>(k) == program && attachment.probe == probe &&
            (!wanted || !offsets.contains(std::get<2>(k)))) {
          stale.push_back(std::get<2>(k));
        }
      }
      for (uint64_t offset : stale) Detach(process, key, program, offset);
      if (!wanted) return;
      for (uint64_t offset : offsets)
        Attach(pid, process, key, library, probe, program, offset, on_return);
    };
    follow("verbs.post_send", "verbs_post_send", false, true, library.sends);
    follow("verbs.post_recv", "verbs_post_recv", false, true, library.receives);
    for (const DeepHook& hook : kCompletionHooks) {
      follow("verbs.completions", hook.program, hook.on_return, process->completions,
             hook.on_return ? library.poll_returns : library.polls);
    }
    for (const DeepHook& hook : kFailureHooks) {
      follow("verbs.post_failures", hook.program, hook.on_return, process->failures,
             library.send_returns);
    }
  }

  void AddFast(Process* process, Library* library, const ElfImage& image, uint64_t post_send,
               uint64_t post_recv, uint64_t poll_cq) {
    const auto add = [&](uint64_t address, const char* probe, const char* name, bool on_return,
                         int arguments, std::set<uint64_t>* offsets) {
      if (address == 0) return;
      if (const auto offset =
              Place(process, *library, image, address, probe, name, on_return, arguments))
        offsets->insert(*offset);
    };
    add(post_send, "verbs.post_send", "post_send", false, 2, &library->sends);
    add(post_recv, "verbs.post_recv", "post_recv", false, 2, &library->receives);
    add(poll_cq, "verbs.completions", "poll_cq", false, 3, &library->polls);
    add(poll_cq, "verbs.completions", "poll_cq", true, 0, &library->poll_returns);
    add(post_send, "verbs.post_failures", "post_send", true, 0, &library->send_returns);
    add(post_recv, "verbs.post_failures", "post_recv", true, 0, &library->send_returns);
  }

  // The library of a mapping, opened; nullptr with the problem said.
  Library* Open(uint32_t pid, Process* process, const MappedCode& mapped, FileKey* key) {
    const absl::StatusOr<OpenedPath> opened = PathOfMapped(proc, pid, mapped);
    if (!opened.ok()) {
      const char* probe = IsVerbsLibrary(mapped.path) ? "verbs.qp" : "verbs.post_send";
      process->problems[probe].insert(std::string(opened.status().message()));
      return nullptr;
    }
    if (!KeyOf(opened->path, key)) return nullptr;  // gone since
    Library& library = process->libraries[*key];
    if (library.name.empty()) {
      library.name = BaseName(mapped.path);
      library.open_path = opened->path;
      library.replaced = opened->replaced;
    }
    return &library;
  }

  // False when the process is gone.
  bool Scan(uint32_t pid, Process* process) {
    const std::optional<std::vector<MappedCode>> code = ReadMappedCode(proc, pid);
    if (!code) return false;
    for (const MappedCode& mapped : *code) {
      const bool verbs = IsVerbsLibrary(mapped.path);
      if (!verbs && !MayBeProvider(mapped.path)) continue;
      FileKey key;
      Library* library = Open(pid, process, mapped, &key);
      if (library == nullptr || library->verbs || library->provider) continue;
      const auto image = Image(key, library->open_path);
      const char* probe = verbs ? "verbs.qp" : "verbs.post_send";
      if (!image.ok()) {
        library->table = std::string(image.status().message());
        process->problems[probe].insert(absl::StrCat(library->name, ": ", library->table));
        library->verbs = verbs;
        library->provider = !verbs;
        continue;
      }
      if (verbs) {
        library->verbs = true;
        AttachVerbs(pid, process, key, *library, **image);
        continue;
      }
      if (!(*image)->ImportsPrefix("verbs_register_driver")) {
        process->libraries.erase(key);  // some other library with such a name
        continue;
      }
      library->provider = true;
      const absl::StatusOr<ProviderOps> ops = FindProviderOps(**image);
      if (ops.ok()) {
        library->table =
            absl::StrCat("table at ", Hex(ops->table), ", ", ops->filled, " functions");
        AddFast(process, library, **image, ops->post_send, ops->post_recv, ops->poll_cq);
        AttachFast(pid, process, key, *library);
      } else {
        library->table =
            absl::StrCat(ops.status().message(), "; waiting for a call that shows its functions");
        process->problems["verbs.post_send"].insert(
            absl::StrCat(library->name, ": ", library->table));
      }
    }
    return true;
  }

  // The functions that a context points to.
  void FollowPointers(uint32_t pid, const mc_event_verbs_context& e) {
    const auto it = processes.find(pid);
    if (it == processes.end()) return;
    Process& process = it->second;
    const std::optional<std::vector<MappedCode>> code = ReadMappedCode(proc, pid);
    if (!code) return;
    struct Found {
      uint64_t send = 0, receive = 0, poll = 0;
    };
    std::map<FileKey, Found> found;
    const auto resolve = [&](uint64_t pointer, uint64_t Found::*member) {
      if (pointer == 0) return;
      for (const MappedCode& mapped : *code) {
        if (pointer < mapped.begin || pointer >= mapped.end) continue;
        // An operation that the provider lacks points to libibverbs' own refusal.
        if (IsVerbsLibrary(mapped.path)) return;
        FileKey key;
        Library* library = Open(pid, &process, mapped, &key);
        if (library == nullptr) return;
        library->provider = true;
        const auto image = Image(key, library->open_path);
        if (!image.ok()) {
          process.problems["verbs.post_send"].insert(std::string(image.status().message()));
          return;
        }
        const std::optional<uint64_t> address =
            (*image)->AddressOf(pointer - mapped.begin + mapped.offset);
        if (!address || ((*image)->HasFunctionTable() && !(*image)->IsFunctionStart(*address))) {
          process.problems["verbs.post_send"].insert(absl::StrCat(
              library->name, ": a context points to ", Hex(pointer), ", where no function begins"));
          return;
        }
        found[key].*member = *address;
        return;
      }
    };
    resolve(e.post_send, &Found::send);
    resolve(e.post_recv, &Found::receive);
    resolve(e.poll_cq, &Found::poll);
    for (const auto& [key, f] : found) {
      Library& library = process.libraries[key];
      const auto image = Image(key, library.open_path);
      if (!image.ok()) continue;
      if (!library.by_pointer) {
        // What the table said was a guess, if a good one.
        library.by_pointer = true;
        library.sends.clear();
        library.receives.clear();
        library.polls.clear();
        library.send_returns.clear();
        library.poll_returns.clear();
        library.table = "pointers of an open device";
        std::erase_if(process.problems["verbs.post_send"], [&](const std::string& text) {
          return text.rfind(library.name + ": ", 0) == 0;
        });
      }
      AddFast(&process, &library, **image, f.send, f.receive, f.poll);
      AttachFast(pid, &process, key, library);
    }
    UpdateRows();
  }

  void UpdateRows() {
    for (const char* probe :
         {"verbs.open", "verbs.post_send", "verbs.post_recv", "verbs.qp", "verbs.mr", "verbs.async",
          "verbs.completions", "verbs.post_failures"}) {
      std::set<std::string> labels, problems;
      size_t count = 0;
      for (const auto& [pid, process] : processes) {
        bool any = false;
        for (const auto& [key, attachment] : process.attachments) {
          if (attachment.probe != probe) continue;
          any = true;
          labels.insert(attachment.label);
          const auto library = process.libraries.find(std::get<0>(key));
          if (library != process.libraries.end() && library->second.replaced) {
            problems.insert(absl::StrCat(library->second.name,
                                         " was replaced on disk after process ", pid,
                                         " loaded it; attached to the old file"));
          }
        }
        count += any ? 1 : 0;
        if (const auto it = process.problems.find(probe); it != process.problems.end())
          problems.insert(it->second.begin(), it->second.end());
      }
      std::string attached;
      if (!labels.empty()) {
        std::vector<std::string> first(labels.begin(), labels.end());
        const size_t all = first.size();
        if (all > 3) first.resize(3);
        attached = absl::StrCat("uprobe ", absl::StrJoin(first, ", "),
                                all > 3 ? absl::StrCat(" and ", all - 3, " more") : "", " in ",
                                count, count == 1 ? " process" : " processes");
      }
      std::vector<std::string> said(problems.begin(), problems.end());
      const size_t all = said.size();
      if (all > 3) said.resize(3);
      set->SetRow(probe, attached,
                  absl::StrCat(absl::StrJoin(said, "; "),
                               all > 3 ? absl::StrCat("; and ", all - 3, " more") : ""));
    }
  }

  // ---- deep -----------------------------------------------------------------------

  absl::Status Arm(std::span<const uint64_t> pids, bool Process::*armed, const char* probe) {
    std::vector<std::string> failed;
    for (uint64_t pid : pids) {
      const auto it = processes.find(static_cast<uint32_t>(pid));
      if (it == processes.end()) {
        failed.push_back(absl::StrCat("process ", pid, " is not watched"));
        continue;
      }
      Process& process = it->second;
      process.*armed = true;
      for (const auto& [key, library] : process.libraries)
        if (library.provider) AttachFast(it->first, &process, key, library);
      const bool any = std::any_of(process.attachments.begin(), process.attachments.end(),
                                   [&](const auto& entry) { return entry.second.probe == probe; });
      if (!any) {
        process.*armed = false;
        failed.push_back(absl::StrCat("process ", pid, ": no function of a provider is known"));
      }
    }
    SetArmedCount();
    UpdateRows();
    if (failed.size() == pids.size())
      return absl::FailedPreconditionError(absl::StrCat(probe, ": ", absl::StrJoin(failed, "; ")));
    return absl::OkStatus();
  }

  void Disarm(std::span<const uint64_t> pids, bool Process::*armed) {
    for (uint64_t pid : pids) {
      const auto it = processes.find(static_cast<uint32_t>(pid));
      if (it == processes.end()) continue;
      it->second.*armed = false;
      for (const auto& [key, library] : it->second.libraries)
        AttachFast(it->first, &it->second, key, library);
    }
    SetArmedCount();
    UpdateRows();
  }

  void SetArmedCount() {
    uint32_t count = 0;
    for (const auto& [pid, process] : processes) count += process.completions ? 1 : 0;
    const uint32_t zero = 0;
    const int fd = set->MapFd(kObject, "mc_completions");
    if (fd >= 0) bpf_map_update_elem(fd, &zero, &count, BPF_ANY);
  }

  // ---- rows -----------------------------------------------------------------------

  // All entries of a hash map.
  template <typename Key, typename Value>
  std::vector<std::pair<Key, Value>> ReadMap(const char* name) {
    std::vector<std::pair<Key, Value>> all;
    const int fd = set->MapFd(kObject, name);
    if (fd < 0) return all;
    constexpr uint32_t kBatch = 2048;
    std::vector<Key> keys(kBatch);
    std::vector<Value> values(kBatch);
    uint64_t place = 0;
    bool first = true;
    for (int rounds = 0; rounds < 64; ++rounds) {
      uint32_t count = kBatch;
      const int error = bpf_map_lookup_batch(fd, first ? nullptr : &place, &place, keys.data(),
                                             values.data(), &count, nullptr);
      if (error != 0 && errno != ENOENT) break;
      for (uint32_t i = 0; i < count && i < kBatch; ++i) all.emplace_back(keys[i], values[i]);
      if (error != 0) break;  // ENOENT: the end
      first = false;
    }
    return all;
  }

  void Forget(uint32_t pid) {
    const auto forget = [&](const char* name, auto keys) {
      const int fd = set->MapFd(kObject, name);
      for (const auto& [key, value] : keys)
        if (key.pid == pid) bpf_map_delete_elem(fd, &key);
    };
    forget("mc_qps", ReadMap<mc_qp_key, mc_qp_row>("mc_qps"));
    forget("mc_mrs", ReadMap<mc_verbs_key, mc_mr_row>("mc_mrs"));
    forget("mc_contexts", ReadMap<mc_verbs_key, mc_verbs_context>("mc_contexts"));
  }

  static VerbsQp ToQp(const mc_qp_key& key, const mc_qp_row& row) {
    VerbsQp qp;
    qp.device = Device(row.device);
    qp.port = row.port;
    qp.number = key.number;
    qp.created_ns = row.created_ns;
    qp.creation_seen = (row.flags & MC_QP_SEEN_CREATED) != 0;
    qp.destroyed = (row.flags & MC_QP_DESTROYED) != 0;
    qp.state = std::min(row.state, MC_QP_STATE_UNKNOWN);
    qp.state_ns = row.state_ns;
    // Bits of enum ibv_qp_attr_mask.
    constexpr uint32_t kAv = 1 << 7, kTimeout = 1 << 9, kRetry = 1 << 10, kRnr = 1 << 11,
                       kMinRnr = 1 << 15;
    qp.remote_number = row.remote_number;
    if ((row.known & kAv) != 0 && row.has_gid != 0) {
      qp.remote_gid = GidText(row.remote_gid);
      qp.gid_index = row.gid_index;
    }
    qp.path_mtu = VerbsMtuBytes(row.path_mtu);
    if ((row.known & kTimeout) != 0) qp.timeout = row.timeout;
    if ((row.known & kRetry) != 0) qp.retry_count = row.retry_count;
    if ((row.known & kRnr) != 0) qp.rnr_retry = row.rnr_retry;
    if ((row.known & kMinRnr) != 0) qp.min_rnr_timer = row.min_rnr_timer;
    std::copy(std::begin(row.posts), std::end(row.posts), qp.posts.begin());
    qp.bytes = row.bytes;
    qp.receives = row.receives;
    qp.post_failures = row.post_failures;
    qp.last_post_errno = row.last_errno;
    qp.last_post_ns = row.last_post_ns;
    qp.last_receive_ns = row.last_receive_ns;
    qp.post_tid = row.post_tid;
    qp.completions_seen = (row.flags & MC_QP_COMPLETIONS_SEEN) != 0;
    qp.completions = row.completions;
    qp.failed_completions = row.failed_completions;
    qp.receive_completions = row.receive_completions;
    qp.last_completion_ns = row.last_completion_ns;
    qp.latency_count = row.latency_count;
    qp.latency_sum_ns = row.latency_sum_ns;
    qp.latency_max_ns = row.latency_max_ns;
    qp.first_bad_status = row.first_bad_status;
    qp.first_bad_vendor = row.first_bad_vendor;
    qp.first_bad_ns = row.first_bad_ns;
    qp.truncated_posts = row.truncated_posts;
    return qp;
  }

  void AddEvent(VerbsEvent event) {
    if (events.size() >= kMaxEvents) {
      ++lost_events;
      return;
    }
    events.push_back(std::move(event));
  }
};

VerbsProbes::VerbsProbes(ProbeSet* set, std::string proc) : impl_(std::make_unique<Impl>()) {
  impl_->set = set;
  impl_->proc = std::move(proc);
  Impl* impl = impl_.get();
  set->SetDeepHooks("verbs.completions", {.arm =
                                              [impl](std::span<const uint64_t> pids) {
                                                return impl->Arm(pids, &Impl::Process::completions,
                                                                 "verbs.completions");
                                              },
                                          .disarm =
                                              [impl](std::span<const uint64_t> pids) {
                                                impl->Disarm(pids, &Impl::Process::completions);
                                              }});
  set->SetDeepHooks("verbs.post_failures", {.arm =
                                                [impl](std::span<const uint64_t> pids) {
                                                  return impl->Arm(pids, &Impl::Process::failures,
                                                                   "verbs.post_failures");
                                                },
                                            .disarm =
                                                [impl](std::span<const uint64_t> pids) {
                                                  impl->Disarm(pids, &Impl::Process::failures);
                                                }});
}

VerbsProbes::~VerbsProbes() {
  impl_->set->Disarm("verbs.completions");
  impl_->set->Disarm("verbs.post_failures");
  impl_->set->SetDeepHooks("verbs.completions", {});
  impl_->set->SetDeepHooks("verbs.post_failures", {});
  for (auto& [pid, process] : impl_->processes) impl_->DetachAll(&process);
  impl_->processes.clear();
  impl_->UpdateRows();
}

void VerbsProbes::AddProcess(uint32_t pid) {
  if (!impl_->set->ProgramLoaded(kObject, "verbs_post_send")) return;
  const std::optional<ProcStat> stat = ReadProcStat(impl_->proc, pid);
  if (!stat) return;
  if (const auto it = impl_->processes.find(pid); it != impl_->processes.end()) {
    if (it->second.start_time == stat->start_time) return;
    RemoveProcess(pid);  // the number of another one that is gone
  }
  impl_->gone.erase(pid);
  impl_->Forget(pid);
  Impl::Process process;
  process.start_time = stat->start_time;
  auto [it, added] = impl_->processes.emplace(pid, std::move(process));
  if (!impl_->Scan(pid, &it->second)) RemoveProcess(pid);
  impl_->UpdateRows();
}

void VerbsProbes::RemoveProcess(uint32_t pid) {
  const auto it = impl_->processes.find(pid);
  if (it == impl_->processes.end()) return;
  impl_->DetachAll(&it->second);
  impl_->processes.erase(it);
  impl_->Forget(pid);
  impl_->SetArmedCount();
  impl_->UpdateRows();
}

void VerbsProbes::Tick(uint64_t now_ns) {
  std::vector<uint32_t> ended;
  bool scanned = false;
  for (auto& [pid, process] : impl_->processes) {
    const std::optional<ProcStat> stat = ReadProcStat(impl_->proc, pid);
    if (!stat && !IsGone(impl_->proc + "/" + std::to_string(pid))) continue;
    // A zombie has no memory left: its probes are gone with it.
    if (!stat || stat->start_time != process.start_time || stat->state == 'Z') {
      ended.push_back(pid);
      continue;
    }
    if (now_ns < process.next_scan_ns) continue;
    if (process.next_scan_ns != 0) {
      scanned = true;
      impl_->Scan(pid, &process);
    }
    bool verbs = false, provider = false;
    for (const auto& [key, library] : process.libraries) {
      verbs |= library.verbs;
      provider |= library.provider;
    }
    // Reading the map of a large process takes milliseconds.
    const uint64_t longest = verbs && provider ? 30 * kSecond : 5 * kSecond;
    process.next_scan_ns = now_ns + process.scan_interval_ns;
    process.scan_interval_ns = std::min(process.scan_interval_ns * 2, longest);
  }
  for (uint32_t pid : ended) {
    impl_->DetachAll(&impl_->processes[pid]);
    impl_->processes.erase(pid);
    impl_->gone.insert(pid);
  }
  if (!ended.empty()) impl_->SetArmedCount();
  if (scanned || !ended.empty()) impl_->UpdateRows();
}

void VerbsProbes::OnEvent(const mc_event& header, std::span<const std::byte> record) {
  VerbsEvent event;
  event.t_ns = header.ts_ns;
  event.pid = header.pid;
  event.tid = header.tid;
  switch (header.kind) {
    case MC_EVENT_VERBS_CONTEXT: {
      mc_event_verbs_context e;
      if (ReadRecord(record, &e)) impl_->FollowPointers(header.pid, e);
      return;
    }
    case MC_EVENT_VERBS_QP_GONE: {
      mc_event_verbs_qp_gone e;
      if (!ReadRecord(record, &e)) return;
      if (impl_->gone_rows.size() < kMaxEvents)
        impl_->gone_rows.emplace_back(e.key, e.row);
      else
        ++impl_->lost_events;
      return;
    }
    case MC_EVENT_VERBS_QP_ERROR: {
      mc_event_verbs_qp_error e;
      if (!ReadRecord(record, &e)) return;
      event.kind = VerbsEvent::Kind::kQpError;
      event.device = Device(e.device);
      event.number = e.key.number;
      event.value = e.value;
      event.reason = e.reason;
      switch (e.reason) {
        case MC_QP_ERROR_MODIFIED:
          event.text = absl::StrCat("the process set the queue pair to ", VerbsStateName(e.state));
          break;
        case MC_QP_ERROR_MODIFY_FAILED:
          event.text = absl::StrCat("modify to ", VerbsStateName(e.state),
                                    " failed: ", std::strerror(static_cast<int>(e.value)));
          break;
        case MC_QP_ERROR_ASYNC:
          event.text = VerbsEventName(e.value);
          break;
        case MC_QP_ERROR_COMPLETION:
          event.text = absl::StrCat("completion with status ", e.value, " (",
                                    VerbsStatusName(e.value), "), vendor error ", e.vendor);
          break;
        default:
          event.text = absl::StrCat("reason ", e.reason);
      }
      break;
    }
    case MC_EVENT_VERBS_MR_FAILURE: {
      mc_event_verbs_mr_failure e;
      if (!ReadRecord(record, &e)) return;
      event.kind = VerbsEvent::Kind::kMrFailure;
      event.device = Device(e.device);
      event.value = static_cast<uint32_t>(e.error);
      event.text = absl::StrCat("registration of ", e.bytes, " bytes",
                                e.dmabuf != 0 ? " of device memory (dmabuf)" : "",
                                " failed: ", std::strerror(e.error));
      break;
    }
    case MC_EVENT_VERBS_ASYNC: {
      mc_event_verbs_async e;
      if (!ReadRecord(record, &e)) return;
      event.kind = VerbsEvent::Kind::kAsync;
      event.device = Device(e.device);
      event.number = e.qp_number;
      event.port = e.port;
      event.value = e.type;
      event.text = VerbsEventName(e.type);
      break;
    }
    default:
      return;
  }
  // Not a watched process: it was removed while this record was under way.
  if (!impl_->processes.contains(header.pid) && !impl_->gone.contains(header.pid)) return;
  impl_->AddEvent(std::move(event));
}

std::vector<VerbsProcess> VerbsProbes::Read() {
  std::map<uint32_t, VerbsProcess> by_pid;
  for (const auto& [pid, process] : impl_->processes) by_pid[pid].pid = pid;
  for (uint32_t pid : impl_->gone) by_pid[pid].pid = pid;
  const int qps = impl_->set->MapFd(kObject, "mc_qps");
  for (const auto& [key, read] : impl_->ReadMap<mc_qp_key, mc_qp_row>("mc_qps")) {
    const auto it = by_pid.find(key.pid);
    if (it == by_pid.end()) {
      bpf_map_delete_elem(qps, &key);
      continue;
    }
    mc_qp_row row = read;
    if ((row.flags & MC_QP_DESTROYED) != 0) {
      if (bpf_map_lookup_and_delete_elem(qps, &key, &row) != 0) continue;
      // Made anew between the two looks: put it back.
      if ((row.flags & MC_QP_DESTROYED) == 0) {
        bpf_map_update_elem(qps, &key, &row, BPF_NOEXIST);
      }
    }
    it->second.qps.push_back(Impl::ToQp(key, row));
  }
  for (const auto& [key, row] : impl_->gone_rows) {
    const auto it = by_pid.find(key.pid);
    if (it != by_pid.end()) it->second.qps.push_back(Impl::ToQp(key, row));
  }
  impl_->gone_rows.clear();
  for (const auto& [key, row] : impl_->ReadMap<mc_verbs_key, mc_mr_row>("mc_mrs")) {
    const auto it = by_pid.find(key.pid);
    if (it == by_pid.end()) continue;
    const std::string device = Device(row.device);
    // A device that was opened twice has two contexts, and is one here.
    auto& mrs = it->second.mrs;
    auto mr =
        std::find_if(mrs.begin(), mrs.end(), [&](const VerbsMr& m) { return m.device == device; });
    if (mr == mrs.end()) {
      mrs.push_back({.device = device});
      mr = std::prev(mrs.end());
    }
    mr->registrations += row.registrations;
    mr->dmabuf += row.dmabuf;
    mr->relaxed_ordering += row.relaxed_ordering;
    mr->bytes += row.bytes;
    mr->ns += row.ns;
    mr->failures += row.failures;
    if (row.last_failure_ns > mr->last_failure_ns) {
      mr->last_errno = row.last_errno;
      mr->last_failure_bytes = row.last_failure_bytes;
      mr->last_failure_ns = row.last_failure_ns;
    }
  }
  for (const auto& [key, context] : impl_->ReadMap<mc_verbs_key, mc_verbs_context>("mc_contexts")) {
    const auto it = by_pid.find(key.pid);
    const std::string device = Device(context.device);
    if (it != by_pid.end() && !device.empty()) it->second.devices.push_back(device);
  }
  std::vector<VerbsProcess> all;
  for (auto& [pid, process] : by_pid) {
    std::sort(process.qps.begin(), process.qps.end(), [](const VerbsQp& a, const VerbsQp& b) {
      return std::tie(a.device, a.number, a.created_ns) <
             std::tie(b.device, b.number, b.created_ns);
    });
    std::sort(process.mrs.begin(), process.mrs.end(),
              [](const VerbsMr& a, const VerbsMr& b) { return a.device < b.device; });
    std::sort(process.devices.begin(), process.devices.end());
    process.devices.erase(std::unique(process.devices.begin(), process.devices.end()),
                          process.devices.end());
    all.push_back(std::move(process));
  }
  for (uint32_t pid : impl_->gone) impl_->Forget(pid);
  impl_->gone.clear();
  return all;
}

std::vector<VerbsEvent> VerbsProbes::TakeEvents() { return std::exchange(impl_->events, {}); }

uint64_t VerbsProbes::lost_events() const { return impl_->lost_events; }

std::vector<std::string> VerbsProbes::Describe(uint32_t pid) const {
  std::vector<std::string> lines;
  const auto it = impl_->processes.find(pid);
  if (it == impl_->processes.end()) return lines;
  for (const auto& [key, library] : it->second.libraries) {
    lines.push_back(absl::StrCat(library.name, library.replaced ? " (replaced on disk)" : "",
                                 library.table.empty() ? "" : ": ", library.table));
  }
  for (const auto& [key, attachment] : it->second.attachments) {
    lines.push_back(
        absl::StrCat(attachment.probe, ": ", std::get<1>(key), " at ", attachment.label));
  }
  for (const auto& [probe, texts] : it->second.problems)
    for (const std::string& text : texts) lines.push_back(absl::StrCat(probe, ": ", text));
  return lines;
}

#else  // !MYCROFT_HAVE_BPF

struct VerbsProbes::Impl {};
VerbsProbes::VerbsProbes(ProbeSet*, std::string) {}
VerbsProbes::~VerbsProbes() = default;
void VerbsProbes::AddProcess(uint32_t) {}
void VerbsProbes::RemoveProcess(uint32_t) {}
void VerbsProbes::Tick(uint64_t) {}
void VerbsProbes::OnEvent(const mc_event&, std::span<const std::byte>) {}
std::vector<VerbsProcess> VerbsProbes::Read() { return {}; }
std::vector<VerbsEvent> VerbsProbes::TakeEvents() { return {}; }
uint64_t VerbsProbes::lost_events() const { return 0; }
std::vector<std::string> VerbsProbes::Describe(uint32_t) const { return {}; }

#endif

}  // namespace mycroft
