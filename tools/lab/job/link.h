// SPDX-License-Identifier: Apache-2.0
//
// One direction of one channel to one peer, with the calls of NCCL's net plugins:
// isend and irecv post a transfer, test asks whether the oldest one is finished.
// Nothing blocks. Two kinds: TcpLink (net.h) and VerbsLink (verbs_link.h).
//
// Threads: a link is used by the progress thread of its communicator only, once it
// is connected. Buffers must live, and stay as they are, until their transfer is
// finished.
#ifndef MYCROFT_TOOLS_LAB_JOB_LINK_H_
#define MYCROFT_TOOLS_LAB_JOB_LINK_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "tools/lab/job/clock.h"

namespace mycroft::lab {

class NetLink {
 public:
  NetLink() = default;
  virtual ~NetLink() = default;
  NetLink(const NetLink&) = delete;
  NetLink& operator=(const NetLink&) = delete;

  // False: not now, ask again. The receiver has not granted a buffer yet (verbs; a
  // socket never refuses). A link that failed always refuses.
  virtual bool Isend(const char* data, size_t size) = 0;
  // At most kMaxInFlight at a time; more is an error of the link.
  virtual void Irecv(char* buffer, size_t capacity) = 0;
  static constexpr size_t kMaxInFlight = 32;
  // True when the oldest transfer is finished; it is then forgotten and *size is
  // its length. After an error it is never true again.
  virtual bool Test(size_t* size) = 0;

  // Makes what arrived at `data` visible to the GPU (NCCL's iflush), and asks whether
  // the oldest such flush is finished. A link without flushes is always finished.
  virtual void Iflush(const char* data) { static_cast<void>(data); }
  virtual bool TestFlush() { return true; }

  // What to wait for at fd(): POLLIN, POLLOUT or 0; *retry_ns: look again then even if
  // nothing came (kNever: no need).
  virtual short Events(uint64_t* retry_ns) const = 0;
  virtual int fd() const = 0;
  // Before and after poll(). Arm() is false when something came meanwhile: do not sleep.
  virtual bool Arm() { return true; }
  virtual void Disarm() {}

  // An orderly end: say that everything is done, then wait for the peer to say so, so that
  // neither takes its memory away while the other still waits for an acknowledgement.
  virtual void BeginClose() {}
  virtual void EndClose(uint64_t deadline_ns) { static_cast<void>(deadline_ns); }

  bool failed() const { return !error_.empty(); }
  const std::string& error() const { return error_; }  // the first; empty: none

 protected:
  void Fail(const std::string& what) {
    if (error_.empty()) error_ = what;
  }

 private:
  std::string error_;
};

}  // namespace mycroft::lab

#endif  // MYCROFT_TOOLS_LAB_JOB_LINK_H_
