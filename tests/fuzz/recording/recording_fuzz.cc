// SPDX-License-Identifier: Apache-2.0
//
// Any bytes as a recording: opened or refused with a reason, read to its end.
// The file lives in memory.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <string>

#include "userspace/store/recording.h"

extern "C" int MycroftRecordingFuzz(const uint8_t* data, size_t size) {
  const int fd = memfd_create("recording", MFD_CLOEXEC);
  if (fd < 0 || write(fd, data, size) != static_cast<ssize_t>(size)) std::abort();
  {
    auto reader = mycroft::RecordingReader::Open("/proc/self/fd/" + std::to_string(fd));
    if (!reader.ok()) {
      if (reader.status().message().empty()) std::abort();
    } else {
      size_t snapshots = 0;
      while (true) {
        const auto next = (*reader)->Next();
        if (!next.ok() || !*next) break;
        ++snapshots;
      }
      (void)(*reader)->ReadIncidents();
      (*reader)->Rewind();
      if (snapshots > 0 && !(*reader)->Next().ok()) std::abort();
      if ((*reader)->info().truncated && (*reader)->info().problem.empty()) std::abort();
    }
  }
  close(fd);
  return 0;
}

#ifdef MYCROFT_FUZZER
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return MycroftRecordingFuzz(data, size);
}
#endif
