// SPDX-License-Identifier: Apache-2.0
//
// A GPU board to a GpuSnapshot. Nothing in a board is trusted: enumerations out of
// range become unknown, indexes out of range are dropped, counters that contradict each
// other are clamped, text is made printable.
#ifndef MYCROFT_USERSPACE_DECODE_GPU_BOARD_DECODE_H_
#define MYCROFT_USERSPACE_DECODE_GPU_BOARD_DECODE_H_

#include <cstdint>
#include <string>

#include "userspace/decode/gpu_snapshot.h"
#include "userspace/source/gpu_board_map.h"

namespace mycroft {

// Reads all of it. `next_event_id`: of the snapshot before, for the events since then (1:
// all that are there). `now_ns`: CLOCK_MONOTONIC.
GpuSnapshot ReadGpuBoard(const GpuBoardMap& board, uint64_t next_event_id, uint64_t now_ns);

// What it is made of; pure functions.
GpuDeviceSample DecodeGpuDevice(const mc_gpu_device& line);
GpuContextSample DecodeGpuContext(uint32_t index, const mc_gpu_context& line);
GpuNameSample DecodeGpuName(uint32_t index, const mc_gpu_name& line);
GpuThreadSample DecodeGpuThread(const mc_gpu_thread& line);
GpuEventSample DecodeGpuEvent(const mc_gpu_event& line);
// Without `pending` and what it rests on beyond the line itself: ReadGpuBoard adds what
// waiting threads prove, and the names of kernels.
GpuStreamSample DecodeGpuStream(uint32_t index, const mc_gpu_stream& line);

// In words, for the user: why nothing (or less) is seen; empty: all is seen.
std::string DescribeGpuState(const GpuSnapshot& snapshot);

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_DECODE_GPU_BOARD_DECODE_H_
