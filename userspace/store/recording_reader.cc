// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
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

constexpr size_t kMaxClocks = 4096, kMaxClockText = 256;
constexpr char kMagic[16] = {'S', 'Q', 'L', 'i', 't', 'e', ' ', 'f',
                             'o', 'r', 'm', 'a', 't', ' ', '3', '\0'};

class Reader : public RecordingReader {
 public:
  static absl::StatusOr<std::unique_ptr<RecordingReader>> Open(const std::string& path);
  absl::StatusOr<std::optional<Snapshot>> Next() override;
  void Rewind() override;
  const RecordingInfo& info() const override { return info_; }
  absl::StatusOr<std::vector<Incident>> ReadIncidents() override;

 private:
  struct Batch {
    int64_t id = 0, keyframe = 0, host = 0;
    uint64_t t0 = 0, t1 = 0, wall0 = 0, wall1 = 0, snapshots = 0, bytes = 0;
  };

  explicit Reader(std::string path) : path_(std::move(path)) {}
  absl::Status OpenFile();
  absl::Status TryOpen(const std::string& uri_options);
  absl::Status CheckTables();
  absl::Status ReadInfo();
  void ReadHosts();
  // Batches after the last one known; false when the table is damaged.
  bool ReadBatches();
  absl::Status Damaged(const std::string& what);
  // Decodes the next readable batch into ready_; false at the end.
  bool ReadNextBatch();
  bool Decode(const Batch& batch);

  std::string path_;
  Database db_;
  RecordingInfo info_;
  std::vector<Batch> batches_;
  size_t next_batch_ = 0;
  int64_t skip_keyframe_ = 0;  // batches of this group cannot be decoded
  SnapshotDecoder decoder_;
  std::deque<Snapshot> ready_;
};

absl::StatusOr<std::unique_ptr<RecordingReader>> Reader::Open(const std::string& path) {
  std::unique_ptr<Reader> reader(new Reader(path));
  if (absl::Status status = reader->OpenFile(); !status.ok()) return status;
  if (absl::Status status = reader->CheckTables(); !status.ok()) return status;
  if (absl::Status status = reader->ReadInfo(); !status.ok()) return status;
  return std::unique_ptr<RecordingReader>(std::move(reader));
}

absl::Status Reader::OpenFile() {
  // A look at the file itself: SQLite's words for these cases help nobody.
  struct stat info;
  if (stat(path_.c_str(), &info) == 0 && !S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(path_ + " is not a recording: not a regular file");
  }
  const int fd = open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    const std::string text = path_ + ": " + std::strerror(errno);
    if (errno == ENOENT || errno == ENOTDIR) return absl::NotFoundError(text);
    if (errno == EACCES || errno == EPERM) return absl::PermissionDeniedError(text);
    return absl::UnavailableError(text);
  }
  uint8_t header[100] = {};
  const ssize_t size = pread(fd, header, sizeof header, 0);
  const bool measured = fstat(fd, &info) == 0;
  close(fd);
  if (size == 0) return absl::InvalidArgumentError(path_ + " is not a recording: it is empty");
  if (size < static_cast<ssize_t>(sizeof kMagic) ||
      std::memcmp(header, kMagic, sizeof kMagic) != 0) {
    return absl::InvalidArgumentError(path_ + " is not a recording: not an SQLite file");
  }
  // SQLite notes its size in pages, which holds as long as there is no journal.
  const auto number = [&](int at, int bytes) {
    uint64_t value = 0;
    for (int i = 0; i < bytes; ++i) value = value << 8 | header[at + i];
    return value;
  };
  const uint64_t page_bytes = number(16, 2) == 1 ? 65536 : number(16, 2);
  struct stat journal;
  if (measured && number(24, 4) == number(92, 4) &&
      static_cast<uint64_t>(info.st_size) < page_bytes * number(28, 4) &&
      (stat((path_ + "-wal").c_str(), &journal) != 0 || journal.st_size == 0)) {
    info_.truncated = true;
    info_.problem = "the file ends after " + std::to_string(info.st_size) + " of " +
                    std::to_string(page_bytes * number(28, 4)) + " bytes";
  }
  absl::Status status = TryOpen("");
  if (status.ok() || absl::IsInvalidArgument(status) || absl::IsDataLoss(status)) return status;
  // Read-only folder or media: SQLite cannot make the index of the journal there.
  const absl::Status again = TryOpen("immutable=1");
  if (!again.ok()) return status;
  if (stat((path_ + "-wal").c_str(), &journal) == 0 && journal.st_size > 0) {
    info_.truncated = true;
    info_.problem = path_ +
                    "-wal holds the last part but cannot be read in a read-only folder: copy both "
                    "files to a folder that can be written";
  }
  return absl::OkStatus();
}

absl::Status Reader::TryOpen(const std::string& uri_options) {
  absl::StatusOr<Database> db = OpenDatabase(path_, SQLITE_OPEN_READONLY, uri_options);
  if (!db.ok()) return db.status();
  sqlite3_limit(db->get(), SQLITE_LIMIT_LENGTH, store_internal::kMaxPayloadBytes + 4096);
  // A file from somewhere else must not run functions of its own. writable_schema
  // is how SQLite reads a file that is shorter than its header says; nothing is
  // written on this connection.
  absl::Status status =
      Execute(db->get(),
              "PRAGMA trusted_schema=OFF; PRAGMA cell_size_check=ON; PRAGMA mmap_size=0;"
              "PRAGMA writable_schema=ON; PRAGMA query_only=ON;");
  if (!status.ok()) return status;
  if (absl::StatusOr<int64_t> version = QueryInt(db->get(), "PRAGMA user_version"); !version.ok()) {
    return version.status();
  }
  db_ = *std::move(db);
  return absl::OkStatus();
}

absl::Status Reader::CheckTables() {
  const absl::StatusOr<int64_t> application = QueryInt(db_.get(), "PRAGMA application_id");
  const absl::StatusOr<int64_t> version = QueryInt(db_.get(), "PRAGMA user_version");
  if (!application.ok()) return application.status();
  if (!version.ok()) return version.status();
  if (*application != store_internal::kApplicationId) {
    return absl::InvalidArgumentError(path_ +
                                      " is not a recording: an SQLite file of another "
                                      "program");
  }
  info_.schema_version = static_cast<int>(*version);
  if (*version > kRecordingSchemaVersion) {
    return absl::InvalidArgumentError(
        path_ + " has schema version " + std::to_string(*version) + ", this program reads up to " +
        std::to_string(kRecordingSchemaVersion) + ": read it with a newer mycroft");
  }
  absl::StatusOr<Statement> sql = Statement::Prepare(
      db_.get(), "SELECT sql FROM sqlite_schema WHERE name = ?1 AND type = 'table'");
  if (!sql.ok()) return Damaged("its list of tables cannot be read");
  for (const store_internal::Table& table : store_internal::kTables) {
    const std::string name = table.name;
    sql->BindText(1, name);
    const int code = sql->Step();
    if (code != SQLITE_ROW && code != SQLITE_DONE) {
      return Damaged("its list of tables cannot be read");
    }
    if (code == SQLITE_DONE || sql->Text(0) != table.sql) {
      return absl::InvalidArgumentError(path_ + " is not a recording of schema version " +
                                        std::to_string(*version) + ": table " + name +
                                        (code == SQLITE_DONE ? " is missing" : " is another one"));
    }
    sql->Reset();
  }
  return absl::OkStatus();
}

absl::Status Reader::Damaged(const std::string& what) {
  return absl::DataLossError(path_ + " is damaged: " + what);
}

absl::Status Reader::ReadInfo() {
  const auto note = [&](const std::string& problem) {
    info_.truncated = true;
    if (info_.problem.empty()) info_.problem = problem;
  };
  if (absl::StatusOr<Statement> meta = Statement::Prepare(db_.get(), "SELECT key, value FROM meta");
      meta.ok()) {
    int code = SQLITE_ROW;
    while ((code = meta->Step()) == SQLITE_ROW) {
      if (meta->Text(0) == "created_by") info_.created_by = meta->Text(1);
      if (meta->Text(0).rfind(store_internal::kClockPrefix, 0) == 0 &&
          info_.clocks.size() < kMaxClocks) {
        info_.clocks.push_back(meta->Text(1).substr(0, kMaxClockText));
      }
      if (meta->Text(0) == "snapshots_lost") {
        info_.snapshots_lost = static_cast<uint64_t>(meta->Int(1));
      }
    }
    if (code != SQLITE_DONE) note("the table of properties is damaged");
  }
  ReadHosts();
  if (ReadBatches()) return absl::OkStatus();
  // What lies behind the damage may still be reached from the other end.
  const int64_t last = batches_.empty() ? 0 : batches_.back().id;
  const size_t known = batches_.size();
  std::vector<Batch> tail;
  if (absl::StatusOr<Statement> rows = Statement::Prepare(
          db_.get(),
          "SELECT id, keyframe, host, t0_ns, t1_ns, wall0_ns, wall1_ns, snapshots, "
          "length(payload) FROM batch WHERE id > ?1 ORDER BY id DESC");
      rows.ok()) {
    rows->Bind(1, last);
    while (rows->Step() == SQLITE_ROW) {
      Batch batch;
      batch.id = rows->Int(0);
      batch.keyframe = rows->Int(1);
      batch.host = rows->Int(2);
      if (!tail.empty() && batch.id >= tail.back().id) break;
      tail.push_back(batch);
    }
  }
  std::reverse(tail.begin(), tail.end());
  batches_.insert(batches_.end(), tail.begin(), tail.end());
  note(known == 0 ? "the table of batches is damaged at its start"
                  : "the table of batches is damaged after batch " + std::to_string(last));
  if (batches_.empty()) return Damaged("no batch of samples can be read");
  return absl::OkStatus();
}

void Reader::ReadHosts() {
  absl::StatusOr<Statement> hosts =
      Statement::Prepare(db_.get(), "SELECT name FROM host ORDER BY id");
  if (!hosts.ok()) return;
  std::vector<std::string> names;
  while (hosts->Step() == SQLITE_ROW) {
    std::string name = hosts->Text(0);
    // A host that was started again has two entries, one per boot.
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  info_.hosts = std::move(names);
}

bool Reader::ReadBatches() {
  absl::StatusOr<Statement> rows = Statement::Prepare(
      db_.get(),
      "SELECT id, keyframe, host, t0_ns, t1_ns, wall0_ns, wall1_ns, snapshots, length(payload) "
      "FROM batch WHERE id > ?1 ORDER BY id");
  if (!rows.ok()) return false;
  rows->Bind(1, batches_.empty() ? 0 : batches_.back().id);
  int code = SQLITE_ROW;
  // Numbers have no gaps but those of batches that could not be written (a full disk). A
  // damaged page may lose rows without an error.
  int64_t before = 0;
  while ((code = rows->Step()) == SQLITE_ROW) {
    const int64_t id = rows->Int(0);
    if (before > 0 && id > before + 1 && info_.snapshots_lost == 0) {
      info_.truncated = true;
      if (info_.problem.empty()) {
        info_.problem = "batches " + std::to_string(before + 1) + " to " + std::to_string(id - 1) +
                        " are missing";
      }
    }
    before = id;
    Batch batch;
    batch.id = rows->Int(0);
    batch.keyframe = rows->Int(1);
    batch.host = rows->Int(2);
    batch.t0 = static_cast<uint64_t>(rows->Int(3));
    batch.t1 = static_cast<uint64_t>(rows->Int(4));
    batch.wall0 = static_cast<uint64_t>(rows->Int(5));
    batch.wall1 = static_cast<uint64_t>(rows->Int(6));
    batch.snapshots = static_cast<uint64_t>(rows->Int(7));
    batch.bytes = static_cast<uint64_t>(rows->Int(8));
    if (!batches_.empty() && batch.id <= batches_.back().id) return false;
    if (batches_.empty()) {
      info_.first_ns = info_.last_ns = batch.t0;
      info_.first_wall_ns = info_.last_wall_ns = batch.wall0;
    }
    batches_.push_back(batch);
    if (batch.host == batches_.front().host) {
      info_.first_ns = std::min(info_.first_ns, batch.t0);
      info_.last_ns = std::max(info_.last_ns, batch.t1);
      info_.first_wall_ns = std::min(info_.first_wall_ns, batch.wall0);
      info_.last_wall_ns = std::max(info_.last_wall_ns, batch.wall1);
    }
    info_.snapshots += batch.snapshots;
    info_.payload_bytes += batch.bytes;
  }
  return code == SQLITE_DONE;
}

bool Reader::ReadNextBatch() {
  for (int attempt = 0; attempt < 2; ++attempt) {
    while (next_batch_ < batches_.size()) {
      const Batch& batch = batches_[next_batch_++];
      if (batch.keyframe == skip_keyframe_ && batch.id != skip_keyframe_) continue;
      if (!Decode(batch)) {
        // Nothing up to the next keyframe can be decoded without this batch.
        decoder_.Reset();
        skip_keyframe_ = batch.keyframe;
      }
      if (!ready_.empty()) return true;
    }
    // A recording that is still being written may have grown.
    if (info_.hosts.empty()) ReadHosts();
    ReadBatches();
  }
  return false;
}

bool Reader::Decode(const Batch& batch) {
  const auto damaged = [&](const std::string& problem) {
    info_.truncated = true;
    if (info_.problem.empty()) {
      info_.problem =
          "batch " + std::to_string(batch.id) + " and those that rest on it: " + problem;
    }
    return false;
  };
  absl::StatusOr<Statement> row =
      Statement::Prepare(db_.get(), "SELECT crc, payload FROM batch WHERE id = ?1");
  if (!row.ok()) return damaged(std::string(row.status().message()));
  row->Bind(1, batch.id);
  const int code = row->Step();
  if (code == SQLITE_DONE) {
    // Dropped meanwhile by retention, which drops the oldest first, or lost.
    absl::StatusOr<Statement> older = Statement::Prepare(db_.get(), "SELECT min(id) FROM batch");
    if (!older.ok() || older->Step() != SQLITE_ROW || older->Int(0) < batch.id) {
      return damaged("it cannot be found any more");
    }
    return false;
  }
  if (code != SQLITE_ROW) return damaged(sqlite3_errstr(code & 0xff));
  const std::string payload = row->Text(1);
  const auto crc =
      crc32(0, reinterpret_cast<const Bytef*>(payload.data()), static_cast<uInt>(payload.size()));
  if (static_cast<int64_t>(crc) != row->Int(0)) return damaged("its checksum is wrong");
  absl::StatusOr<std::vector<Snapshot>> snapshots = decoder_.Decode(payload.data(), payload.size());
  if (!snapshots.ok()) return damaged(std::string(snapshots.status().message()));
  for (Snapshot& snapshot : *snapshots) ready_.push_back(std::move(snapshot));
  return true;
}

absl::StatusOr<std::optional<Snapshot>> Reader::Next() {
  if (ready_.empty() && !ReadNextBatch()) return std::optional<Snapshot>();
  std::optional<Snapshot> snapshot(std::move(ready_.front()));
  ready_.pop_front();
  return snapshot;
}

void Reader::Rewind() {
  ready_.clear();
  decoder_.Reset();
  next_batch_ = 0;
  skip_keyframe_ = 0;
}

absl::StatusOr<std::vector<Incident>> Reader::ReadIncidents() {
  absl::StatusOr<Statement> rows =
      Statement::Prepare(db_.get(), "SELECT json FROM incident ORDER BY id");
  if (!rows.ok()) return rows.status();
  std::vector<Incident> incidents;
  int code = SQLITE_ROW;
  bool good = true;
  while ((code = rows->Step()) == SQLITE_ROW) {
    absl::StatusOr<Incident> incident = IncidentFromJson(rows->Text(0));
    if (incident.ok()) {
      incidents.push_back(*std::move(incident));
    } else {
      good = false;
    }
  }
  if (code != SQLITE_DONE || !good) {
    info_.truncated = true;
    if (info_.problem.empty()) info_.problem = "the table of incidents is damaged";
    if (incidents.empty()) return Damaged("no incident can be read");
  }
  return incidents;
}

}  // namespace

absl::StatusOr<std::unique_ptr<RecordingReader>> RecordingReader::Open(const std::string& path) {
  return Reader::Open(path);
}

}  // namespace mycroft
