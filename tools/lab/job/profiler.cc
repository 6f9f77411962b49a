// SPDX-License-Identifier: Apache-2.0
#include "tools/lab/job/profiler.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include <cstdlib>
#include <vector>

namespace mycroft::lab {
namespace {

using nccl::EventDescrV4;
using nccl::EventDescrV5;
using nccl::EventDescrV6;

// Same size and same offsets: v6 only adds members to the union.
static_assert(sizeof(EventDescrV5) == sizeof(EventDescrV6));

void Log(nccl::LogLevel level, unsigned long, const char*, int, const char* format, ...) {
  if (level == nccl::kLogNone) return;
  static const bool info = [] {
    const char* debug = getenv("NCCL_DEBUG");
    return debug != nullptr && (strcasecmp(debug, "INFO") == 0 || strcasecmp(debug, "TRACE") == 0);
  }();
  if (level > nccl::kLogWarn && !info) return;
  char line[1024];
  va_list args;
  va_start(args, format);
  vsnprintf(line, sizeof(line), format, args);
  va_end(args);
  fprintf(stderr, "[%d] plugin: %s\n", getpid(), line);
}

bool EndsWithSo(const std::string& name) {
  return name.size() > 3 && name.compare(name.size() - 3, 3, ".so") == 0;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Profiler>> Profiler::Load(const char* value, int api, bool required,
                                                         std::string* note) {
  auto profiler = std::unique_ptr<Profiler>(new Profiler);
  note->clear();
  const char* env = getenv("NCCL_PROFILER_PLUGIN");
  const bool from_env = value == nullptr && env != nullptr && env[0] != '\0';
  if (value == nullptr && from_env) value = env;
  if (value != nullptr && strcasecmp(value, "none") == 0) {
    *note = "no profiler plugin (none)";
    return profiler;
  }
  void* library = nullptr;
  std::string errors;
  auto open = [&](const char* path) {
    if (library != nullptr) return;
    library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) errors += std::string(errors.empty() ? "" : "; ") + dlerror();
  };
  if (value == nullptr) {
    open("libnccl-profiler.so");
    if (library == nullptr) {
      *note = "no profiler plugin (NCCL_PROFILER_PLUGIN is not set)";
      return profiler;
    }
  } else if (strcmp(value, "STATIC_PLUGIN") == 0) {
    open(nullptr);
  } else {
    open(value);
    const std::string name = value;
    const bool is_library = name.rfind("lib", 0) == 0 && EndsWithSo(name);
    if (name.find('/') == std::string::npos && !is_library) {
      open(("libnccl-profiler-" + name + ".so").c_str());
    }
  }
  if (library == nullptr) {
    *note = "profiler plugin \"" + std::string(value) + "\" cannot be loaded: " + errors;
    if (required) return absl::NotFoundError(*note);
    return profiler;
  }
  profiler->library_ = library;
  for (int version : {6, 5, 4}) {
    if (api != 0 && api != version) continue;
    const char* symbol = version == 6   ? nccl::kSymbolV6
                         : version == 5 ? nccl::kSymbolV5
                                        : nccl::kSymbolV4;
    const void* table = dlsym(library, symbol);
    if (table == nullptr) continue;
    profiler->api_ = version;
    if (version == 6) profiler->v6_ = static_cast<const nccl::ProfilerV6*>(table);
    if (version == 5) profiler->v5_ = static_cast<const nccl::ProfilerV5*>(table);
    if (version == 4) profiler->v4_ = static_cast<const nccl::ProfilerV4*>(table);
    break;
  }
  if (profiler->api_ == 0) {
    *note = std::string(value == nullptr ? "libnccl-profiler.so" : value) + " exports no " +
            (api == 0 ? "ncclProfiler_v6, _v5 or _v4" : "ncclProfiler_v" + std::to_string(api));
    if (required) return absl::NotFoundError(*note);
    return profiler;
  }
  *note = std::string("profiler plugin ") + profiler->name() + ", API v" +
          std::to_string(profiler->api_);
  return profiler;
}

Profiler::~Profiler() {
  if (library_ != nullptr) dlclose(library_);
}

const char* Profiler::name() const {
  const char* name = nullptr;
  if (v6_ != nullptr) name = v6_->name;
  if (v5_ != nullptr) name = v5_->name;
  if (v4_ != nullptr) name = v4_->name;
  return name == nullptr ? "?" : name;
}

void* Profiler::Init(uint64_t comm_id, const std::string& comm_name, int nnodes, int nranks,
                     int rank) {
  if (!active()) return nullptr;
  void* context = nullptr;
  nccl::Result result = nccl::kSuccess;
  // The pointer to the name is NCCL's and good during the call only.
  std::vector<char> name(comm_name.begin(), comm_name.end());
  name.push_back('\0');
  const char* text = comm_name.empty() ? nullptr : name.data();
  if (v6_ != nullptr) {
    result = v6_->init(&context, comm_id, &mask_, text, nnodes, nranks, rank, &Log);
  } else if (v5_ != nullptr) {
    result = v5_->init(&context, comm_id, &mask_, text, nnodes, nranks, rank, &Log);
  } else {
    result = v4_->init(&context, &mask_, text, comm_id, nnodes, nranks, rank, &Log);
  }
  if (result != nccl::kSuccess) {
    fprintf(stderr, "[%d] profiler init failed with error %d, continue without profiler\n",
            getpid(), result);
    return nullptr;
  }
  return context;
}

void Profiler::Finalize(void* context) {
  if (v6_ != nullptr) v6_->finalize(context);
  if (v5_ != nullptr) v5_->finalize(context);
  if (v4_ != nullptr) v4_->finalize(context);
}

void Profiler::Start(void* context, void** handle, EventDescrV6* descr) {
  if (v6_ != nullptr) {
    v6_->start_event(context, handle, descr);
    return;
  }
  if (v5_ != nullptr) {
    EventDescrV5 v5;
    memcpy(static_cast<void*>(&v5), descr, sizeof(v5));
    v5_->start_event(context, handle, &v5);
    return;
  }
  if (v4_ == nullptr) return;
  EventDescrV4 v4;
  memset(static_cast<void*>(&v4), 0, sizeof(v4));
  v4.type = static_cast<uint8_t>(descr->type);
  v4.parent = descr->parent;
  v4.rank = descr->rank;
  switch (descr->type) {
    case nccl::kGroup:
    case nccl::kProxyCtrl:
      break;
    case nccl::kColl:
      v4.coll = {descr->coll.seq_number, descr->coll.func,     descr->coll.send_buff,
                 descr->coll.recv_buff,  descr->coll.count,    descr->coll.root,
                 descr->coll.datatype,   descr->coll.channels, descr->coll.warps,
                 descr->coll.algo,       descr->coll.proto};
      break;
    case nccl::kP2p:
      v4.p2p = {descr->p2p.func,  descr->p2p.buff, descr->p2p.datatype,
                descr->p2p.count, descr->p2p.peer, descr->p2p.channels};
      break;
    case nccl::kProxyOp:
      v4.proxy_op = descr->proxy_op;
      break;
    case nccl::kProxyStep:
      v4.proxy_step = descr->proxy_step;
      break;
    case nccl::kKernelCh:
      v4.kernel_ch = descr->kernel_ch;
      break;
    default:
      return;  // v4 knows no such event
  }
  v4_->start_event(context, handle, &v4);
}

void Profiler::Stop(void* handle) {
  if (v6_ != nullptr) v6_->stop_event(handle);
  if (v5_ != nullptr) v5_->stop_event(handle);
  if (v4_ != nullptr) v4_->stop_event(handle);
}

void Profiler::State(void* handle, nccl::EventState state, nccl::StateArgs* args) {
  if (v6_ != nullptr) v6_->record_event_state(handle, state, args);
  if (v5_ != nullptr) v5_->record_event_state(handle, state, args);
  if (v4_ != nullptr) v4_->record_event_state(handle, state, args);
}

}  // namespace mycroft::lab
