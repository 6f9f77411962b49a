// SPDX-License-Identifier: Apache-2.0
//
// In the place of verbs_ibv.cc where libibverbs was not there when this was built.
#include "tools/lab/job/verbs.h"

namespace mycroft::lab {
namespace {

absl::Status Missing() {
  return absl::UnimplementedError(
      "this mycroft-lab was built without libibverbs: no verbs transport (install "
      "libibverbs-dev, configure and build again)");
}

}  // namespace

absl::StatusOr<std::vector<std::string>> FindVerbsDevices(const std::vector<std::string>&) {
  return Missing();
}

absl::StatusOr<std::unique_ptr<VerbsDevice>> OpenVerbsDevice(const std::string&, AsyncNote) {
  return Missing();
}

}  // namespace mycroft::lab
