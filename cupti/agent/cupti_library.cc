// SPDX-License-Identifier: Apache-2.0
#include "cupti/agent/cupti_library.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include <initializer_list>

namespace mycroft::agent {
namespace {

constexpr const char* kNames[] = {"libcupti.so.13", "libcupti.so.12", "libcupti.so"};
constexpr const char* kFolders[] = {"lib64", "lib", "extras/CUPTI/lib64"};

void* Below(const char* root) {
  if (root == nullptr || root[0] != '/') return nullptr;
  for (const char* folder : kFolders) {
    for (const char* name : kNames) {
      char path[512];
      const int n = snprintf(path, sizeof(path), "%s/%s/%s", root, folder, name);
      if (n < 0 || n >= static_cast<int>(sizeof(path))) continue;
      if (void* handle = dlopen(path, RTLD_NOW | RTLD_LOCAL)) return handle;
    }
  }
  return nullptr;
}

void* Open() {
  const char* path = getenv("MYCROFT_CUPTI_LIBRARY");
  if (path != nullptr && path[0] != '\0') return dlopen(path, RTLD_NOW | RTLD_LOCAL);
  for (const char* name : kNames) {
    if (void* handle = dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD)) return handle;
  }
  for (const char* name : kNames) {
    if (void* handle = dlopen(name, RTLD_NOW | RTLD_LOCAL)) return handle;
  }
  for (const char* root : {static_cast<const char*>(getenv("CUDA_HOME")),
                           static_cast<const char*>(getenv("CUDA_PATH")), "/usr/local/cuda"}) {
    if (void* handle = Below(root)) return handle;
  }
  return nullptr;
}

}  // namespace

LoadResult LoadCupti(CuptiFunctions* functions, char* detail, unsigned detail_bytes) {
  detail[0] = '\0';
  void* handle = Open();
  if (handle == nullptr) return LoadResult::kNotFound;
  const char* missing = nullptr;
  CuptiFunctions found;
#define MYCROFT_RESOLVE_OPTIONAL(name) \
  found.name = reinterpret_cast<decltype(found.name)>(dlsym(handle, #name));
#define MYCROFT_RESOLVE(name)    \
  MYCROFT_RESOLVE_OPTIONAL(name) \
  if (found.name == nullptr && missing == nullptr) missing = #name;
  MYCROFT_CUPTI_FUNCTIONS(MYCROFT_RESOLVE, MYCROFT_RESOLVE_OPTIONAL)
#undef MYCROFT_RESOLVE
#undef MYCROFT_RESOLVE_OPTIONAL
  if (missing != nullptr) {
    snprintf(detail, detail_bytes, "%s", missing);
    return LoadResult::kMissingFunction;
  }
  Dl_info info;
  if (dladdr(reinterpret_cast<void*>(found.cuptiSubscribe), &info) != 0 &&
      info.dli_fname != nullptr) {
    snprintf(detail, detail_bytes, "%s", info.dli_fname);
  }
  *functions = found;
  return LoadResult::kLoaded;
}

}  // namespace mycroft::agent
