// SPDX-License-Identifier: Apache-2.0
#include "cupti/nccl/names.h"

#include <string.h>

namespace mycroft::nccl {
namespace {

template <class Enum>
struct Name {
  const char* text;
  Enum value;
};

template <class Enum, int N>
Enum Find(const Name<Enum> (&table)[N], const char* text, Enum unknown) {
  if (text == nullptr) return unknown;
  for (const auto& row : table) {
    if (strcmp(text, row.text) == 0) return row.value;
  }
  return unknown;
}

constexpr Name<mc_func> kFuncs[] = {
    {"AllReduce", MC_FUNC_ALLREDUCE},
    {"AllGather", MC_FUNC_ALLGATHER},
    {"ReduceScatter", MC_FUNC_REDUCESCATTER},
    {"Send", MC_FUNC_SEND},
    {"Recv", MC_FUNC_RECV},
    {"Broadcast", MC_FUNC_BROADCAST},
    {"Reduce", MC_FUNC_REDUCE},
    {"AlltoAll", MC_FUNC_ALLTOALL},
    {"AllToAll", MC_FUNC_ALLTOALL},
    {"Gather", MC_FUNC_GATHER},
    {"Scatter", MC_FUNC_SCATTER},
    {"SendRecv", MC_FUNC_SENDRECV},
};
constexpr Name<mc_algo> kAlgos[] = {
    {"RING", MC_ALGO_RING},
    {"TREE", MC_ALGO_TREE},
    {"NVLS", MC_ALGO_NVLS},
    {"NVLS_TREE", MC_ALGO_NVLS_TREE},
    {"PAT", MC_ALGO_PAT},
    {"COLLNET_DIRECT", MC_ALGO_COLLNET_DIRECT},
    {"COLLNET_CHAIN", MC_ALGO_COLLNET_CHAIN},
};
constexpr Name<mc_proto> kProtos[] = {
    {"SIMPLE", MC_PROTO_SIMPLE},
    {"LL128", MC_PROTO_LL128},
    {"LL", MC_PROTO_LL},
};
constexpr Name<mc_datatype> kTypes[] = {
    {"ncclFloat32", MC_TYPE_FLOAT32},       {"ncclBfloat16", MC_TYPE_BFLOAT16},
    {"ncclFloat16", MC_TYPE_FLOAT16},       {"ncclInt8", MC_TYPE_INT8},
    {"ncclUint8", MC_TYPE_UINT8},           {"ncclInt32", MC_TYPE_INT32},
    {"ncclUint32", MC_TYPE_UINT32},         {"ncclInt64", MC_TYPE_INT64},
    {"ncclUint64", MC_TYPE_UINT64},         {"ncclFloat64", MC_TYPE_FLOAT64},
    {"ncclFloat8e4m3", MC_TYPE_FLOAT8E4M3}, {"ncclFloat8e5m2", MC_TYPE_FLOAT8E5M2},
};

}  // namespace

mc_func ParseFunc(const char* text) { return Find(kFuncs, text, MC_FUNC_UNKNOWN); }
mc_algo ParseAlgo(const char* text) { return Find(kAlgos, text, MC_ALGO_UNKNOWN); }
mc_proto ParseProto(const char* text) { return Find(kProtos, text, MC_PROTO_UNKNOWN); }
mc_datatype ParseDatatype(const char* text) { return Find(kTypes, text, MC_TYPE_UNKNOWN); }

}  // namespace mycroft::nccl
