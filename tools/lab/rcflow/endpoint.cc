// SPDX-License-Identifier: Apache-2.0
#include "tools/lab/rcflow/endpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace mycroft::lab {
namespace {

constexpr uint8_t kPort = 1;
constexpr uint32_t kFirstPsn = 0;

absl::Status ErrnoStatus(const std::string& what, int error) {
  return absl::ErrnoToStatus(error, what);
}

absl::StatusOr<ibv_mtu> ToMtu(uint32_t bytes) {
  switch (bytes) {
    case 256:
      return IBV_MTU_256;
    case 512:
      return IBV_MTU_512;
    case 1024:
      return IBV_MTU_1024;
    case 2048:
      return IBV_MTU_2048;
    case 4096:
      return IBV_MTU_4096;
  }
  return absl::InvalidArgumentError(absl::StrCat("no path MTU of ", bytes, " bytes"));
}

bool IsIpv4(const ibv_gid& gid) {
  static constexpr uint8_t kPrefix[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  return memcmp(gid.raw, kPrefix, sizeof(kPrefix)) == 0;
}

}  // namespace

const char* ToString(ibv_qp_state state) {
  static const char* kNames[] = {"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"};
  return state <= IBV_QPS_ERR ? kNames[state] : "unknown";
}

absl::StatusOr<Endpoint> Endpoint::Open(const std::string& device, size_t bytes, uint32_t depth,
                                        std::optional<uint32_t> gid_index) {
  Endpoint e;
  int count = 0;
  std::unique_ptr<ibv_device*, VerbsCloser<ibv_free_device_list>> list(ibv_get_device_list(&count));
  if (list == nullptr) return ErrnoStatus("cannot list RDMA devices", errno);
  std::string names;
  for (int i = 0; i < count; ++i) {
    const char* name = ibv_get_device_name(list.get()[i]);
    absl::StrAppend(&names, names.empty() ? "" : " ", name);
    if (device == name) e.context_.reset(ibv_open_device(list.get()[i]));
    if (device == name && e.context_ == nullptr) {
      return ErrnoStatus("cannot open " + device, errno);
    }
  }
  if (e.context_ == nullptr) {
    return absl::NotFoundError(absl::StrCat("no RDMA device ", device, "; there ",
                                            names.empty() ? "are none" : "is " + names));
  }
  // Events are read when there is time, never waited for.
  const int flags = fcntl(e.context_->async_fd, F_GETFL);
  if (fcntl(e.context_->async_fd, F_SETFL, flags | O_NONBLOCK) != 0) {
    return ErrnoStatus("async events of " + device, errno);
  }

  ibv_port_attr port{};
  if (int error = ibv_query_port(e.context_.get(), kPort, &port); error != 0) {
    return ErrnoStatus(absl::StrCat(device, " port 1"), error);
  }
  e.lid_ = port.lid;
  bool found = gid_index.has_value();
  if (found) e.gid_index_ = *gid_index;
  for (int i = 0; i < port.gid_tbl_len && !found; ++i) {
    ibv_gid_entry entry{};
    if (ibv_query_gid_ex(e.context_.get(), kPort, i, &entry, 0) != 0) continue;
    if (entry.gid_type != IBV_GID_TYPE_ROCE_V2 || !IsIpv4(entry.gid)) continue;
    e.gid_index_ = i;
    found = true;
  }
  if (!found) return absl::NotFoundError(device + " has no RoCE v2 address of IPv4");
  if (ibv_query_gid(e.context_.get(), kPort, e.gid_index_, &e.gid_) != 0) {
    return ErrnoStatus(absl::StrCat(device, ": GID index ", e.gid_index_), errno);
  }

  e.domain_.reset(ibv_alloc_pd(e.context_.get()));
  if (e.domain_ == nullptr) return ErrnoStatus("protection domain of " + device, errno);
  e.completions_.reset(
      ibv_create_cq(e.context_.get(), static_cast<int>(2 * depth), nullptr, nullptr, 0));
  if (e.completions_ == nullptr) return ErrnoStatus("completion queue of " + device, errno);
  e.buffer_.reset(static_cast<uint8_t*>(std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096)));
  if (e.buffer_ == nullptr) return absl::ResourceExhaustedError("no memory for the buffer");
  memset(e.buffer_.get(), 0, bytes);
  e.region_.reset(
      ibv_reg_mr(e.domain_.get(), e.buffer_.get(), bytes,
                 IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ));
  if (e.region_ == nullptr) {
    return ErrnoStatus(absl::StrCat("registering ", bytes, " bytes with ", device), errno);
  }
  ibv_qp_init_attr attr{};
  attr.send_cq = attr.recv_cq = e.completions_.get();
  attr.cap = {depth, depth, 1, 1, 0};
  attr.qp_type = IBV_QPT_RC;
  attr.sq_sig_all = 1;
  e.qp_.reset(ibv_create_qp(e.domain_.get(), &attr));
  if (e.qp_ == nullptr) return ErrnoStatus("queue pair of " + device, errno);
  return e;
}

absl::Status Endpoint::Connect(const Endpoint& remote, const ConnectionSettings& settings) {
  auto mtu = ToMtu(settings.path_mtu);
  if (!mtu.ok()) return mtu.status();

  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_INIT;
  attr.port_num = kPort;
  attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
  int error = ibv_modify_qp(qp_.get(), &attr,
                            IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
  if (error != 0) return ErrnoStatus("queue pair to INIT", error);

  attr = {};
  attr.qp_state = IBV_QPS_RTR;
  attr.path_mtu = *mtu;
  attr.dest_qp_num = remote.number();
  attr.rq_psn = kFirstPsn;
  attr.max_dest_rd_atomic = 1;
  attr.min_rnr_timer = settings.min_rnr_timer;
  attr.ah_attr.is_global = 1;
  attr.ah_attr.grh.dgid = remote.gid_;
  attr.ah_attr.grh.sgid_index = static_cast<uint8_t>(gid_index_);
  attr.ah_attr.grh.hop_limit = 64;
  attr.ah_attr.dlid = remote.lid_;
  attr.ah_attr.port_num = kPort;
  error = ibv_modify_qp(qp_.get(), &attr,
                        IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                            IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
  if (error != 0) return ErrnoStatus("queue pair to RTR", error);

  attr = {};
  attr.qp_state = IBV_QPS_RTS;
  attr.timeout = settings.timeout;
  attr.retry_cnt = settings.retry_count;
  attr.rnr_retry = settings.rnr_retry;
  attr.sq_psn = kFirstPsn;
  attr.max_rd_atomic = 1;
  error = ibv_modify_qp(qp_.get(), &attr,
                        IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                            IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
  if (error != 0) return ErrnoStatus("queue pair to RTS", error);
  return absl::OkStatus();
}

absl::Status Endpoint::PostSend(uint64_t id, ibv_wr_opcode opcode, size_t offset, uint32_t bytes,
                                uint64_t remote_address, uint32_t remote_key) {
  ibv_sge piece{address() + offset, bytes, region_->lkey};
  ibv_send_wr request{}, *bad = nullptr;
  request.wr_id = id;
  request.sg_list = &piece;
  request.num_sge = 1;
  request.opcode = opcode;
  request.wr.rdma.remote_addr = remote_address;
  request.wr.rdma.rkey = remote_key;
  int error = ibv_post_send(qp_.get(), &request, &bad);
  return error == 0 ? absl::OkStatus() : ErrnoStatus("post_send", error);
}

absl::Status Endpoint::PostReceive(uint64_t id, size_t offset, uint32_t bytes) {
  ibv_sge piece{address() + offset, bytes, region_->lkey};
  ibv_recv_wr request{}, *bad = nullptr;
  request.wr_id = id;
  request.sg_list = &piece;
  request.num_sge = 1;
  int error = ibv_post_recv(qp_.get(), &request, &bad);
  return error == 0 ? absl::OkStatus() : ErrnoStatus("post_recv", error);
}

absl::StatusOr<std::vector<ibv_wc>> Endpoint::Poll() {
  std::vector<ibv_wc> got(16);
  int count = ibv_poll_cq(completions_.get(), static_cast<int>(got.size()), got.data());
  if (count < 0) return absl::InternalError("poll_cq failed");
  got.resize(static_cast<size_t>(count));
  return got;
}

std::string Endpoint::NextEvent() {
  ibv_async_event event{};
  if (ibv_get_async_event(context_.get(), &event) != 0) return "";
  std::string text = ibv_event_type_str(event.event_type);
  ibv_ack_async_event(&event);
  return text;
}

absl::StatusOr<ibv_qp_state> Endpoint::State() const {
  ibv_qp_attr attr{};
  ibv_qp_init_attr init{};
  int error = ibv_query_qp(qp_.get(), &attr, IBV_QP_STATE, &init);
  if (error != 0) return ErrnoStatus("state of the queue pair", error);
  return attr.qp_state;
}

}  // namespace mycroft::lab
