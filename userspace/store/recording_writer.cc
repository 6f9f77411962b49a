// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <map>
#include <utility>

#include "userspace/store/incident_json.h"
#include "userspace/store/recording.h"
#include "userspace/store/schema.h"
#include "userspace/store/snapshot_codec.h"
#include "userspace/store/sqlite.h"

namespace mycroft {
namespace {

using store_internal::Database;
using store_internal::Execute;
using store_internal::OpenDatabase;
using store_internal::QueryInt;
using store_internal::Statement;
using store_internal::ToStatus;

constexpr uint64_t kKeyframeEveryNs = 30'000'000'000;
constexpr uint64_t kMaxPendingBytes = 16 << 20;  // in memory; then a batch is written early
constexpr size_t kMaxWaitingBatches = 30;        // while another program blocks the file

#define RETURN_IF_ERROR(expression)                           \
  do {                                                        \
    if (absl::Status status_ = (expression); !status_.ok()) { \
      return status_;                                         \
    }                                                         \
  } while (0)

// The file beside the recording that says who writes it. The lock is the
// kernel's and ends with its holder, however that ends; the pid inside is only
// for people. A lock on the recording itself would be SQLite's business.
class WriterLock {
 public:
  WriterLock() = default;
  WriterLock(WriterLock&& other) noexcept
      : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)) {}
  WriterLock& operator=(WriterLock&&) = delete;
  ~WriterLock() {
    if (fd_ < 0) return;
    unlink(path_.c_str());
    close(fd_);
  }

  static absl::StatusOr<WriterLock> Take(const std::string& recording) {
    WriterLock lock;
    lock.path_ = recording + "-lock";
    for (int attempt = 0; attempt < 10; ++attempt) {
      const int fd = open(lock.path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
      if (fd < 0) return OpenError(lock.path_, errno);
      if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        char pid[32] = {};
        const ssize_t size = pread(fd, pid, sizeof pid - 1, 0);
        close(fd);
        std::string holder(pid, size > 0 ? static_cast<size_t>(size) : 0);
        while (!holder.empty() && (holder.back() < '0' || holder.back() > '9')) holder.pop_back();
        return absl::FailedPreconditionError("another mycroft agent (pid " +
                                             (holder.empty() ? "unknown" : holder) + ") writes " +
                                             recording + ": stop it, or write to another file");
      }
      // Its last holder may have removed the file between open and lock.
      struct stat ours, there;
      if (fstat(fd, &ours) == 0 && stat(lock.path_.c_str(), &there) == 0 &&
          ours.st_ino == there.st_ino && ours.st_dev == there.st_dev) {
        const std::string pid = std::to_string(getpid()) + "\n";
        if (ftruncate(fd, 0) != 0 ||
            pwrite(fd, pid.data(), pid.size(), 0) != static_cast<ssize_t>(pid.size())) {
          // Without the pid the lock still holds.
        }
        lock.fd_ = fd;
        return lock;
      }
      close(fd);
    }
    return absl::FailedPreconditionError("another mycroft agent writes " + recording);
  }

 private:
  static absl::Status OpenError(const std::string& path, int error) {
    const std::string text = path + ": " + std::strerror(error);
    if (error == EACCES || error == EPERM || error == EROFS) {
      return absl::PermissionDeniedError(text);
    }
    if (error == ENOENT || error == ENOTDIR) {
      return absl::NotFoundError(text + ": the folder of a recording must exist");
    }
    if (error == ENOSPC || error == EDQUOT) return absl::ResourceExhaustedError(text);
    return absl::FailedPreconditionError(text);
  }

  std::string path_;
  int fd_ = -1;
};

// As much as fits into SQLite's signed integers, bit by bit.
int64_t Signed(uint64_t value) { return static_cast<int64_t>(value); }

class Writer : public RecordingWriter {
 public:
  static absl::StatusOr<std::unique_ptr<RecordingWriter>> Create(const std::string& path,
                                                                 const RecordingOptions& options);
  ~Writer() override {
    if (db_ != nullptr) (void)Flush();
  }

  absl::Status Append(Snapshot snapshot) override;
  absl::Status PutIncident(const Incident& incident) override {
    changed_incidents_[incident.id] = IncidentToJson(incident);
    return absl::OkStatus();
  }
  absl::Status PutClock(const std::string& host, const std::string& text) override {
    clocks_[host] = text;
    return absl::OkStatus();
  }
  absl::Status Flush() override { return Commit(); }
  uint64_t bytes_written() const override { return bytes_written_; }
  uint64_t snapshots_lost() const override { return lost_; }

 private:
  struct Batch {
    int64_t id = 0, keyframe = 0, host = 0;
    uint64_t t0 = 0, t1 = 0, wall0 = 0, wall1 = 0, snapshots = 0, raw_bytes = 0;
    std::string payload;
  };
  // Batches from a keyframe up to the next: what can be deleted at once.
  struct Group {
    int64_t keyframe = 0, host = 0;
    uint64_t t1 = 0, wall1 = 0;
  };
  struct Host {
    std::string name, host_id;
    int64_t id = 0;
  };

  Writer(WriterLock lock, const std::string& path, const RecordingOptions& options)
      : lock_(std::move(lock)), path_(path), options_(options) {}

  absl::Status OpenFile(bool exists);
  absl::Status MakeTables();
  absl::Status CheckTables();
  absl::Status Load();
  Host& HostOf(const Snapshot& snapshot);
  absl::Status EncodePending();
  absl::Status Commit();
  absl::Status WriteAll(size_t* dropped_groups);
  absl::Status DropOld(std::deque<Group> groups, size_t* dropped);
  bool TooOld(const Group& group) const;
  void LoseWaiting();
  absl::StatusOr<Statement*> Prepared(const char* sql);
  absl::Status RunPrepared(const char* sql);
  void Rollback() {
    if (sqlite3_get_autocommit(db_.get()) == 0) (void)Execute(db_.get(), "ROLLBACK");
  }

  WriterLock lock_;  // released after the database is closed
  std::string path_;
  RecordingOptions options_;
  Database db_;
  // What is run each second, prepared once; the keys are literals.
  std::map<std::string_view, Statement> statements_;
  SnapshotEncoder encoder_;

  std::vector<Snapshot> pending_;
  uint64_t pending_bytes_ = 0;
  std::map<int64_t, uint64_t> pending_since_;  // by host: time of its first pending snapshot
  std::deque<Batch> waiting_;                  // encoded, not yet committed
  std::map<uint64_t, std::string> changed_incidents_;
  std::map<std::string, std::string> clocks_;
  std::deque<Host> hosts_;
  int64_t stored_hosts_ = 0;  // up to this id
  std::deque<Group> groups_;  // committed ones; the last one may still grow
  int64_t next_id_ = 1;
  int64_t keyframe_ = 0;
  size_t batches_since_keyframe_ = 0;
  uint64_t bytes_since_keyframe_ = 0;
  bool want_keyframe_ = true;
  Group newest_;  // of the last encoded batch: what "old" is measured against
  uint64_t bytes_written_ = 0;
  uint64_t lost_ = 0, lost_stored_ = 0;
};

absl::StatusOr<std::unique_ptr<RecordingWriter>> Writer::Create(const std::string& path,
                                                                const RecordingOptions& options) {
  if (path.empty()) return absl::FailedPreconditionError("a recording needs a file name");
  struct stat info;
  bool exists = stat(path.c_str(), &info) == 0;
  if (exists && !S_ISREG(info.st_mode)) {
    return absl::FailedPreconditionError(path + " is not a regular file");
  }
  absl::StatusOr<WriterLock> lock = WriterLock::Take(path);
  if (!lock.ok()) return lock.status();
  exists = stat(path.c_str(), &info) == 0 && info.st_size > 0;
  if (exists && !options.append) {
    return absl::AlreadyExistsError(path +
                                    " exists: choose another name, remove it, or append to it");
  }
  std::unique_ptr<Writer> writer(new Writer(*std::move(lock), path, options));
  if (absl::Status status = writer->OpenFile(exists); !status.ok()) {
    writer->db_.reset();
    return status;
  }
  return std::unique_ptr<RecordingWriter>(std::move(writer));
}

absl::Status Writer::OpenFile(bool exists) {
  absl::StatusOr<Database> db = OpenDatabase(path_, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, "");
  if (!db.ok()) return db.status();
  db_ = *std::move(db);
  sqlite3_limit(db_.get(), SQLITE_LIMIT_LENGTH, store_internal::kMaxPayloadBytes + 4096);
  if (exists) {
    RETURN_IF_ERROR(CheckTables());
  } else {
    // Small pages: the last one of each batch is half empty.
    RETURN_IF_ERROR(Execute(db_.get(), "PRAGMA page_size=2048; PRAGMA auto_vacuum=INCREMENTAL;"));
  }
  RETURN_IF_ERROR(Execute(db_.get(), "PRAGMA trusted_schema=OFF; PRAGMA synchronous=NORMAL;"));
  // A checkpoint each MiB (512 pages): the journal stays small beside the recording.
  RETURN_IF_ERROR(Execute(db_.get(),
                          "PRAGMA journal_mode=WAL; PRAGMA wal_autocheckpoint=512;"
                          "PRAGMA journal_size_limit=1048576;"));
  if (!exists) RETURN_IF_ERROR(MakeTables());
  return Load();
}

absl::Status Writer::MakeTables() {
  std::string sql =
      "BEGIN IMMEDIATE; PRAGMA application_id=" + std::to_string(store_internal::kApplicationId) +
      "; PRAGMA user_version=" + std::to_string(kRecordingSchemaVersion) + ";";
  for (const store_internal::Table& table : store_internal::kTables) {
    sql += table.sql;
    sql += ";";
  }
  sql += "INSERT INTO meta VALUES('created_by', 'mycroft " MYCROFT_VERSION
         "'), ('snapshots_lost', 0); COMMIT;"
         // The file by itself is a recording from now on, whatever happens to the journal.
         "PRAGMA wal_checkpoint(TRUNCATE);";
  return Execute(db_.get(), sql.c_str());
}

absl::Status Writer::CheckTables() {
  absl::StatusOr<int64_t> application = QueryInt(db_.get(), "PRAGMA application_id");
  if (!application.ok() && !absl::IsInvalidArgument(application.status()) &&
      !absl::IsDataLoss(application.status())) {
    return application.status();
  }
  if (!application.ok() || *application != store_internal::kApplicationId) {
    return absl::FailedPreconditionError(path_ +
                                         " is not a recording: it is left as it is, choose "
                                         "another file");
  }
  absl::StatusOr<int64_t> version = QueryInt(db_.get(), "PRAGMA user_version");
  if (!version.ok()) return version.status();
  if (*version != kRecordingSchemaVersion) {
    return absl::FailedPreconditionError(
        path_ + " has schema version " + std::to_string(*version) + ", this program writes " +
        std::to_string(kRecordingSchemaVersion) + ": record to another file");
  }
  return absl::OkStatus();
}

absl::Status Writer::Load() {
  absl::StatusOr<Statement> hosts =
      Statement::Prepare(db_.get(), "SELECT id, name, host_id FROM host ORDER BY id");
  if (!hosts.ok()) return hosts.status();
  int code = hosts->Step();
  for (; code == SQLITE_ROW; code = hosts->Step()) {
    hosts_.push_back({hosts->Text(1), hosts->Text(2), hosts->Int(0)});
    stored_hosts_ = hosts->Int(0);
  }
  if (code != SQLITE_DONE) return ToStatus(db_.get(), code, path_);
  absl::StatusOr<Statement> batches = Statement::Prepare(
      db_.get(), "SELECT id, keyframe, host, t1_ns, wall1_ns FROM batch ORDER BY id");
  if (!batches.ok()) return batches.status();
  for (code = batches->Step(); code == SQLITE_ROW; code = batches->Step()) {
    const int64_t keyframe = batches->Int(1);
    if (groups_.empty() || groups_.back().keyframe != keyframe) groups_.push_back({keyframe});
    groups_.back().host = batches->Int(2);
    groups_.back().t1 = static_cast<uint64_t>(batches->Int(3));
    groups_.back().wall1 = static_cast<uint64_t>(batches->Int(4));
    next_id_ = batches->Int(0) + 1;
  }
  if (code != SQLITE_DONE) return ToStatus(db_.get(), code, path_);
  absl::StatusOr<int64_t> lost =
      QueryInt(db_.get(), "SELECT value FROM meta WHERE key='snapshots_lost'");
  if (!lost.ok()) return lost.status();
  lost_stored_ = static_cast<uint64_t>(*lost);
  return absl::OkStatus();
}

Writer::Host& Writer::HostOf(const Snapshot& snapshot) {
  for (Host& host : hosts_) {
    if (host.host_id == snapshot.host_id && host.name == snapshot.host) return host;
  }
  const int64_t id = hosts_.empty() ? 1 : hosts_.back().id + 1;
  hosts_.push_back({snapshot.host, snapshot.host_id, id});
  return hosts_.back();
}

absl::Status Writer::Append(Snapshot snapshot) {
  if (absl::Status status = CheckStorable(snapshot); !status.ok()) {
    ++lost_;
    return status;
  }
  const int64_t host = HostOf(snapshot).id;
  const auto since = pending_since_.try_emplace(host, snapshot.t_ns).first;
  const bool backwards = snapshot.t_ns < since->second;
  const uint64_t waited = snapshot.t_ns - since->second;
  // Before the next tick, which may come late, would make it more than a second.
  const uint64_t next_tick = snapshot.interval_ns + snapshot.interval_ns / 2;
  pending_bytes_ += MemoryBytes(snapshot);
  pending_.push_back(std::move(snapshot));
  if (backwards || waited + next_tick >= options_.commit_interval_ns ||
      pending_bytes_ >= kMaxPendingBytes) {
    return Commit();
  }
  return absl::OkStatus();
}

absl::Status Writer::EncodePending() {
  if (pending_.empty()) return absl::OkStatus();
  Batch batch;
  const Host& host = HostOf(pending_.front());
  batch.host = host.id;
  batch.t0 = batch.t1 = pending_.front().t_ns;
  batch.wall0 = batch.wall1 = pending_.front().wall_ns;
  for (const Snapshot& snapshot : pending_) {
    if (snapshot.host_id != host.host_id || snapshot.host != host.name) continue;
    batch.t1 = std::max(batch.t1, snapshot.t_ns);
    batch.wall1 = std::max(batch.wall1, snapshot.wall_ns);
  }
  batch.snapshots = pending_.size();
  batch.raw_bytes = pending_bytes_;
  const size_t most =
      std::max<uint64_t>(1, kKeyframeEveryNs / std::max<uint64_t>(options_.commit_interval_ns, 1));
  const bool keyframe = want_keyframe_ || batches_since_keyframe_ >= most ||
                        (options_.max_bytes != 0 && bytes_since_keyframe_ > options_.max_bytes / 8);
  absl::StatusOr<std::string> payload = encoder_.Encode(pending_, keyframe);
  pending_.clear();
  pending_since_.clear();
  pending_bytes_ = 0;
  if (!payload.ok() || payload->size() > store_internal::kMaxPayloadBytes) {
    lost_ += batch.snapshots;
    want_keyframe_ = true;
    return payload.ok() ? absl::InvalidArgumentError("one second of samples is too large to store")
                        : payload.status();
  }
  want_keyframe_ = false;
  batch.payload = *std::move(payload);
  batch.id = next_id_++;
  if (encoder_.last_was_keyframe()) {
    keyframe_ = batch.id;
    batches_since_keyframe_ = 0;
    bytes_since_keyframe_ = 0;
  }
  ++batches_since_keyframe_;
  bytes_since_keyframe_ += batch.payload.size();
  batch.keyframe = keyframe_;
  newest_ = {batch.keyframe, batch.host, batch.t1, batch.wall1};
  waiting_.push_back(std::move(batch));
  return absl::OkStatus();
}

// What was encoded cannot be decoded without what is now lost.
void Writer::LoseWaiting() {
  for (const Batch& batch : waiting_) lost_ += batch.snapshots;
  waiting_.clear();
  want_keyframe_ = true;
}

absl::Status Writer::Commit() {
  const absl::Status encoded = EncodePending();
  if (waiting_.empty() && changed_incidents_.empty() && clocks_.empty()) return encoded;
  size_t dropped_groups = 0;
  absl::Status status = WriteAll(&dropped_groups);
  if (absl::IsResourceExhausted(status)) {
    // The journal takes room too: bring it home and try once more.
    Rollback();
    dropped_groups = 0;
    (void)Execute(db_.get(), "PRAGMA wal_checkpoint(TRUNCATE)");
    status = WriteAll(&dropped_groups);
  }
  if (!status.ok()) {
    Rollback();
    if (absl::IsUnavailable(status) && waiting_.size() < kMaxWaitingBatches) return encoded;
    LoseWaiting();
    return status;
  }
  for (size_t i = 0; i < dropped_groups && !groups_.empty(); ++i) groups_.pop_front();
  for (const Batch& batch : waiting_) {
    bytes_written_ += batch.payload.size();
    if (groups_.empty() || groups_.back().keyframe != batch.keyframe) {
      groups_.push_back({batch.keyframe});
    }
    groups_.back() = {batch.keyframe, batch.host, batch.t1, batch.wall1};
  }
  waiting_.clear();
  changed_incidents_.clear();
  clocks_.clear();
  if (!hosts_.empty()) stored_hosts_ = hosts_.back().id;
  if (dropped_groups > 0) return Execute(db_.get(), "PRAGMA incremental_vacuum;");
  return encoded;
}

// Valid until the writer is gone. Reset after each Run().
absl::StatusOr<Statement*> Writer::Prepared(const char* sql) {
  auto known = statements_.find(sql);
  if (known == statements_.end()) {
    absl::StatusOr<Statement> statement = Statement::Prepare(db_.get(), sql);
    if (!statement.ok()) return statement.status();
    known = statements_.emplace(sql, *std::move(statement)).first;
  }
  return &known->second;
}

absl::Status Writer::RunPrepared(const char* sql) {
  absl::StatusOr<Statement*> statement = Prepared(sql);
  return statement.ok() ? (*statement)->Run() : statement.status();
}

absl::Status Writer::WriteAll(size_t* dropped_groups) {
  RETURN_IF_ERROR(RunPrepared("BEGIN IMMEDIATE"));
  for (const Host& host : hosts_) {
    if (host.id <= stored_hosts_) continue;
    absl::StatusOr<Statement*> insert = Prepared("INSERT INTO host VALUES(?1, ?2, ?3)");
    if (!insert.ok()) return insert.status();
    (*insert)->Bind(1, host.id);
    (*insert)->BindText(2, host.name);
    (*insert)->BindText(3, host.host_id);
    RETURN_IF_ERROR((*insert)->Run());
  }
  absl::StatusOr<Statement*> insert =
      Prepared("INSERT INTO batch VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)");
  if (!insert.ok()) return insert.status();
  for (const Batch& batch : waiting_) {
    const auto crc = crc32(0, reinterpret_cast<const Bytef*>(batch.payload.data()),
                           static_cast<uInt>(batch.payload.size()));
    const int64_t numbers[] = {batch.id,
                               batch.keyframe,
                               batch.host,
                               Signed(batch.t0),
                               Signed(batch.t1),
                               Signed(batch.wall0),
                               Signed(batch.wall1),
                               Signed(batch.snapshots),
                               Signed(batch.raw_bytes),
                               static_cast<int64_t>(crc)};
    for (int i = 0; i < 10; ++i) (*insert)->Bind(i + 1, numbers[i]);
    (*insert)->BindBlob(11, batch.payload);
    RETURN_IF_ERROR((*insert)->Run());
  }
  for (const auto& [id, json] : changed_incidents_) {
    absl::StatusOr<Statement*> put = Prepared("INSERT OR REPLACE INTO incident VALUES(?1, ?2)");
    if (!put.ok()) return put.status();
    (*put)->Bind(1, Signed(id));
    (*put)->BindText(2, json);
    RETURN_IF_ERROR((*put)->Run());
  }
  for (const auto& [host, text] : clocks_) {
    absl::StatusOr<Statement*> put = Prepared("INSERT OR REPLACE INTO meta VALUES(?1, ?2)");
    if (!put.ok()) return put.status();
    const std::string key = store_internal::kClockPrefix + host;  // must outlive Run
    (*put)->BindText(1, key);
    (*put)->BindText(2, text);
    RETURN_IF_ERROR((*put)->Run());
  }
  if (lost_ > 0) {
    absl::StatusOr<Statement*> update =
        Prepared("UPDATE meta SET value=?1 WHERE key='snapshots_lost'");
    if (!update.ok()) return update.status();
    (*update)->Bind(1, Signed(lost_stored_ + lost_));
    RETURN_IF_ERROR((*update)->Run());
  }
  RETURN_IF_ERROR(DropOld(groups_, dropped_groups));
  return RunPrepared("COMMIT");
}

bool Writer::TooOld(const Group& group) const {
  if (options_.max_age_ns == 0) return false;
  // Monotonic clocks compare within one boot of one host; else the wall clock.
  const bool same = group.host == newest_.host;
  const uint64_t then = same ? group.t1 : group.wall1;
  const uint64_t now = same ? newest_.t1 : newest_.wall1;
  return now > then && now - then > options_.max_age_ns;
}

absl::Status Writer::DropOld(std::deque<Group> groups, size_t* dropped) {
  sqlite3* const db = db_.get();
  // The group that is still written to stays.
  while (!groups.empty() && groups.front().keyframe != keyframe_) {
    bool drop = TooOld(groups.front());
    if (!drop && options_.max_bytes != 0) {
      absl::StatusOr<int64_t> bytes =
          QueryInt(db,
                   "SELECT (page_count - freelist_count) * page_size "
                   "FROM pragma_page_count, pragma_freelist_count, pragma_page_size");
      if (!bytes.ok()) return bytes.status();
      drop = static_cast<uint64_t>(*bytes) > options_.max_bytes;
    }
    if (!drop) break;
    const int64_t end = groups.size() > 1 ? groups[1].keyframe : keyframe_;
    absl::StatusOr<Statement> remove = Statement::Prepare(db, "DELETE FROM batch WHERE id < ?1");
    if (!remove.ok()) return remove.status();
    remove->Bind(1, end);
    RETURN_IF_ERROR(remove->Run());
    groups.pop_front();
    ++*dropped;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<RecordingWriter>> RecordingWriter::Create(
    const std::string& path, const RecordingOptions& options) {
  return Writer::Create(path, options);
}

}  // namespace mycroft
