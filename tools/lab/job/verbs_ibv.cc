// SPDX-License-Identifier: Apache-2.0
//
// The verbs of verbs.h over libibverbs.
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "tools/lab/job/verbs.h"

namespace mycroft::lab {
namespace {

constexpr uint8_t kPort = 1;

absl::Status Error(const std::string& what, int error = errno) {
  return absl::UnavailableError(what + ": " + strerror(error));
}

uint32_t MtuBytes(ibv_mtu mtu) { return 128u << mtu; }  // IBV_MTU_256 is 1

ibv_mtu MtuOf(int bytes) {
  int mtu = IBV_MTU_256;
  while (mtu < IBV_MTU_4096 && static_cast<int>(MtuBytes(static_cast<ibv_mtu>(mtu + 1))) <= bytes) {
    ++mtu;
  }
  return static_cast<ibv_mtu>(mtu);
}

bool IsIpv4(const Gid& gid) {
  static constexpr uint8_t kPrefix[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  return memcmp(gid.data(), kPrefix, sizeof(kPrefix)) == 0;
}

// A list that is freed.
struct DeviceList {
  int count = 0;
  ibv_device** list = ibv_get_device_list(&count);
  ~DeviceList() {
    if (list != nullptr) ibv_free_device_list(list);
  }
};

bool PortIsActive(ibv_device* device) {
  ibv_context* context = ibv_open_device(device);
  if (context == nullptr) return false;
  ibv_port_attr attr{};
  const bool active = ibv_query_port(context, kPort, &attr) == 0 && attr.state == IBV_PORT_ACTIVE;
  ibv_close_device(context);
  return active;
}

class IbvRegion final : public MemoryRegion {
 public:
  explicit IbvRegion(ibv_mr* mr) : mr_(mr) {}
  ~IbvRegion() override { ibv_dereg_mr(mr_); }
  uint32_t lkey() const override { return mr_->lkey; }
  uint32_t rkey() const override { return mr_->rkey; }

 private:
  ibv_mr* mr_;
};

class IbvChannel final : public CompletionChannel {
 public:
  explicit IbvChannel(ibv_comp_channel* channel) : channel_(channel) {}
  ~IbvChannel() override { ibv_destroy_comp_channel(channel_); }
  int fd() const override { return channel_->fd; }
  void Drain() override {
    ibv_cq* cq = nullptr;
    void* context = nullptr;
    while (ibv_get_cq_event(channel_, &cq, &context) == 0) ibv_ack_cq_events(cq, 1);
  }
  ibv_comp_channel* get() const { return channel_; }

 private:
  ibv_comp_channel* channel_;
};

class IbvQueue final : public CompletionQueue {
 public:
  explicit IbvQueue(ibv_cq* cq) : cq_(cq) {}
  ~IbvQueue() override { ibv_destroy_cq(cq_); }
  int Poll(Completion* completions, int n) override {
    ibv_wc wcs[16];
    const int got = ibv_poll_cq(cq_, std::min(n, 16), wcs);
    for (int i = 0; i < got; ++i) {
      Completion& c = completions[i];
      c = {};
      c.wr_id = wcs[i].wr_id;
      c.status = wcs[i].status;
      c.vendor_error = wcs[i].vendor_err;
      c.qp_number = wcs[i].qp_num;
      if (wcs[i].status != IBV_WC_SUCCESS) continue;
      switch (wcs[i].opcode) {
        case IBV_WC_RDMA_WRITE:
          c.op = Completion::Op::kWrite;
          break;
        case IBV_WC_RDMA_READ:
          c.op = Completion::Op::kRead;
          break;
        case IBV_WC_RECV_RDMA_WITH_IMM:
          c.op = Completion::Op::kReceiveWithImm;
          c.imm = be32toh(wcs[i].imm_data);
          break;
        default:
          break;
      }
    }
    return got < 0 ? -1 : got;
  }
  void Arm() override { ibv_req_notify_cq(cq_, 0); }
  ibv_cq* get() const { return cq_; }

 private:
  ibv_cq* cq_;
};

class IbvPair final : public QueuePair {
 public:
  explicit IbvPair(ibv_qp* qp) : qp_(qp) { qp_->qp_context = this; }
  ~IbvPair() override { ibv_destroy_qp(qp_); }
  uint32_t number() const override { return qp_->qp_num; }
  // Called before the event is acknowledged, for which the destruction waits.
  void CountFatal() { fatal_events_.fetch_add(1, std::memory_order_acq_rel); }

  absl::Status Connect(const QpAddress& peer, const VerbsOptions& options) override {
    const std::string name = std::string("QP of ") + ibv_get_device_name(qp_->context->device);
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_INIT;
    attr.port_num = kPort;
    attr.qp_access_flags =
        IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
    int error = ibv_modify_qp(qp_, &attr,
                              IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
    if (error != 0) return Error(name + " to INIT", error);

    attr = {};
    attr.qp_state = IBV_QPS_RTR;
    attr.path_mtu = MtuOf(options.mtu_bytes);
    attr.dest_qp_num = peer.number;
    attr.max_dest_rd_atomic = 1;
    attr.min_rnr_timer = static_cast<uint8_t>(options.min_rnr_timer);
    attr.ah_attr.port_num = kPort;
    if (peer.lid == 0) {
      attr.ah_attr.is_global = 1;
      memcpy(attr.ah_attr.grh.dgid.raw, peer.gid.data(), peer.gid.size());
      attr.ah_attr.grh.sgid_index = static_cast<uint8_t>(options.gid_index);
      attr.ah_attr.grh.hop_limit = 255;
    } else {
      attr.ah_attr.dlid = static_cast<uint16_t>(peer.lid);
    }
    error = ibv_modify_qp(qp_, &attr,
                          IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                              IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    if (error != 0) {
      return Error(name + " to RTR, peer " + GidText(peer.gid) + ", GID index " +
                       std::to_string(options.gid_index),
                   error);
    }

    attr = {};
    attr.qp_state = IBV_QPS_RTS;
    attr.timeout = static_cast<uint8_t>(options.timeout);
    attr.retry_cnt = static_cast<uint8_t>(options.retry);
    attr.rnr_retry = static_cast<uint8_t>(options.rnr_retry);
    attr.max_rd_atomic = 1;
    error = ibv_modify_qp(qp_, &attr,
                          IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                              IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
    if (error != 0) return Error(name + " to RTS", error);
    return absl::OkStatus();
  }

  int PostSend(const SendRequest* requests, size_t n) override {
    constexpr size_t kMost = 4;
    if (n > kMost) return EINVAL;
    ibv_sge sges[kMost]{};
    ibv_send_wr wrs[kMost]{};
    for (size_t i = 0; i < n; ++i) {
      const SendRequest& request = requests[i];
      sges[i] = {reinterpret_cast<uint64_t>(request.local), request.bytes, request.lkey};
      ibv_send_wr& wr = wrs[i];
      wr.wr_id = request.wr_id;
      wr.next = i + 1 < n ? &wrs[i + 1] : nullptr;
      wr.sg_list = &sges[i];
      wr.num_sge = request.bytes > 0 ? 1 : 0;
      switch (request.op) {
        case SendRequest::Op::kWrite:
          wr.opcode = IBV_WR_RDMA_WRITE;
          break;
        case SendRequest::Op::kWriteWithImm:
          wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
          wr.imm_data = htobe32(request.imm);
          break;
        case SendRequest::Op::kRead:
          wr.opcode = IBV_WR_RDMA_READ;
          break;
      }
      wr.send_flags = (request.signaled ? static_cast<unsigned>(IBV_SEND_SIGNALED) : 0u) |
                      (request.inlined ? static_cast<unsigned>(IBV_SEND_INLINE) : 0u);
      wr.wr.rdma.remote_addr = request.remote;
      wr.wr.rdma.rkey = request.rkey;
    }
    ibv_send_wr* bad = nullptr;
    return ibv_post_send(qp_, wrs, &bad);
  }

  int PostReceive(uint64_t wr_id) override {
    ibv_recv_wr wr{};
    wr.wr_id = wr_id;
    ibv_recv_wr* bad = nullptr;
    return ibv_post_recv(qp_, &wr, &bad);
  }

 private:
  ibv_qp* qp_;
};

class IbvDevice final : public VerbsDevice {
 public:
  static absl::StatusOr<std::unique_ptr<VerbsDevice>> Open(ibv_device* device, AsyncNote note) {
    auto self = std::unique_ptr<IbvDevice>(new IbvDevice);
    self->name_ = ibv_get_device_name(device);
    self->context_ = ibv_open_device(device);
    if (self->context_ == nullptr) return Error("cannot open RDMA device " + self->name_);
    ibv_port_attr port{};
    if (const int error = ibv_query_port(self->context_, kPort, &port); error != 0) {
      return Error("port 1 of " + self->name_, error);
    }
    if (port.state != IBV_PORT_ACTIVE) {
      return absl::UnavailableError("port 1 of " + self->name_ + " is " +
                                    ibv_port_state_str(port.state));
    }
    self->mtu_ = MtuBytes(port.active_mtu);
    self->gids_ = port.gid_tbl_len;
    if (port.link_layer == IBV_LINK_LAYER_INFINIBAND) self->lid_ = port.lid;
    self->pd_ = ibv_alloc_pd(self->context_);
    if (self->pd_ == nullptr) return Error("protection domain of " + self->name_);
    self->stop_fd_ = eventfd(0, EFD_CLOEXEC);
    if (self->stop_fd_ < 0) return Error("eventfd");
    const int flags = fcntl(self->context_->async_fd, F_GETFL);
    fcntl(self->context_->async_fd, F_SETFL, flags | O_NONBLOCK);
    self->note_ = std::move(note);
    self->thread_ = std::thread([raw = self.get()] { raw->WatchEvents(); });
    return self;
  }

  ~IbvDevice() override {
    if (thread_.joinable()) {
      const uint64_t one = 1;
      [[maybe_unused]] ssize_t n = write(stop_fd_, &one, sizeof(one));
      thread_.join();
    }
    if (stop_fd_ >= 0) close(stop_fd_);
    if (pd_ != nullptr) ibv_dealloc_pd(pd_);
    if (context_ != nullptr) ibv_close_device(context_);
  }

  const std::string& name() const override { return name_; }
  uint32_t port_mtu_bytes() const override { return mtu_; }
  uint32_t lid() const override { return lid_; }

  absl::StatusOr<Gid> FindGid(int index, int* chosen) const override {
    auto query = [this](int i, Gid* gid, uint32_t* type) {
      ibv_gid_entry entry{};
      if (ibv_query_gid_ex(context_, kPort, static_cast<uint32_t>(i), &entry, 0) != 0) return false;
      memcpy(gid->data(), entry.gid.raw, gid->size());
      *type = entry.gid_type;
      return *gid != Gid{};
    };
    Gid gid{};
    uint32_t type = 0;
    if (index >= 0) {
      if (!query(index, &gid, &type)) {
        return absl::NotFoundError("GID index " + std::to_string(index) + " of " + name_ +
                                   " is empty or does not exist");
      }
      *chosen = index;
      return gid;
    }
    int first = -1;
    for (int i = 0; i < gids_; ++i) {
      if (!query(i, &gid, &type)) continue;
      if (first < 0) first = i;
      if (type != IBV_GID_TYPE_ROCE_V2 || !IsIpv4(gid)) continue;
      *chosen = i;
      return gid;
    }
    if (first < 0) return absl::NotFoundError("port 1 of " + name_ + " has no GID");
    query(first, &gid, &type);
    *chosen = first;
    return gid;
  }

  absl::StatusOr<std::unique_ptr<MemoryRegion>> Register(void* data, size_t bytes) override {
    ibv_mr* mr =
        ibv_reg_mr(pd_, data, bytes,
                   IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
    if (mr == nullptr) {
      const int error = errno;
      rlimit limit{};
      getrlimit(RLIMIT_MEMLOCK, &limit);
      return Error(
          "registration of " + std::to_string(bytes) + " bytes with " + name_ +
              " (locked memory is limited to " +
              (limit.rlim_cur == RLIM_INFINITY ? std::string("nothing")
                                               : std::to_string(limit.rlim_cur) + " bytes") +
              ")",
          error);
    }
    return std::make_unique<IbvRegion>(mr);
  }

  absl::StatusOr<std::unique_ptr<CompletionChannel>> CreateChannel() override {
    ibv_comp_channel* channel = ibv_create_comp_channel(context_);
    if (channel == nullptr) return Error("completion channel of " + name_);
    fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) | O_NONBLOCK);
    return std::make_unique<IbvChannel>(channel);
  }

  absl::StatusOr<std::unique_ptr<CompletionQueue>> CreateQueue(
      int entries, CompletionChannel* channel) override {
    ibv_cq* cq =
        ibv_create_cq(context_, entries, nullptr, static_cast<IbvChannel*>(channel)->get(), 0);
    if (cq == nullptr) return Error("completion queue of " + name_);
    return std::make_unique<IbvQueue>(cq);
  }

  absl::StatusOr<std::unique_ptr<QueuePair>> CreatePair(CompletionQueue* queue, uint32_t max_sends,
                                                        uint32_t max_receives) override {
    ibv_qp_init_attr init{};
    init.send_cq = init.recv_cq = static_cast<IbvQueue*>(queue)->get();
    init.cap.max_send_wr = max_sends;
    init.cap.max_recv_wr = max_receives;
    init.cap.max_send_sge = 1;
    init.cap.max_recv_sge = 1;
    init.cap.max_inline_data = 64;
    init.qp_type = IBV_QPT_RC;
    ibv_qp* qp = ibv_create_qp(pd_, &init);
    if (qp == nullptr) return Error("queue pair of " + name_);
    return std::make_unique<IbvPair>(qp);
  }

 private:
  IbvDevice() = default;

  void WatchEvents() {
    pthread_setname_np(pthread_self(), "NCCL IbAsync 0");
    while (true) {
      pollfd fds[] = {{context_->async_fd, POLLIN, 0}, {stop_fd_, POLLIN, 0}};
      if (poll(fds, 2, -1) < 0) continue;
      if (fds[1].revents != 0) return;
      ibv_async_event event{};
      if (ibv_get_async_event(context_, &event) != 0) {
        // The device is gone: nothing will come any more, and poll() would not sleep.
        if (errno != EAGAIN && errno != EINTR) return;
        continue;
      }
      std::string text = name_ + ": asynchronous event: " + ibv_event_type_str(event.event_type);
      // As NCCL's event thread sorts them.
      switch (event.event_type) {
        case IBV_EVENT_DEVICE_FATAL:
        case IBV_EVENT_CQ_ERR:
          fatal_events_.fetch_add(1, std::memory_order_acq_rel);
          break;
        case IBV_EVENT_QP_FATAL:
        case IBV_EVENT_QP_REQ_ERR:
        case IBV_EVENT_QP_ACCESS_ERR:
          text += ", QP " + std::to_string(event.element.qp->qp_num);
          static_cast<IbvPair*>(event.element.qp->qp_context)->CountFatal();
          break;
        default:  // libibverbs' enum, to which new ones are added
          break;
      }
      ibv_ack_async_event(&event);
      if (note_) note_(text);
    }
  }

  std::string name_;
  ibv_context* context_ = nullptr;
  ibv_pd* pd_ = nullptr;
  uint32_t mtu_ = 0;
  uint32_t lid_ = 0;
  int gids_ = 0;
  int stop_fd_ = -1;
  AsyncNote note_;
  std::thread thread_;
};

}  // namespace

absl::StatusOr<std::vector<std::string>> FindVerbsDevices(const std::vector<std::string>& wanted) {
  const DeviceList devices;
  if (devices.list == nullptr || devices.count == 0) {
    return absl::NotFoundError(
        "there is no RDMA device on this machine (a software device: `rdma link add NAME type rxe "
        "netdev DEV`)");
  }
  std::vector<std::string> names;
  std::string all;
  for (int i = 0; i < devices.count; ++i) {
    const std::string name = ibv_get_device_name(devices.list[i]);
    all += (all.empty() ? "" : ", ") + name;
    if (wanted.empty() && PortIsActive(devices.list[i])) names.push_back(name);
    if (!wanted.empty()) names.push_back(name);
  }
  if (wanted.empty()) {
    if (names.empty()) return absl::NotFoundError("no RDMA device has an active port: " + all);
    std::sort(names.begin(), names.end());
    return names;
  }
  for (const std::string& name : wanted) {
    if (std::find(names.begin(), names.end(), name) == names.end()) {
      return absl::NotFoundError("there is no RDMA device \"" + name + "\"; known: " + all);
    }
  }
  return wanted;
}

absl::StatusOr<std::unique_ptr<VerbsDevice>> OpenVerbsDevice(const std::string& name,
                                                             AsyncNote note) {
  const DeviceList devices;
  for (int i = 0; i < devices.count; ++i) {
    if (name == ibv_get_device_name(devices.list[i])) {
      return IbvDevice::Open(devices.list[i], std::move(note));
    }
  }
  return absl::NotFoundError("there is no RDMA device \"" + name + "\"");
}

}  // namespace mycroft::lab
