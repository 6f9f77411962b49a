// SPDX-License-Identifier: Apache-2.0
#include "userspace/source/probes/ops_finder.h"

#include <algorithm>
#include <cstring>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"

namespace mycroft {

namespace {

constexpr int kNewest = 9999;

// struct verbs_context_ops (libibverbs/driver.h), in its order, with the releases of
// rdma-core that have the member.
struct Member {
  const char* name;
  int first, last;
};
constexpr Member kMembers[] = {
    {"advise_mr", 22, kNewest},
    {"alloc_buf", 64, kNewest},
    {"alloc_dm", 22, kNewest},
    {"alloc_dmah", 59, kNewest},
    {"alloc_mw", 22, kNewest},
    {"alloc_null_mr", 22, kNewest},
    {"alloc_parent_domain", 22, kNewest},
    {"alloc_pd", 22, kNewest},
    {"alloc_td", 22, kNewest},
    {"async_event", 22, kNewest},
    {"attach_counters_point_flow", 22, kNewest},
    {"attach_mcast", 22, kNewest},
    {"bind_mw", 22, kNewest},
    {"close_xrcd", 22, kNewest},
    {"cq_event", 22, kNewest},
    {"create_ah", 22, kNewest},
    {"create_comp_cntr", 65, kNewest},
    {"create_counters", 22, kNewest},
    {"create_cq", 22, kNewest},
    {"create_cq_ex", 22, kNewest},
    {"create_flow", 22, kNewest},
    {"create_flow_action_esp", 22, kNewest},
    {"create_qp", 22, kNewest},
    {"create_qp_ex", 22, kNewest},
    {"create_rwq_ind_table", 22, kNewest},
    {"create_srq", 22, kNewest},
    {"create_srq_ex", 22, kNewest},
    {"create_wq", 22, kNewest},
    {"dealloc_dmah", 59, kNewest},
    {"dealloc_mw", 22, kNewest},
    {"dealloc_pd", 22, kNewest},
    {"dealloc_td", 22, kNewest},
    {"dereg_mr", 22, kNewest},
    {"destroy_ah", 22, kNewest},
    {"destroy_comp_cntr", 65, kNewest},
    {"destroy_counters", 22, kNewest},
    {"destroy_cq", 22, kNewest},
    {"destroy_flow", 22, kNewest},
    {"destroy_flow_action", 22, kNewest},
    {"destroy_qp", 22, kNewest},
    {"destroy_rwq_ind_table", 22, kNewest},
    {"destroy_srq", 22, kNewest},
    {"destroy_wq", 22, kNewest},
    {"detach_mcast", 22, kNewest},
    {"dm_export_dmabuf_fd", 62, kNewest},
    {"free_buf", 64, kNewest},
    {"free_context", 28, kNewest},
    {"free_dm", 22, kNewest},
    {"get_srq_num", 22, kNewest},
    {"import_dm", 35, kNewest},
    {"import_mr", 31, kNewest},
    {"import_pd", 31, kNewest},
    {"inc_comp_cntr", 65, kNewest},
    {"inc_err_comp_cntr", 65, kNewest},
    {"modify_cq", 22, kNewest},
    {"modify_flow_action_esp", 22, kNewest},
    {"modify_qp", 22, kNewest},
    {"modify_qp_rate_limit", 22, kNewest},
    {"modify_srq", 22, kNewest},
    {"modify_wq", 22, kNewest},
    {"open_qp", 22, kNewest},
    {"open_xrcd", 22, kNewest},
    {"poll_cq", 22, kNewest},
    {"post_recv", 22, kNewest},
    {"post_send", 22, kNewest},
    {"post_srq_ops", 22, kNewest},
    {"post_srq_recv", 22, kNewest},
    {"qp_attach_comp_cntr", 65, kNewest},
    {"query_comp_cntr_caps", 65, kNewest},
    {"query_device", 22, 32},
    {"query_device_ex", 22, kNewest},
    {"query_ece", 31, kNewest},
    {"query_port", 22, kNewest},
    {"query_port_speed", 62, kNewest},
    {"query_qp", 22, kNewest},
    {"query_qp_data_in_order", 36, kNewest},
    {"query_rt_values", 22, kNewest},
    {"query_srq", 22, kNewest},
    {"read_comp_cntr", 65, kNewest},
    {"read_counters", 22, kNewest},
    {"read_err_comp_cntr", 65, kNewest},
    {"reg_dm_mr", 22, kNewest},
    {"reg_dmabuf_mr", 34, kNewest},
    {"reg_mr", 22, kNewest},
    {"reg_mr_ex", 59, kNewest},
    {"req_notify_cq", 22, kNewest},
    {"rereg_mr", 22, kNewest},
    {"resize_cq", 22, kNewest},
    {"set_comp_cntr", 65, kNewest},
    {"set_ece", 31, kNewest},
    {"set_err_comp_cntr", 65, kNewest},
    {"unimport_dm", 35, kNewest},
    {"unimport_mr", 31, kNewest},
    {"unimport_pd", 31, kNewest},
};
// Releases at which the order changed.
constexpr int kVersions[] = {22, 28, 31, 33, 34, 35, 36, 59, 62, 64, 65};

// What no provider can do without.
constexpr const char* kMandatory[] = {
    "alloc_pd",  "create_cq", "create_qp", "dealloc_pd", "dereg_mr",   "destroy_cq", "destroy_qp",
    "modify_qp", "poll_cq",   "post_recv", "post_send",  "query_port", "reg_mr"};

struct Layout {
  int since = 0;
  std::vector<const char*> names;
  std::vector<bool> mandatory;
  int IndexOf(const char* name) const {
    for (size_t i = 0; i < names.size(); ++i)
      if (std::strcmp(names[i], name) == 0) return static_cast<int>(i);
    return -1;
  }
};

Layout LayoutOf(int version) {
  Layout layout;
  layout.since = version;
  for (const Member& m : kMembers) {
    if (version < m.first || version > m.last) continue;
    layout.names.push_back(m.name);
    layout.mandatory.push_back(
        std::any_of(std::begin(kMandatory), std::end(kMandatory),
                    [&](const char* name) { return std::strcmp(name, m.name) == 0; }));
  }
  return layout;
}

}  // namespace

OpsLayoutShape OpsLayoutOf(int rdma_core_version) {
  const Layout layout = LayoutOf(rdma_core_version);
  return {static_cast<int>(layout.names.size()), layout.IndexOf("poll_cq")};
}

absl::StatusOr<ProviderOps> FindProviderOps(const ElfImage& image) {
  if (!image.HasFunctionTable())
    return absl::NotFoundError("no table of functions (.eh_frame_hdr): nothing to check against");
  const std::vector<ElfRelocation>& relocations = image.data_relocations();
  if (relocations.empty()) return absl::NotFoundError("no pointers in .data.rel.ro");

  // What each place holds: index into `relocations`, by address.
  const auto at = [&](uint64_t address) -> const ElfRelocation* {
    const auto it =
        std::lower_bound(relocations.begin(), relocations.end(), address,
                         [](const ElfRelocation& r, uint64_t value) { return r.address < value; });
    return it != relocations.end() && it->address == address ? &*it : nullptr;
  };

  std::vector<ProviderOps> found;
  for (int version : kVersions) {
    const Layout layout = LayoutOf(version);
    const size_t members = layout.names.size();
    // Slot 0 may be NULL: a table begins at most its length before a pointer.
    std::vector<uint64_t> starts;
    for (const ElfRelocation& r : relocations) {
      const uint64_t last = r.address & ~uint64_t{31};
      for (uint64_t back = 0; back <= last && r.address - (last - back) < members * 8; back += 32)
        starts.push_back(last - back);
    }
    std::sort(starts.begin(), starts.end());
    starts.erase(std::unique(starts.begin(), starts.end()), starts.end());
    for (uint64_t start : starts) {
      if (start > image.data_end() || image.data_end() - start < members * 8) continue;
      ProviderOps ops{.table = start, .since_version = version};
      bool good = true;
      for (size_t i = 0; good && i < members; ++i) {
        const ElfRelocation* r = at(start + i * 8);
        if (r == nullptr) {
          good = !layout.mandatory[i];
          continue;
        }
        ++ops.filled;
        if (r->target != 0) {
          good = image.IsFunctionStart(r->target) && image.OffsetOf(r->target).has_value();
        } else if (r->symbol.rfind("ibv_cmd_", 0) == 0) {
          good = r->symbol.substr(8) == layout.names[i];
          if (good) ++ops.anchors;
        } else {
          good = !r->symbol.empty();
        }
      }
      if (!good) continue;
      const auto target = [&](const char* name) -> uint64_t {
        const int index = layout.IndexOf(name);
        const ElfRelocation* r = index < 0 ? nullptr : at(start + static_cast<uint64_t>(index) * 8);
        return r == nullptr ? 0 : r->target;
      };
      // Up to where the next large constant could begin there should be nothing.
      for (uint64_t i = members; i % 4 != 0; ++i)
        if (at(start + i * 8) != nullptr) ++ops.trailing;
      ops.post_send = target("post_send");
      ops.post_recv = target("post_recv");
      ops.post_srq_recv = target("post_srq_recv");
      ops.poll_cq = target("poll_cq");
      ops.req_notify_cq = target("req_notify_cq");
      // Imported functions cannot be a provider's own fast path.
      if (ops.post_send == 0 || ops.post_recv == 0 || ops.poll_cq == 0) continue;
      found.push_back(ops);
    }
  }
  if (found.empty()) return absl::NotFoundError("no table of verbs that any release would write");
  const auto rank = [](const ProviderOps& o) {
    return std::tuple(o.anchors, -o.trailing, o.filled);
  };
  const ProviderOps best = *std::max_element(
      found.begin(), found.end(),
      [&](const ProviderOps& a, const ProviderOps& b) { return rank(a) < rank(b); });
  for (const ProviderOps& o : found) {
    if (rank(o) == rank(best) && (o.post_send != best.post_send || o.post_recv != best.post_recv ||
                                  o.poll_cq != best.poll_cq)) {
      return absl::NotFoundError(
          absl::StrCat("two tables of verbs that differ are as likely, at 0x",
                       absl::Hex(best.table), " and 0x", absl::Hex(o.table)));
    }
  }
  return best;
}

}  // namespace mycroft
