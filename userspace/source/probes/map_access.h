// SPDX-License-Identifier: Apache-2.0
//
// BPF maps by descriptor, for the readers of probes; in a build without BPF every call
// fails. Free functions, thread-safe. Keys and values are structs of bpf/abi.
#ifndef MYCROFT_USERSPACE_SOURCE_PROBES_MAP_ACCESS_H_
#define MYCROFT_USERSPACE_SOURCE_PROBES_MAP_ACCESS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <type_traits>
#include <vector>

namespace mycroft {

namespace map_access {
bool Lookup(int fd, const void* key, void* value);
bool Update(int fd, const void* key, const void* value);
bool Delete(int fd, const void* key);
bool NextKey(int fd, const void* key, void* next);  // `key` null: the first
size_t PossibleCpus();                              // at least 1
}  // namespace map_access

template <typename Value, typename Key>
std::optional<Value> ReadMap(int fd, const Key& key) {
  static_assert(std::is_trivially_copyable_v<Value>);
  Value value{};
  if (fd < 0 || !map_access::Lookup(fd, &key, &value)) return std::nullopt;
  return value;
}

// One value for each CPU that may exist; empty: no such key.
template <typename Value, typename Key>
std::vector<Value> ReadPerCpuMap(int fd, const Key& key) {
  static_assert(sizeof(Value) % 8 == 0, "the kernel rounds values up to 8 bytes");
  std::vector<Value> values(map_access::PossibleCpus());
  if (fd < 0 || !map_access::Lookup(fd, &key, values.data())) values.clear();
  return values;
}

// Makes or overwrites an entry. False: no room, or no such map.
template <typename Key, typename Value>
bool WriteMap(int fd, const Key& key, const Value& value) {
  return fd >= 0 && map_access::Update(fd, &key, &value);
}

template <typename Key>
void DeleteFromMap(int fd, const Key& key) {
  if (fd >= 0) map_access::Delete(fd, &key);
}

// The keys that are there, at most `limit`: programs may add and delete meanwhile.
template <typename Key>
std::vector<Key> MapKeys(int fd, size_t limit) {
  std::vector<Key> keys;
  Key next{};
  while (fd >= 0 && keys.size() < limit &&
         map_access::NextKey(fd, keys.empty() ? nullptr : &keys.back(), &next)) {
    keys.push_back(next);
  }
  return keys;
}

// Runs an iterator of tasks for the thread `tid` (in the pid namespace of this process)
// and returns what it wrote, at most `max_bytes`; empty: nothing, or it cannot be run.
std::vector<std::byte> RunTaskIterator(int program_fd, uint32_t tid, size_t max_bytes);

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_SOURCE_PROBES_MAP_ACCESS_H_
