// SPDX-License-Identifier: Apache-2.0
#include "cupti/agent/nccl_kernels.h"

#include <string.h>

namespace mycroft::agent {
namespace {

constexpr const char* kBuiltIn[] = {"ncclDevKernel*", "ncclKernel*", "ncclSymDevKernel*",
                                    "ncclSymk*"};

bool Letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool Digit(char c) { return c >= '0' && c <= '9'; }

// A mangled name has the length of each identifier before it, so a digit there is a
// beginning; in a plain name no identifier is preceded by a digit either. The prefix _Z
// of a mangled name ends with a letter and is followed by a digit.
bool Begins(const char* name, const char* at) { return at == name || !Letter(at[-1]); }

}  // namespace

void NcclKernels::Add(const char* text, uint32_t length) {
  while (length > 0 && (*text == ' ' || *text == '\t')) ++text, --length;
  while (length > 0 && (text[length - 1] == ' ' || text[length - 1] == '\t')) --length;
  const bool open = length > 0 && text[length - 1] == '*';
  if (open) --length;
  if (length == 0 || count_ == kMax || used_ + length > sizeof(text_)) return;
  memcpy(text_ + used_, text, length);
  patterns_[count_++] = {static_cast<uint16_t>(used_), static_cast<uint16_t>(length), open};
  used_ += length;
}

void NcclKernels::Init(const char* more) {
  used_ = count_ = 0;
  for (const char* pattern : kBuiltIn) Add(pattern, static_cast<uint32_t>(strlen(pattern)));
  while (more != nullptr && *more != '\0') {
    const char* end = strchrnul(more, ',');
    Add(more, static_cast<uint32_t>(end - more));
    more = *end == ',' ? end + 1 : nullptr;
  }
}

bool NcclKernels::Match(const char* name) const {
  if (name == nullptr) return false;
  for (const char* at = name; *at != '\0'; ++at) {
    if (!Letter(*at) || !Begins(name, at)) continue;
    for (uint32_t i = 0; i < count_; ++i) {
      const Pattern& p = patterns_[i];
      if (strncmp(at, text_ + p.at, p.length) != 0) continue;
      const char after = at[p.length];
      // Plain: the identifier ends. Mangled: the types of the parameters follow it; the
      // length before it would tell, and is not worth reading.
      if (p.open || (!Letter(after) && !Digit(after)) || (at != name && Digit(at[-1]))) return true;
    }
  }
  return false;
}

}  // namespace mycroft::agent
