// SPDX-License-Identifier: Apache-2.0
//
// NCCL's static strings to the numbers of the board. NULL and unknown text give
// the UNKNOWN value. Thread-safe, no allocation.
#ifndef MYCROFT_CUPTI_NCCL_NAMES_H_
#define MYCROFT_CUPTI_NCCL_NAMES_H_

#include "bpf/abi/board.h"

namespace mycroft::nccl {

mc_func ParseFunc(const char* text);
mc_algo ParseAlgo(const char* text);
mc_proto ParseProto(const char* text);
mc_datatype ParseDatatype(const char* text);

}  // namespace mycroft::nccl

#endif  // MYCROFT_CUPTI_NCCL_NAMES_H_
