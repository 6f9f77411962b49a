// SPDX-License-Identifier: Apache-2.0
//
// One rank of a training-like job; every rank is a process, all on device 0. A step fills a
// buffer, computes, AllReduces, checks the sum on the GPU and waits for an event. All ranks
// end after the same step: element 0 of the sum counts those that want to. See usage below.
//
// NCCL is opened at run time, so that the program runs with the library that is to be tested.
#include <dlfcn.h>
#include <nccl.h>

#include <algorithm>
#include <string>
#include <vector>

#include "common.cuh"

constexpr int kWarmUpSteps = 20;  // not measured

extern "C" __global__ void mycroft_test_fill(float* data, size_t n, int rank, int step, int stop) {
  const size_t stride = static_cast<size_t>(gridDim.x) * blockDim.x;
  for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) {
    data[i] = i == 0 ? static_cast<float>(stop) : static_cast<float>(i % 13 + step % 64 + rank);
  }
}

extern "C" __global__ void mycroft_test_compute(uint64_t ns) { SpinNs(ns, nullptr); }
extern "C" __global__ void mycroft_test_blocked(uint64_t ns) { SpinNs(ns, nullptr); }

struct Sum {
  unsigned wrong;
  float stop;
};

// Small integers: the sum is exact in any order.
extern "C" __global__ void mycroft_test_check(const float* data, size_t n, int ranks, int step,
                                              Sum* sum) {
  const size_t stride = static_cast<size_t>(gridDim.x) * blockDim.x;
  const float of_ranks = static_cast<float>(ranks * (ranks - 1) / 2);
  for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) {
    if (i == 0) {
      sum->stop = data[0];
    } else if (data[i] != static_cast<float>(i % 13 + step % 64) * ranks + of_ranks) {
      atomicAdd(&sum->wrong, 1);
    }
  }
}

struct Nccl {
  decltype(&ncclGetVersion) GetVersion;
  decltype(&ncclGetUniqueId) GetUniqueId;
  decltype(&ncclCommInitRank) CommInitRank;
  decltype(&ncclAllReduce) AllReduce;
  decltype(&ncclCommDestroy) CommDestroy;
  decltype(&ncclGetErrorString) GetErrorString;
};

#define NCCL_OK(call)                                                               \
  do {                                                                              \
    const ncclResult_t result_ = (call);                                            \
    if (result_ != ncclSuccess) Die("%s: %s", #call, nccl.GetErrorString(result_)); \
  } while (0)

Nccl LoadNccl(const std::string& path) {
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) Die("%s", dlerror());
  Nccl nccl = {};
  const auto find = [&](auto* function, const char* name) {
    *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(dlsym(handle, name));
    if (*function == nullptr) Die("%s lacks %s", path.c_str(), name);
  };
  find(&nccl.GetVersion, "ncclGetVersion");
  find(&nccl.GetUniqueId, "ncclGetUniqueId");
  find(&nccl.CommInitRank, "ncclCommInitRank");
  find(&nccl.AllReduce, "ncclAllReduce");
  find(&nccl.CommDestroy, "ncclCommDestroy");
  find(&nccl.GetErrorString, "ncclGetErrorString");
  return nccl;
}

// Rank 0 leaves the id in a file, whole or not at all.
ncclUniqueId HandOver(const Nccl& nccl, int rank, const std::string& path) {
  ncclUniqueId id;
  if (rank == 0) {
    NCCL_OK(nccl.GetUniqueId(&id));
    FILE* file = fopen((path + ".part").c_str(), "wb");
    if (file == nullptr || fwrite(&id, sizeof id, 1, file) != 1 || fclose(file) != 0 ||
        rename((path + ".part").c_str(), path.c_str()) != 0) {
      Die("cannot write %s", path.c_str());
    }
    return id;
  }
  for (const uint64_t begin = NowNs(); NowNs() - begin < 30000000000u; SleepNs(10000000)) {
    FILE* file = fopen(path.c_str(), "rb");
    if (file == nullptr) continue;
    const bool whole = fread(&id, sizeof id, 1, file) == 1;
    fclose(file);
    if (whole) return id;
  }
  Die("no unique id in %s after 30 s: rank 0 did not start", path.c_str());
}

struct Options {
  int rank = -1, ranks = 2;
  std::string id, truth, nccl = "libnccl.so.2", fault;
  size_t floats = 1 << 19;
  int kernels = 1;  // of computation, per step
  uint64_t compute_ns = 10000000, amount_ns = 200000000, at_ns = 3000000000, for_ns = 5000000000;
  uint64_t seconds_ns = UINT64_MAX;
  unsigned most_seconds = 60;
};

Options Parse(int argc, char** argv) {
  Options o;
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i];
    if (i + 1 == argc) Die("%s needs a value", argv[i]);
    const char* value = argv[i + 1];
    const auto ns = [&](double unit) { return static_cast<uint64_t>(atof(value) * unit); };
    if (name == "--rank")
      o.rank = atoi(value);
    else if (name == "--ranks")
      o.ranks = atoi(value);
    else if (name == "--id")
      o.id = value;
    else if (name == "--truth")
      o.truth = value;
    else if (name == "--nccl")
      o.nccl = value;
    else if (name == "--fault")
      o.fault = value;
    else if (name == "--at")
      o.at_ns = ns(1e9);
    else if (name == "--for")
      o.for_ns = ns(1e9);
    else if (name == "--amount-ms")
      o.amount_ns = ns(1e6);
    else if (name == "--compute-ms")
      o.compute_ns = ns(1e6);
    else if (name == "--kernels")
      o.kernels = std::max(1, atoi(value));
    else if (name == "--floats")
      o.floats = strtoull(value, nullptr, 10);
    else if (name == "--seconds")
      o.seconds_ns = ns(1e9);
    else if (name == "--most-seconds")
      o.most_seconds = static_cast<unsigned>(atoi(value));
    else
      Die("unknown option %s", argv[i]);
  }
  if (o.rank < 0 || o.id.empty() || o.truth.empty() ||
      (!o.fault.empty() && o.fault != "late" && o.fault != "slow" && o.fault != "blocked")) {
    Die("usage: ranks --rank R --id FILE --truth FILE [--ranks 2] [--nccl LIBRARY] [--floats N]\n"
        "  [--compute-ms MS] [--kernels N] [--seconds S] [--most-seconds S]\n"
        "  [--fault late|slow|blocked] [--at S] [--for S] [--amount-ms MS]\n"
        "late: the host sleeps before each collective; slow: a longer kernel before it;\n"
        "blocked: one kernel before it that lasts as long as the fault");
  }
  return o;
}

int main(int argc, char** argv) {
  const Options o = Parse(argc, argv);
  BoundMe(o.most_seconds);
  Truth truth(o.truth.c_str());
  const Nccl nccl = LoadNccl(o.nccl);
  int version = 0, runtime = 0, driver = 0;
  NCCL_OK(nccl.GetVersion(&version));
  CUDA_OK(cudaSetDevice(0));
  CUDA_OK(cudaRuntimeGetVersion(&runtime));
  CUDA_OK(cudaDriverGetVersion(&driver));
  cudaStream_t stream;
  cudaEvent_t event;
  float *data, *result;
  Sum *sum, *sum_host;
  CUDA_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  CUDA_OK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  CUDA_OK(cudaMalloc(&data, o.floats * sizeof(float)));
  CUDA_OK(cudaMalloc(&result, o.floats * sizeof(float)));
  CUDA_OK(cudaMalloc(&sum, sizeof(Sum)));
  CUDA_OK(cudaMallocHost(&sum_host, sizeof(Sum)));
  const ncclUniqueId id = HandOver(nccl, o.rank, o.id);
  ncclComm_t comm;
  NCCL_OK(nccl.CommInitRank(&comm, o.ranks, id, o.rank));

  std::vector<uint64_t> times;
  times.reserve(1 << 20);
  unsigned long long wrong = 0;
  uint64_t begin = NowNs();
  bool fault_begun = false, fault_over = false;
  for (int step = 0;; ++step) {
    const uint64_t now = NowNs();
    if (step == 1) {
      // The first step sets up the connections. The others count from here.
      begin = now;
      truth.Say("ready", now,
                ", \"pid\": %d, \"nccl\": %d, \"cuda_runtime\": %d, \"cuda_driver\": %d", getpid(),
                version, runtime, driver);
    }
    const uint64_t since = step == 0 ? 0 : now - begin;
    const bool stop = step > 0 && (g_stop || since >= o.seconds_ns);
    bool faulty = !o.fault.empty() && !fault_over && step > 0 && since >= o.at_ns;
    if (faulty && fault_begun && (o.fault == "blocked" || since >= o.at_ns + o.for_ns)) {
      fault_over = true;
      faulty = false;
      truth.Say("fault_end", now);
    }
    if (faulty && !fault_begun) {
      fault_begun = true;
      truth.Say("fault", now);
    }
    CUDA_OK(cudaMemsetAsync(sum, 0, sizeof(Sum), stream));
    mycroft_test_fill<<<32, 256, 0, stream>>>(data, o.floats, o.rank, step, stop ? 1 : 0);
    for (int k = 0; k < o.kernels; ++k) {
      mycroft_test_compute<<<1, 32, 0, stream>>>(o.compute_ns / static_cast<unsigned>(o.kernels));
    }
    if (faulty && o.fault == "late") SleepNs(o.amount_ns);
    if (faulty && o.fault == "slow") mycroft_test_compute<<<1, 32, 0, stream>>>(o.amount_ns);
    if (faulty && o.fault == "blocked") mycroft_test_blocked<<<1, 1, 0, stream>>>(o.for_ns);
    CUDA_OK(cudaGetLastError());
    NCCL_OK(nccl.AllReduce(data, result, o.floats, ncclFloat, ncclSum, comm, stream));
    mycroft_test_check<<<32, 256, 0, stream>>>(result, o.floats, o.ranks, step, sum);
    CUDA_OK(cudaGetLastError());
    CUDA_OK(cudaMemcpyAsync(sum_host, sum, sizeof(Sum), cudaMemcpyDeviceToHost, stream));
    CUDA_OK(cudaEventRecord(event, stream));
    CUDA_OK(cudaEventSynchronize(event));
    if (step >= kWarmUpSteps && times.size() < times.capacity()) times.push_back(NowNs() - now);
    wrong += sum_host->wrong;
    if (sum_host->stop > 0) {
      const size_t count = times.size();
      std::sort(times.begin(), times.end());
      const auto at = [&](double part) {
        return static_cast<unsigned long long>(
            count == 0 ? 0 : times[static_cast<size_t>(part * static_cast<double>(count - 1))]);
      };
      truth.Say("done", NowNs(),
                ", \"steps\": %d, \"wrong\": %llu, \"measured\": %zu, \"median_ns\": %llu, "
                "\"p10_ns\": %llu, \"p90_ns\": %llu",
                step + 1, wrong, count, at(0.5), at(0.1), at(0.9));
      break;
    }
  }
  NCCL_OK(nccl.CommDestroy(comm));
  if (wrong != 0) Die("%llu elements of the sums were wrong", wrong);
  return 0;
}
