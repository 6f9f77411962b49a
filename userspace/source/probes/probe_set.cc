// SPDX-License-Identifier: Apache-2.0
#include "userspace/source/probes/probe_set.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "userspace/source/probes/bpf_objects.h"
#include "userspace/source/probes/map_access.h"

#if MYCROFT_HAVE_BPF
#include <bpf/bpf.h>
#include <bpf/btf.h>
#include <bpf/libbpf.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cstdio>
#include <future>
#endif

namespace mycroft {

#if MYCROFT_HAVE_BPF

namespace {

// "Operation not permitted", with what to do about the usual ones.
std::string ErrnoText(int error) {
  std::string text = std::strerror(error);
  if (error == EPERM || error == EACCES) {
    absl::StrAppend(&text, geteuid() == 0 ? " (kernel lockdown, or a capability is missing)"
                                          : " (run as root, or with CAP_BPF and CAP_PERFMON)");
  }
  return text;
}

int Silent(enum libbpf_print_level, const char*, va_list) { return 0; }

struct ObjectDeleter {
  void operator()(bpf_object* object) const { bpf_object__close(object); }
};
using Object = std::unique_ptr<bpf_object, ObjectDeleter>;

struct LinkDeleter {
  void operator()(bpf_link* link) const { bpf_link__destroy(link); }
};
using Link = std::unique_ptr<bpf_link, LinkDeleter>;

class Fd {
 public:
  explicit Fd(int fd = -1) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Fd() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

// Inode of our pid namespace, 0 when it is the first one or cannot be told.
uint32_t OwnPidNamespace() {
  constexpr uint32_t kInitial = 0xEFFFFFFC;  // PROC_PID_INIT_INO, include/linux/proc_ns.h
  struct stat s;
  if (stat("/proc/self/ns/pid", &s) != 0) return 0;
  const auto inode = static_cast<uint32_t>(s.st_ino);
  return inode == kInitial ? 0 : inode;
}

// Sets a `const volatile` variable of the programs, before the object is loaded.
void SetConstant(bpf_object* object, const char* name, uint32_t value) {
  bpf_map* map = bpf_object__find_map_by_name(object, ".rodata");
  const btf* types = bpf_object__btf(object);
  if (map == nullptr || types == nullptr) return;
  size_t bytes = 0;
  void* data = const_cast<void*>(bpf_map__initial_value(map, &bytes));
  const int section = btf__find_by_name_kind(types, ".rodata", BTF_KIND_DATASEC);
  if (data == nullptr || section < 0) return;
  const btf_type* type = btf__type_by_id(types, section);
  const btf_var_secinfo* info = btf_var_secinfos(type);
  for (int i = 0; i < btf_vlen(type); ++i) {
    const btf_type* variable = btf__type_by_id(types, info[i].type);
    const char* its_name = btf__name_by_offset(types, variable->name_off);
    if (its_name != nullptr && std::strcmp(its_name, name) == 0 && info[i].size == sizeof(value) &&
        info[i].offset + sizeof(value) <= bytes) {
      std::memcpy(static_cast<char*>(data) + info[i].offset, &value, sizeof(value));
    }
  }
}

// The last line of the verifier's log that says something.
std::string VerifierText(const std::string& log) {
  std::string last;
  size_t begin = 0;
  while (begin < log.size()) {
    size_t end = log.find('\n', begin);
    if (end == std::string::npos) end = log.size();
    std::string line = log.substr(begin, end - begin);
    if (!line.empty() && line.rfind("processed ", 0) != 0 && line.rfind("-- ", 0) != 0 &&
        line.rfind("peak_states", 0) != 0 && line[0] != '\0') {
      last = line;
    }
    begin = end + 1;
  }
  return last.substr(0, 160);
}

// Programs that are bound to a tracepoint or function when they are loaded, and which
// one: "sched_switch" of section "tp_btf/sched_switch". Empty: another kind.
std::string BoundTo(const bpf_program* program) {
  const std::string section = bpf_program__section_name(program);
  for (const char* prefix : {"tp_btf/", "fentry/", "fexit/"})
    if (section.rfind(prefix, 0) == 0) return section.substr(std::strlen(prefix));
  return "";
}

bool BoundAtLoad(const bpf_program* program) {
  // Their kernel function must exist, and the kernel must allow it, to be loaded at all.
  const bpf_prog_type type = bpf_program__type(program);
  return type == BPF_PROG_TYPE_TRACING || type == BPF_PROG_TYPE_LSM || type == BPF_PROG_TYPE_EXT;
}

// One attached uprobe. Detaching waits for all CPUs in the kernel: 0.1 s was measured.
struct Uprobe {
  Link link;  // through perf_event_open
  Fd multi;   // through BPF_TRACE_UPROBE_MULTI
};

// uprobe_multi of bpf(2), which libbpf 1.1 does not know (include/uapi/linux/bpf.h, since
// 6.6). It holds no lock while it waits: many can be detached at the same time.
constexpr uint32_t kUprobeMultiAttachType = 48;
struct UprobeMultiAttr {
  uint32_t prog_fd, target_fd, attach_type, flags;
  uint64_t path, offsets, ref_ctr_offsets, cookies;
  uint32_t count, multi_flags, pid, pad;
};
int AttachUprobeMulti(int program, const char* path, uint64_t offset, uint32_t pid, bool on_return,
                      uint64_t cookie) {
  UprobeMultiAttr attr = {};
  attr.prog_fd = static_cast<uint32_t>(program);
  attr.attach_type = kUprobeMultiAttachType;
  attr.path = reinterpret_cast<uintptr_t>(path);
  attr.offsets = reinterpret_cast<uintptr_t>(&offset);
  attr.cookies = reinterpret_cast<uintptr_t>(&cookie);
  attr.count = 1;
  attr.multi_flags = on_return ? 1 : 0;  // BPF_F_UPROBE_MULTI_RETURN
  attr.pid = pid;
  return static_cast<int>(syscall(SYS_bpf, BPF_LINK_CREATE, &attr, sizeof(attr)));
}

// From 6.6 to 6.9 the pid meant a single thread.
bool KernelHasUprobeMulti() {
  utsname name;
  int major = 0, minor = 0;
  return uname(&name) == 0 && std::sscanf(name.release, "%d.%d", &major, &minor) == 2 &&
         (major > 6 || (major == 6 && minor >= 10));
}

// Detaches in the background, several at a time.
class Reaper {
 public:
  ~Reaper() { Wait(); }
  void Take(std::vector<Uprobe> dead) {
    if (dead.empty()) return;
    std::erase_if(threads_, [](std::future<void>& f) {
      return f.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
    });
    // The kernel waits for all of them together when they come together.
    const size_t each = std::max<size_t>(1, dead.size() / kThreads);
    for (size_t i = 0; i < dead.size(); i += each) {
      auto part = std::make_shared<std::vector<Uprobe>>();
      for (size_t k = i; k < std::min(i + each, dead.size()); ++k)
        part->push_back(std::move(dead[k]));
      threads_.push_back(std::async(std::launch::async, [part] { part->clear(); }));
    }
  }
  void Wait() { threads_.clear(); }  // a future of std::async waits in its destructor

 private:
  static constexpr size_t kThreads = 32;
  std::vector<std::future<void>> threads_;
};

// A function of our own whose first instruction the kernel emulates: the cheap uprobe.
asm(R"(
    .text
    .p2align 4
    .type mycroft_calibrated_call, @function
mycroft_calibrated_call:
    push %rbp
    pop %rbp
    ret
    .size mycroft_calibrated_call, .-mycroft_calibrated_call
)");
extern "C" void mycroft_calibrated_call() __attribute__((visibility("hidden")));

int64_t NowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

struct ProbeSet::Impl {
  struct Loaded {
    Object object;
    std::map<std::string, std::string, std::less<>> refused;  // program -> why
    std::string problem;                                      // why there is no object
  };
  struct Probe {
    const ProbeSpec* spec = nullptr;
    int chosen = -1;  // index of the alternative; -1: none
    std::vector<Link> links;
    std::string attached, problem;
    std::map<uint64_t, uint64_t> targets;  // deep: target -> until
    DeepHooks hooks;
    std::optional<double> cost_ns;
  };
  struct Stats {
    uint64_t ns = 0, runs = 0;
  };
  struct RingDeleter {
    void operator()(ring_buffer* ring) const { ring_buffer__free(ring); }
  };

  Options options;
  std::string problem;  // why nothing at all can be loaded
  Fd events, counters, targets;
  std::map<std::string, Loaded, std::less<>> objects;
  std::unique_ptr<btf, void (*)(btf*)> kernel_types{nullptr, btf__free};
  std::string fentry_forbidden;  // why
  bool fentry_works = false;
  std::map<std::string, std::string> bound;  // kernel function -> why not
  std::vector<Probe> probes;
  bool uprobe_multi = false;
  std::map<uint64_t, Uprobe> uprobes;
  std::vector<Uprobe> detached;  // handed to the reaper together
  Reaper reaper;
  uint64_t next_uprobe = 1;
  std::unique_ptr<ring_buffer, RingDeleter> ring;
  const std::function<void(const mc_event&, std::span<const std::byte>)>* on_record = nullptr;
  size_t records = 0, max_records = 0;
  uint64_t malformed = 0;
  Fd stats;
  std::map<const bpf_program*, Stats> stats_before;
  std::optional<double> trap_ns;

  Probe* Find(const std::string& name) {
    for (Probe& probe : probes)
      if (name == probe.spec->name) return &probe;
    return nullptr;
  }

  bool CreateSharedMaps() {
    LIBBPF_OPTS(bpf_map_create_opts, opts);
    events = Fd(bpf_map_create(BPF_MAP_TYPE_RINGBUF, "mc_events", 0, 0, options.ring_bytes, &opts));
    if (events.get() < 0) {
      problem = absl::StrCat("BPF maps: ", ErrnoText(errno));
      return false;
    }
    counters = Fd(bpf_map_create(BPF_MAP_TYPE_PERCPU_ARRAY, "mc_counters", sizeof(uint32_t),
                                 sizeof(mc_probe_counters), MC_PROBE_MAX, &opts));
    targets = Fd(bpf_map_create(BPF_MAP_TYPE_HASH, "mc_targets", sizeof(mc_target),
                                sizeof(uint64_t), 4096, &opts));
    if (counters.get() < 0 || targets.get() < 0) {
      problem = absl::StrCat("BPF maps: ", ErrnoText(errno));
      return false;
    }
    ring.reset(ring_buffer__new(events.get(), &Impl::OnRecord, this, nullptr));
    if (!ring) {
      problem = absl::StrCat("BPF ring buffer: ", ErrnoText(errno));
      return false;
    }
    return true;
  }

  // `log` must outlive the object.
  Object Open(const std::string& name, std::string* log, int* error) {
    const std::span<const std::byte> bytes = BpfObjectBytes(name);
    LIBBPF_OPTS(bpf_object_open_opts, opts);
    opts.object_name = name.c_str();
    opts.kernel_log_buf = log->data();
    opts.kernel_log_size = log->size();
    Object object(bpf_object__open_mem(bytes.data(), bytes.size(), &opts));
    if (!object) {
      *error = errno;
      return nullptr;
    }
    SetConstant(object.get(), "mc_pid_namespace", OwnPidNamespace());
    bpf_program* program;
    bpf_object__for_each_program(program, object.get()) {
      const std::string section = bpf_program__section_name(program);
      if (uprobe_multi && (section == "uprobe" || section == "uretprobe")) {
        bpf_program__set_expected_attach_type(program,
                                              static_cast<bpf_attach_type>(kUprobeMultiAttachType));
      }
    }
    for (const auto& [map_name, fd] :
         {std::pair("mc_events", events.get()), std::pair("mc_counters", counters.get()),
          std::pair("mc_targets", targets.get())}) {
      bpf_map* map = bpf_object__find_map_by_name(object.get(), map_name);
      if (map != nullptr && bpf_map__reuse_fd(map, fd) != 0) {
        *error = errno;
        return nullptr;
      }
    }
    return object;
  }

  // Loads one program alone, into small maps. Empty: it can be loaded.
  std::string Try(const std::string& name, const char* program) {
    std::string log(65536, '\0');
    int error = 0;
    Object object = Open(name, &log, &error);
    if (!object) return ErrnoText(error);
    bpf_program* p;
    bpf_object__for_each_program(p, object.get())
        bpf_program__set_autoload(p, std::strcmp(bpf_program__name(p), program) == 0);
    bpf_map* map;
    bpf_object__for_each_map(map, object.get()) {
      const bool shared = std::strncmp(bpf_map__name(map), "mc_events", 9) == 0 ||
                          std::strcmp(bpf_map__name(map), "mc_counters") == 0 ||
                          std::strcmp(bpf_map__name(map), "mc_targets") == 0;
      const bpf_map_type type = bpf_map__type(map);
      if (!shared && !bpf_map__is_internal(map) &&
          (type == BPF_MAP_TYPE_HASH || type == BPF_MAP_TYPE_LRU_HASH ||
           type == BPF_MAP_TYPE_PERCPU_HASH)) {
        bpf_map__set_max_entries(map, 64);
      }
    }
    if (bpf_object__load(object.get()) == 0) return "";
    error = errno;
    if (error == ESRCH) return "the kernel has no such function";
    const std::string verifier = VerifierText(log.c_str());
    return verifier.empty() ? ErrnoText(error) : absl::StrCat(ErrnoText(error), ": ", verifier);
  }

  // One uprobe; neither member is set, and errno is, when it cannot be attached.
  Uprobe AttachTo(bpf_program* program, const UprobeTarget& target) {
    Uprobe uprobe;
    if (uprobe_multi) {
      uprobe.multi =
          Fd(AttachUprobeMulti(bpf_program__fd(program), target.path.c_str(), target.offset,
                               target.pid, target.on_return, target.cookie));
      return uprobe;
    }
    LIBBPF_OPTS(bpf_uprobe_opts, opts);
    opts.retprobe = target.on_return;
    opts.bpf_cookie = target.cookie;
    const pid_t pid = target.pid == 0 ? -1 : static_cast<pid_t>(target.pid);
    uprobe.link.reset(
        bpf_program__attach_uprobe_opts(program, pid, target.path.c_str(), target.offset, &opts));
    return uprobe;
  }

  // rounds == 0: only whether it can be attached.
  std::optional<double> CalibrateOnce(int rounds = 0) {
    std::string log(4096, '\0');
    int error = 0;
    const Object object = Open("calibrate", &log, &error);
    if (!object || bpf_object__load(object.get()) != 0) return std::nullopt;
    bpf_program* program = bpf_object__find_program_by_name(object.get(), "calibrate");
    const ssize_t offset =
        static_cast<ssize_t>(reinterpret_cast<uintptr_t>(&mycroft_calibrated_call));
    // Which file we are in (a library or the program), and where in it.
    FILE* maps = fopen("/proc/self/maps", "re");
    if (maps == nullptr) return std::nullopt;
    char line[4608], path[4096] = "";
    uint64_t file_offset = 0;
    bool found = false;
    while (!found && fgets(line, sizeof(line), maps) != nullptr) {
      unsigned long start, end, page_offset;
      if (sscanf(line, "%lx-%lx %*s %lx %*s %*s %4095s", &start, &end, &page_offset, path) == 4 &&
          static_cast<unsigned long>(offset) >= start && static_cast<unsigned long>(offset) < end) {
        file_offset = static_cast<unsigned long>(offset) - start + page_offset;
        found = true;
      }
    }
    fclose(maps);
    if (!found) return std::nullopt;
    constexpr int kCalls = 2000;
    const auto best = [&] {
      double least = 1e18;
      for (int round = 0; round < rounds; ++round) {
        const int64_t begin = NowNs();
        for (int i = 0; i < kCalls; ++i) mycroft_calibrated_call();
        least = std::min(least, static_cast<double>(NowNs() - begin) / kCalls);
      }
      return least;
    };
    const double without = best();
    const Uprobe uprobe = AttachTo(
        program, {.pid = static_cast<uint32_t>(getpid()), .path = path, .offset = file_offset});
    if (!uprobe.link && uprobe.multi.get() < 0) return std::nullopt;
    const double with = best();
    return std::max(0.0, with - without);
  }

  // Why a program cannot be loaded that is bound at load; empty: it can, as far as is known
  // without trying (which takes 50 ms each).
  std::string WhyNotBound(const std::string& name, const bpf_program* program) {
    const bool raw_tracepoint = bpf_program__expected_attach_type(program) == BPF_TRACE_RAW_TP;
    const std::string target = BoundTo(program);
    if (target.empty()) return Try(name, bpf_program__name(program));
    // A kernel that forbids one function hook forbids all; do not ask for each.
    if (!raw_tracepoint && !fentry_forbidden.empty()) return fentry_forbidden;
    if (!kernel_types) kernel_types.reset(btf__load_vmlinux_btf());
    if (!kernel_types) return "the kernel has no BTF (CONFIG_DEBUG_INFO_BTF)";
    if (raw_tracepoint) {
      const std::string type = "btf_trace_" + target;
      return btf__find_by_name_kind(kernel_types.get(), type.c_str(), BTF_KIND_TYPEDEF) < 0
                 ? "the kernel has no such tracepoint"
                 : "";
    }
    const bool known =
        btf__find_by_name_kind(kernel_types.get(), target.c_str(), BTF_KIND_FUNC) >= 0;
    if (known && fentry_works) return "";
    const auto tried = bound.find(target);
    if (tried != bound.end()) return tried->second;
    std::string why = Try(name, bpf_program__name(program));  // forbidden, or of a module
    bound[target] = why;
    if (why.empty()) fentry_works = true;
    if (why.rfind(std::strerror(EPERM), 0) == 0) fentry_forbidden = why;
    return why;
  }

  Loaded Load(const std::string& name) {
    Loaded loaded;
    // Programs that the table names, with the alternatives' order.
    std::set<std::string> wanted;
    for (const ProbeSpec& spec : ProbeTable()) {
      if (name != spec.object) continue;
      for (const ProbeAlternative& alternative : spec.alternatives)
        wanted.insert(alternative.programs.begin(), alternative.programs.end());
    }
    std::string log(1 << 18, '\0');
    bool tried_all = false;
    while (true) {
      int error = 0;
      Object object = Open(name, &log, &error);
      if (!object) {
        loaded.problem = absl::StrCat("BPF object ", name, ": ", ErrnoText(error));
        return loaded;
      }
      bpf_program* p;
      bpf_object__for_each_program(p, object.get()) {
        const std::string program = bpf_program__name(p);
        bool load = wanted.contains(program) && !loaded.refused.contains(program);
        if (load && (BoundAtLoad(p) || tried_all)) {
          const std::string why = tried_all ? Try(name, program.c_str()) : WhyNotBound(name, p);
          if (!why.empty()) {
            loaded.refused[program] = why;
            load = false;
          }
        }
        bpf_program__set_autoload(p, load);
      }
      if (bpf_object__load(object.get()) == 0) {
        loaded.object = std::move(object);
        return loaded;
      }
      error = errno;
      if (tried_all) {
        loaded.problem = absl::StrCat("BPF object ", name, ": ", ErrnoText(error));
        return loaded;
      }
      tried_all = true;
    }
  }

  bpf_program* Program(const std::string& object, const std::string& program, std::string* why) {
    const auto it = objects.find(object);
    std::string reason;
    if (!problem.empty()) {
      reason = problem;
    } else if (it == objects.end()) {
      reason = absl::StrCat("no BPF object ", object, " was loaded");
    } else if (!it->second.problem.empty()) {
      reason = it->second.problem;
    } else if (const auto refused = it->second.refused.find(program);
               refused != it->second.refused.end()) {
      reason = refused->second;
    } else {
      bpf_program* p = bpf_object__find_program_by_name(it->second.object.get(), program.c_str());
      if (p != nullptr && bpf_program__fd(p) >= 0) return p;
      reason = absl::StrCat("no program ", program);
    }
    if (why != nullptr) *why = reason;
    return nullptr;
  }

  std::string AttachText(const ProbeAlternative& alternative) {
    return absl::StrCat(ProbeMethodName(alternative.method), " ", alternative.target);
  }

  // All programs of the alternative, or why not.
  std::string AttachAll(const ProbeSpec& spec, const ProbeAlternative& alternative,
                        std::vector<Link>* links) {
    for (const char* name : alternative.programs) {
      std::string why;
      bpf_program* program = Program(spec.object, name, &why);
      if (program == nullptr) return why;
      Link link(bpf_program__attach(program));
      if (!link) {
        const int error = errno;
        links->clear();
        if (error == ENOENT && alternative.method == ProbeMethod::kTracepoint &&
            access("/sys/kernel/tracing/events", F_OK) != 0 &&
            access("/sys/kernel/debug/tracing/events", F_OK) != 0) {
          return "tracefs is not mounted (mount -t tracefs tracefs /sys/kernel/tracing)";
        }
        return error == ENOENT ? "the kernel has none of that name" : ErrnoText(error);
      }
      links->push_back(std::move(link));
    }
    return "";
  }

  // Chooses the best alternative that works; deep ones are attached only to see whether.
  void Choose(Probe* probe) {
    const ProbeSpec& spec = *probe->spec;
    std::vector<std::string> reasons;
    for (size_t i = 0; i < spec.alternatives.size(); ++i) {
      const ProbeAlternative& alternative = spec.alternatives[i];
      if (std::find(options.avoid.begin(), options.avoid.end(), alternative.method) !=
          options.avoid.end()) {
        reasons.push_back(absl::StrCat(AttachText(alternative), ": not wanted"));
        continue;
      }
      std::string why;
      switch (alternative.method) {
        case ProbeMethod::kFentry:
        case ProbeMethod::kKprobe:
        case ProbeMethod::kTracepoint:
          why = AttachAll(spec, alternative, &probe->links);
          if (spec.level == ProbeRunLevel::kDeep) probe->links.clear();
          break;
        case ProbeMethod::kUprobe:
          for (const char* program : alternative.programs)
            if (Program(spec.object, program, &why) == nullptr) break;
          break;
        case ProbeMethod::kPoll:
        case ProbeMethod::kNone:
          break;
      }
      if (why.empty()) {
        probe->chosen = static_cast<int>(i);
        if (alternative.method != ProbeMethod::kUprobe && alternative.method != ProbeMethod::kNone)
          probe->attached = AttachText(alternative);
        break;
      }
      reasons.push_back(absl::StrCat(AttachText(alternative), ": ", why));
    }
    probe->problem = absl::StrJoin(reasons, "; ");
  }

  static int OnRecord(void* self, void* data, size_t bytes) {
    auto* impl = static_cast<Impl*>(self);
    mc_event header;
    if (!ReadRecord({static_cast<const std::byte*>(data), bytes}, &header) ||
        header.bytes < sizeof(header) || header.bytes > bytes) {
      ++impl->malformed;
      return 0;
    }
    ++impl->records;
    if (impl->on_record != nullptr)
      (*impl->on_record)(header, {static_cast<const std::byte*>(data), header.bytes});
    return impl->records >= impl->max_records ? -1 : 0;
  }

  Stats ReadStats(const bpf_program* program) {
    bpf_prog_info info = {};
    uint32_t bytes = sizeof(info);
    Stats s;
    if (bpf_obj_get_info_by_fd(bpf_program__fd(program), &info, &bytes) == 0) {
      s.ns = info.run_time_ns;
      s.runs = info.run_cnt;
    }
    return s;
  }

  void ForChosenPrograms(Probe& probe, const std::function<void(const bpf_program*)>& f) {
    if (probe.chosen < 0) return;
    for (const char* name : probe.spec->alternatives[probe.chosen].programs)
      if (const bpf_program* p = Program(probe.spec->object, name, nullptr)) f(p);
  }

  void UpdateCosts() {
    if (stats.get() < 0) return;
    for (Probe& probe : probes) {
      Stats sum;
      ForChosenPrograms(probe, [&](const bpf_program* program) {
        const Stats now = ReadStats(program);
        const Stats before = stats_before[program];
        sum.ns += now.ns - before.ns;
        sum.runs += now.runs - before.runs;
      });
      if (sum.runs == 0) continue;
      double cost = static_cast<double>(sum.ns) / static_cast<double>(sum.runs);
      if (probe.spec->alternatives[probe.chosen].method == ProbeMethod::kUprobe) {
        if (!trap_ns) continue;
        cost += *trap_ns;
      }
      probe.cost_ns = cost;
    }
  }

  void Flush(bool wait) {
    reaper.Take(std::exchange(detached, {}));
    if (wait) reaper.Wait();
  }

  // Detaches those targets; the last one takes the links with it.
  void Release(Probe* probe, const std::vector<uint64_t>& over) {
    for (uint64_t target : over) {
      probe->targets.erase(target);
      const mc_target key = {
          .probe = static_cast<uint32_t>(probe->spec->id), .pad0 = 0, .id = target};
      bpf_map_delete_elem(targets.get(), &key);
    }
    if (probe->hooks.disarm) probe->hooks.disarm(over);
    if (probe->targets.empty() && !probe->hooks.arm) {
      probe->links.clear();
    }
  }
};

ProbeSet::ProbeSet() : impl_(std::make_unique<Impl>()) {}

ProbeSet::~ProbeSet() {
  for (Impl::Probe& probe : impl_->probes) probe.hooks = {};
  for (auto& [number, uprobe] : impl_->uprobes) impl_->detached.push_back(std::move(uprobe));
  impl_->uprobes.clear();
  impl_->Flush(true);
}

absl::StatusOr<std::unique_ptr<ProbeSet>> ProbeSet::Create(const Options& options) {
  const auto page = static_cast<uint32_t>(sysconf(_SC_PAGESIZE));
  if (options.ring_bytes < page || (options.ring_bytes & (options.ring_bytes - 1)) != 0)
    return absl::InvalidArgumentError("ring_bytes must be a power of two and at least a page");
  std::unique_ptr<ProbeSet> set(new ProbeSet);
  Impl& impl = *set->impl_;
  impl.options = options;
  libbpf_set_print(Silent);
  const auto chosen = [&](const char* object) {
    return options.objects.empty() || std::find(options.objects.begin(), options.objects.end(),
                                                object) != options.objects.end();
  };
  for (const std::string& name : options.objects) {
    if (BpfObjectBytes(name).empty())
      return absl::InvalidArgumentError(absl::StrCat("there is no BPF object ", name));
  }
  if (!options.load) impl.problem = "not loaded";
  if (impl.problem.empty() && impl.CreateSharedMaps()) {
    // By trial: whether the kernel takes such programs and links.
    impl.uprobe_multi = KernelHasUprobeMulti();
    if (impl.uprobe_multi && !impl.CalibrateOnce().has_value()) impl.uprobe_multi = false;
  }
  for (const ProbeSpec& spec : ProbeTable()) {
    if (!chosen(spec.object)) continue;
    if (impl.problem.empty() && !impl.objects.contains(spec.object))
      impl.objects.emplace(spec.object, impl.Load(spec.object));
    impl.probes.push_back({.spec = &spec});
    impl.Choose(&impl.probes.back());
  }
  impl.kernel_types.reset();
  return set;
}

std::vector<ProbeRow> ProbeSet::Rows() const {
  Impl& impl = *impl_;
  impl.UpdateCosts();
  std::vector<ProbeRow> rows;
  for (const Impl::Probe& probe : impl.probes) {
    const ProbeSpec& spec = *probe.spec;
    ProbeRow row;
    row.name = spec.name;
    row.question = spec.question;
    row.level = spec.level;
    row.armed = !probe.targets.empty();
    row.attached = probe.attached;
    row.problem = probe.problem;
    row.cost_ns = probe.cost_ns;
    if (probe.chosen >= 0) row.method = spec.alternatives[probe.chosen].method;
    if (row.method == ProbeMethod::kNone) {
      row.lost = spec.lost;
    } else {
      const char* by_alternative = spec.alternatives[probe.chosen].lost;
      row.lost = by_alternative;
      if (row.attached.empty() && spec.level == ProbeRunLevel::kAlways && !row.problem.empty())
        row.lost = spec.lost;
      else if (spec.blind[0] != '\0')
        row.lost = absl::StrCat(row.lost, row.lost.empty() ? "" : "; ", spec.blind);
    }
    const uint32_t key = spec.id;
    for (const auto& c : ReadPerCpuMap<mc_probe_counters>(impl.counters.get(), key)) {
      row.hits += c.hits;
      row.dropped += c.dropped_events + c.dropped_rows;
      row.failed_reads += c.failed_reads;
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

absl::Status ProbeSet::Complete() const {
  std::vector<std::string> missing;
  for (const ProbeRow& row : Rows()) {
    if (row.level == ProbeRunLevel::kAlways && row.method == ProbeMethod::kNone)
      missing.push_back(absl::StrCat(row.name, " (", row.problem, ")"));
  }
  if (missing.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("probes that cannot be attached: ", absl::StrJoin(missing, "; ")));
}

size_t ProbeSet::ReadEvents(
    const std::function<void(const mc_event&, std::span<const std::byte>)>& on_record,
    size_t max_records) {
  Impl& impl = *impl_;
  if (!impl.ring || max_records == 0) return 0;
  impl.on_record = &on_record;
  impl.records = 0;
  impl.max_records = max_records;
  ring_buffer__consume(impl.ring.get());
  impl.on_record = nullptr;
  return impl.records;
}

int ProbeSet::event_fd() const {
  return impl_->ring ? ring_buffer__epoll_fd(impl_->ring.get()) : -1;
}

uint64_t ProbeSet::malformed_events() const { return impl_->malformed; }

absl::Status ProbeSet::Arm(const std::string& name, std::span<const uint64_t> targets,
                           uint64_t until_ns) {
  Impl& impl = *impl_;
  Impl::Probe* probe = impl.Find(name);
  if (probe == nullptr) return absl::NotFoundError(absl::StrCat("there is no probe ", name));
  if (probe->spec->level != ProbeRunLevel::kDeep)
    return absl::InvalidArgumentError(absl::StrCat(name, " is not a deep probe"));
  if (probe->chosen < 0)
    return absl::FailedPreconditionError(absl::StrCat(name, ": ", probe->problem));
  std::vector<uint64_t> fresh;
  for (uint64_t target : targets) {
    const mc_target key = {
        .probe = static_cast<uint32_t>(probe->spec->id), .pad0 = 0, .id = target};
    if (bpf_map_update_elem(impl.targets.get(), &key, &until_ns, BPF_ANY) != 0)
      return absl::ResourceExhaustedError(absl::StrCat(name, ": ", ErrnoText(errno)));
    if (probe->targets.insert_or_assign(target, until_ns).second) fresh.push_back(target);
  }
  absl::Status status;
  if (probe->hooks.arm) {
    if (!fresh.empty()) status = probe->hooks.arm(fresh);
  } else if (probe->links.empty()) {
    const std::string why =
        impl.AttachAll(*probe->spec, probe->spec->alternatives[probe->chosen], &probe->links);
    if (!why.empty()) status = absl::FailedPreconditionError(absl::StrCat(name, ": ", why));
  }
  if (!status.ok()) impl.Release(probe, fresh);
  return status;
}

void ProbeSet::Disarm(const std::string& name) {
  Impl::Probe* probe = impl_->Find(name);
  if (probe == nullptr || probe->targets.empty()) return;
  std::vector<uint64_t> all;
  for (const auto& [target, until] : probe->targets) all.push_back(target);
  impl_->Release(probe, all);
}

void ProbeSet::Tick(uint64_t now_ns) {
  for (Impl::Probe& probe : impl_->probes) {
    std::vector<uint64_t> over;
    for (const auto& [target, until] : probe.targets)
      if (until <= now_ns) over.push_back(target);
    if (!over.empty()) impl_->Release(&probe, over);
  }
  impl_->Flush(false);
}

absl::Status ProbeSet::StartCostMeasurement() {
  Impl& impl = *impl_;
  if (!impl.problem.empty()) return absl::FailedPreconditionError(impl.problem);
  if (impl.stats.get() >= 0) return absl::OkStatus();
  if (!impl.trap_ns) impl.trap_ns = CalibrateUprobe();
  impl.stats_before.clear();
  impl.stats = Fd(bpf_enable_stats(BPF_STATS_RUN_TIME));
  if (impl.stats.get() < 0)
    return absl::PermissionDeniedError(absl::StrCat("BPF_ENABLE_STATS: ", ErrnoText(errno)));
  for (Impl::Probe& probe : impl.probes) {
    impl.ForChosenPrograms(probe, [&](const bpf_program* program) {
      impl.stats_before[program] = impl.ReadStats(program);
    });
  }
  return absl::OkStatus();
}

void ProbeSet::StopCostMeasurement() {
  impl_->UpdateCosts();
  impl_->stats = Fd();
}

bool ProbeSet::AttachesByPerfEvent() const {
  return impl_->problem.empty() && !impl_->uprobe_multi;
}

std::optional<double> ProbeSet::CalibrateUprobe() {
  if (!impl_->problem.empty()) return std::nullopt;
  return impl_->CalibrateOnce(5);
}

int ProbeSet::MapFd(const std::string& object, const std::string& map) const {
  const auto it = impl_->objects.find(object);
  if (it == impl_->objects.end() || !it->second.object) return -1;
  return bpf_object__find_map_fd_by_name(it->second.object.get(), map.c_str());
}

bool ProbeSet::ProgramLoaded(const std::string& object, const std::string& program,
                             std::string* why) const {
  return impl_->Program(object, program, why) != nullptr;
}

int ProbeSet::ProgramFd(const std::string& object, const std::string& program) const {
  const bpf_program* p = impl_->Program(object, program, nullptr);
  return p == nullptr ? -1 : bpf_program__fd(p);
}

absl::StatusOr<uint64_t> ProbeSet::AttachUprobe(const std::string& object,
                                                const std::string& program,
                                                const UprobeTarget& target) {
  std::string why;
  bpf_program* p = impl_->Program(object, program, &why);
  if (p == nullptr) return absl::FailedPreconditionError(why);
  // What was detached a moment ago must not count beside it.
  impl_->Flush(true);
  Uprobe uprobe = impl_->AttachTo(p, target);
  if (!uprobe.link && uprobe.multi.get() < 0) {
    const int error = errno;
    const std::string text =
        absl::StrCat("uprobe ", target.path, ":", absl::Hex(target.offset), ": ", ErrnoText(error));
    if (error == ENOENT || error == ESRCH) return absl::NotFoundError(text);
    if (error == EPERM || error == EACCES) return absl::PermissionDeniedError(text);
    return absl::InternalError(text);
  }
  const uint64_t number = impl_->next_uprobe++;
  impl_->uprobes.emplace(number, std::move(uprobe));
  return number;
}

void ProbeSet::DetachUprobe(uint64_t number) {
  const auto it = impl_->uprobes.find(number);
  if (it == impl_->uprobes.end()) return;
  impl_->detached.push_back(std::move(it->second));
  impl_->uprobes.erase(it);
}

void ProbeSet::FlushDetached(bool wait) { impl_->Flush(wait); }

size_t ProbeSet::uprobe_count() const { return impl_->uprobes.size(); }

void ProbeSet::SetRow(const std::string& name, std::string attached, std::string problem) {
  if (Impl::Probe* probe = impl_->Find(name); probe != nullptr && probe->chosen >= 0) {
    probe->attached = std::move(attached);
    probe->problem = std::move(problem);
  }
}

void ProbeSet::SetDeepHooks(const std::string& name, DeepHooks hooks) {
  if (Impl::Probe* probe = impl_->Find(name)) probe->hooks = std::move(hooks);
}

#else  // !MYCROFT_HAVE_BPF: every probe says why it is not there.

namespace {

std::string WhyBuiltWithout() {
  return absl::StrCat("built without probes: missing ", MissingForProbes());
}

}  // namespace

struct ProbeSet::Impl {
  std::vector<std::string> objects;
};

ProbeSet::ProbeSet() : impl_(std::make_unique<Impl>()) {}
ProbeSet::~ProbeSet() = default;

absl::StatusOr<std::unique_ptr<ProbeSet>> ProbeSet::Create(const Options& options) {
  std::unique_ptr<ProbeSet> set(new ProbeSet);
  set->impl_->objects = options.objects;
  return set;
}

std::vector<ProbeRow> ProbeSet::Rows() const {
  std::vector<ProbeRow> rows;
  for (const ProbeSpec& spec : ProbeTable()) {
    const std::vector<std::string>& objects = impl_->objects;
    if (!objects.empty() &&
        std::find(objects.begin(), objects.end(), spec.object) == objects.end()) {
      continue;
    }
    ProbeRow row;
    row.name = spec.name;
    row.question = spec.question;
    row.level = spec.level;
    row.problem = WhyBuiltWithout();
    row.lost = spec.lost;
    for (const ProbeAlternative& alternative : spec.alternatives) {
      if (alternative.method != ProbeMethod::kPoll) continue;
      row.method = ProbeMethod::kPoll;
      row.attached = absl::StrCat("poll ", alternative.target);
      row.lost = alternative.lost;
      break;
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

absl::Status ProbeSet::Complete() const { return absl::FailedPreconditionError(WhyBuiltWithout()); }
size_t ProbeSet::ReadEvents(const std::function<void(const mc_event&, std::span<const std::byte>)>&,
                            size_t) {
  return 0;
}
int ProbeSet::event_fd() const { return -1; }
uint64_t ProbeSet::malformed_events() const { return 0; }
absl::Status ProbeSet::Arm(const std::string&, std::span<const uint64_t>, uint64_t) {
  return absl::FailedPreconditionError(WhyBuiltWithout());
}
void ProbeSet::Disarm(const std::string&) {}
void ProbeSet::Tick(uint64_t) {}
absl::Status ProbeSet::StartCostMeasurement() {
  return absl::FailedPreconditionError(WhyBuiltWithout());
}
void ProbeSet::StopCostMeasurement() {}
std::optional<double> ProbeSet::CalibrateUprobe() { return std::nullopt; }
bool ProbeSet::AttachesByPerfEvent() const { return false; }
int ProbeSet::MapFd(const std::string&, const std::string&) const { return -1; }
int ProbeSet::ProgramFd(const std::string&, const std::string&) const { return -1; }
bool ProbeSet::ProgramLoaded(const std::string&, const std::string&, std::string* why) const {
  if (why != nullptr) *why = WhyBuiltWithout();
  return false;
}
absl::StatusOr<uint64_t> ProbeSet::AttachUprobe(const std::string&, const std::string&,
                                                const UprobeTarget&) {
  return absl::FailedPreconditionError(WhyBuiltWithout());
}
void ProbeSet::DetachUprobe(uint64_t) {}
void ProbeSet::FlushDetached(bool) {}
size_t ProbeSet::uprobe_count() const { return 0; }
void ProbeSet::SetRow(const std::string&, std::string, std::string) {}
void ProbeSet::SetDeepHooks(const std::string&, DeepHooks) {}

#endif

}  // namespace mycroft
