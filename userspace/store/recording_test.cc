// SPDX-License-Identifier: Apache-2.0
//
// Some of these need root (a small tmpfs, a read-only mount); without it they are
// skipped and say so.
#include "userspace/store/recording.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sqlite3.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <limits>

#include "userspace/report/testing/synthetic_job.h"
#include "userspace/store/incident_json.h"
#include "userspace/report/testing/random_snapshot.h"

namespace mycroft {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

std::string Message(const absl::Status& status) { return std::string(status.message()); }

class RecordingTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "mycroft-recording-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    dir_ = name;
    path_ = dir_ / "job.mycroft";
  }
  void TearDown() override {
    if (mounted_) umount2(dir_.c_str(), MNT_DETACH);
    fs::remove_all(dir_);
  }

  std::unique_ptr<RecordingWriter> Create(RecordingOptions options = {}) {
    auto writer = RecordingWriter::Create(path_, options);
    EXPECT_TRUE(writer.ok()) << writer.status();
    return writer.ok() ? *std::move(writer) : nullptr;
  }

  static std::vector<Snapshot> Job(double seconds, SyntheticOptions options = {}) {
    options.duration_s = seconds;
    SyntheticJob job(options);
    std::vector<Snapshot> snapshots;
    for (auto next = job.Next(); next.ok() && *next; next = job.Next()) {
      snapshots.push_back(**std::move(next));
    }
    return snapshots;
  }

  void Write(const std::vector<Snapshot>& snapshots, RecordingOptions options = {}) {
    auto writer = Create(options);
    ASSERT_NE(writer, nullptr);
    for (const Snapshot& snapshot : snapshots) ASSERT_TRUE(writer->Append(snapshot).ok());
    EXPECT_TRUE(writer->Flush().ok());
  }

  static std::vector<Snapshot> ReadAll(RecordingReader& reader) {
    std::vector<Snapshot> snapshots;
    while (true) {
      auto next = reader.Next();
      EXPECT_TRUE(next.ok()) << next.status();
      if (!next.ok() || !*next) return snapshots;
      snapshots.push_back(**std::move(next));
    }
  }

  std::unique_ptr<RecordingReader> Open() {
    auto reader = RecordingReader::Open(path_);
    EXPECT_TRUE(reader.ok()) << reader.status();
    return reader.ok() ? *std::move(reader) : nullptr;
  }

  void Sql(const std::string& sql) {
    sqlite3* db = nullptr;
    ASSERT_EQ(sqlite3_open(path_.c_str(), &db), SQLITE_OK);
    ASSERT_EQ(sqlite3_exec(db, sql.c_str(), nullptr, nullptr, nullptr), SQLITE_OK)
        << sqlite3_errmsg(db);
    sqlite3_close(db);
  }

  bool MountSmallDisk(const char* options) {
    mounted_ = mount("tmpfs", dir_.c_str(), "tmpfs", 0, options) == 0;
    return mounted_;
  }

  fs::path dir_, path_;
  bool mounted_ = false;
};

Incident AnIncident(uint64_t id) {
  Incident incident;
  incident.id = id;
  incident.kind = IncidentKind::kMismatch;
  incident.onset_ns = UINT64_MAX;
  incident.detected_ns = 2;
  incident.verdict_ns = 3;
  incident.cleared_ns = 0;
  incident.comm_id = 0xfedcba9876543210;
  incident.comm_name = "w\xff\x01rld";
  incident.summary = "all wait for \"rank 1\"\n</script>";
  Culprit culprit;
  culprit.rank = -1;
  culprit.host = "node";
  culprit.pid = UINT32_MAX;
  culprit.component = Component::kUnknown;
  culprit.candidates = {Component::kCcl, Component::kApp};
  culprit.confidence = 0.1 + 0.2;
  culprit.gpu_seconds_lost = std::numeric_limits<double>::infinity();
  culprit.where = "channel 1";
  culprit.comms = {{1, "a", INT32_MIN, INT32_MAX}, {2, "", 0, 0}};
  incident.culprits = {culprit, Culprit()};
  incident.victims = {3, -1, 2};
  incident.chain = {{0, 1, "because"}, {}};
  incident.evidence = {"", "one"};
  incident.rejected = {{"suspect", "reason"}};
  return incident;
}

TEST_F(RecordingTest, WhatWasAppendedIsRead) {
  SyntheticOptions options;
  options.stuck_rank = 1;
  options.stuck_at_s = 2;
  const std::vector<Snapshot> snapshots = Job(5, options);
  {
    auto writer = Create();
    ASSERT_NE(writer, nullptr);
    for (const Snapshot& snapshot : snapshots) ASSERT_TRUE(writer->Append(snapshot).ok());
    ASSERT_TRUE(writer->PutIncident(AnIncident(1)).ok());
    ASSERT_TRUE(writer->PutIncident(AnIncident(2)).ok());
    Incident changed = AnIncident(1);
    changed.cleared_ns.reset();
    ASSERT_TRUE(writer->PutIncident(changed).ok());
    EXPECT_EQ(writer->snapshots_lost(), 0u);
  }
  EXPECT_FALSE(fs::exists(path_.string() + "-lock"));
  EXPECT_FALSE(fs::exists(path_.string() + "-wal"));  // one file that can be sent
  auto reader = Open();
  ASSERT_NE(reader, nullptr);
  EXPECT_TRUE(ReadAll(*reader) == snapshots);
  reader->Rewind();
  EXPECT_TRUE(ReadAll(*reader) == snapshots);
  const RecordingInfo& info = reader->info();
  EXPECT_EQ(info.schema_version, kRecordingSchemaVersion);
  EXPECT_EQ(info.created_by, "mycroft " MYCROFT_VERSION);
  EXPECT_EQ(info.hosts, std::vector<std::string>{"node-0"});
  EXPECT_EQ(info.first_ns, snapshots.front().t_ns);
  EXPECT_EQ(info.last_ns, snapshots.back().t_ns);
  EXPECT_EQ(info.first_wall_ns, snapshots.front().wall_ns);
  EXPECT_EQ(info.last_wall_ns, snapshots.back().wall_ns);
  EXPECT_EQ(info.snapshots, snapshots.size());
  EXPECT_EQ(info.snapshots_lost, 0u);
  EXPECT_GT(info.payload_bytes, 0u);
  EXPECT_FALSE(info.truncated) << info.problem;
  auto incidents = reader->ReadIncidents();
  ASSERT_TRUE(incidents.ok()) << incidents.status();
  Incident first = AnIncident(1);
  first.cleared_ns.reset();
  EXPECT_EQ(*incidents, (std::vector<Incident>{first, AnIncident(2)}));
}

TEST_F(RecordingTest, AnySnapshotIsRead) {
  RandomSnapshot random(11);
  std::vector<Snapshot> snapshots;
  for (int i = 0; i < 400; ++i) snapshots.push_back(random.Next());
  RecordingOptions options;
  options.max_age_ns = 0;  // their clocks are random too
  Write(snapshots, options);
  auto reader = Open();
  ASSERT_NE(reader, nullptr);
  EXPECT_TRUE(ReadAll(*reader) == snapshots);
  EXPECT_FALSE(reader->info().truncated) << reader->info().problem;
}

TEST_F(RecordingTest, SeveralHostsKeepTheirOrder) {
  SyntheticOptions options;
  options.ranks = 6;
  options.ranks_per_host = 2;
  const std::vector<Snapshot> snapshots = Job(3, options);
  Write(snapshots);
  auto reader = Open();
  ASSERT_NE(reader, nullptr);
  EXPECT_EQ(reader->info().hosts, (std::vector<std::string>{"node-0", "node-1", "node-2"}));
  EXPECT_EQ(reader->info().first_ns, snapshots[0].t_ns);
  EXPECT_TRUE(ReadAll(*reader) == snapshots);
}

TEST_F(RecordingTest, ReaderFollowsWriter) {
  const std::vector<Snapshot> snapshots = Job(5);
  auto writer = Create();
  ASSERT_NE(writer, nullptr);
  auto reader = Open();
  ASSERT_NE(reader, nullptr);
  std::vector<Snapshot> read;
  for (const Snapshot& snapshot : snapshots) {
    ASSERT_TRUE(writer->Append(snapshot).ok());
    for (Snapshot& got : ReadAll(*reader)) read.push_back(std::move(got));
    // Each second is committed as it ends.
    EXPECT_LE(snapshot.t_ns - (read.empty() ? snapshots[0].t_ns : read.back().t_ns),
              1'000'000'000u);
  }
  ASSERT_TRUE(writer->Flush().ok());
  for (Snapshot& got : ReadAll(*reader)) read.push_back(std::move(got));
  EXPECT_TRUE(read == snapshots);
  EXPECT_EQ(reader->info().last_ns, snapshots.back().t_ns);
}

TEST_F(RecordingTest, TwoWriters) {
  auto writer = Create();
  ASSERT_NE(writer, nullptr);
  for (bool append : {false, true}) {
    RecordingOptions options;
    options.append = append;
    const absl::Status status = RecordingWriter::Create(path_, options).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_THAT(Message(status),
                HasSubstr("another mycroft agent (pid " + std::to_string(getpid()) + ") writes " +
                          path_.string()));
  }
  writer.reset();
  RecordingOptions options;
  options.append = true;
  EXPECT_NE(Create(options), nullptr);
}

TEST_F(RecordingTest, AppendContinues) {
  const std::vector<Snapshot> snapshots = Job(4);
  const std::vector<Snapshot> first(snapshots.begin(), snapshots.begin() + 23);
  const std::vector<Snapshot> second(snapshots.begin() + 23, snapshots.end());
  Write(first);
  const absl::Status status = RecordingWriter::Create(path_).status();
  EXPECT_TRUE(absl::IsAlreadyExists(status)) << status;
  EXPECT_FALSE(fs::exists(path_.string() + "-lock"));
  RecordingOptions options;
  options.append = true;
  Write(second, options);
  auto reader = Open();
  ASSERT_NE(reader, nullptr);
  EXPECT_TRUE(ReadAll(*reader) == snapshots);
  EXPECT_EQ(reader->info().hosts.size(), 1u);
}

TEST_F(RecordingTest, AppendToSomethingElse) {
  RecordingOptions options;
  options.append = true;
  std::ofstream(path_) << "some text that is long enough to be looked at by everyone involved\n";
  absl::Status status = RecordingWriter::Create(path_, options).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(Message(status), HasSubstr("not a recording"));
  fs::remove(path_);
  Sql("CREATE TABLE t(x)");
  status = RecordingWriter::Create(path_, options).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  fs::remove(path_);
  Write(Job(1));
  Sql("PRAGMA user_version=7");
  status = RecordingWriter::Create(path_, options).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(Message(status), HasSubstr("schema version 7, this program writes 1"));
}

TEST_F(RecordingTest, NoPlaceToWrite) {
  absl::Status status = RecordingWriter::Create(dir_ / "none" / "x").status();
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  status = RecordingWriter::Create(dir_).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(Message(status), HasSubstr("not a regular file"));
  status = RecordingWriter::Create("/proc/self/recording").status();
  EXPECT_FALSE(status.ok());
}

TEST_F(RecordingTest, NotARecording) {
  EXPECT_TRUE(absl::IsNotFound(RecordingReader::Open(path_).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(RecordingReader::Open(dir_).status()));
  std::ofstream(path_).close();
  absl::Status status = RecordingReader::Open(path_).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(Message(status), HasSubstr("is empty"));
  std::ofstream(path_) << "{\"traceEvents\":[]}\n";
  status = RecordingReader::Open(path_).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(Message(status), HasSubstr("not a recording"));
  fs::remove(path_);
  Sql("CREATE TABLE batch(x)");
  status = RecordingReader::Open(path_).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(Message(status), HasSubstr("another program"));
}

TEST_F(RecordingTest, OtherTablesAreRefused) {
  Write(Job(1));
  // A view could run for ever.
  Sql("DROP TABLE incident; CREATE VIEW incident AS WITH RECURSIVE r(id) AS (VALUES(1) UNION ALL "
      "SELECT id+1 FROM r) SELECT id, '' AS json FROM r");
  const absl::Status status = RecordingReader::Open(path_).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(Message(status), HasSubstr("table incident is missing"));
}

TEST_F(RecordingTest, NewerSchema) {
  Write(Job(1));
  Sql("PRAGMA user_version=9");
  const absl::Status status = RecordingReader::Open(path_).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(Message(status), HasSubstr("schema version 9, this program reads up to 1"));
}

TEST_F(RecordingTest, OddNames) {
  path_ = dir_ / "a b%20c#d?e=f.mycroft";
  const std::vector<Snapshot> snapshots = Job(1);
  Write(snapshots);
  EXPECT_TRUE(fs::exists(path_));
  auto reader = Open();
  ASSERT_NE(reader, nullptr);
  EXPECT_TRUE(ReadAll(*reader) == snapshots);
}

TEST_F(RecordingTest, RetentionByAge) {
  SyntheticOptions job;
  job.ranks = 2;
  const std::vector<Snapshot> snapshots = Job(150, job);
  RecordingOptions options;
  options.max_age_ns = 60'000'000'000;
  Write(snapshots, options);
  auto reader = Open();
  ASSERT_NE(reader, nullptr);
  const std::vector<Snapshot> kept = ReadAll(*reader);
  ASSERT_FALSE(kept.empty());
  // Whole groups of 30 s go, and none that is young enough.
  EXPECT_LE(kept.front().t_ns + 59'000'000'000, snapshots.back().t_ns);
  EXPECT_GE(kept.front().t_ns + 92'000'000'000, snapshots.back().t_ns);
  EXPECT_TRUE(std::equal(kept.begin(), kept.end(), snapshots.end() - kept.size()));
  EXPECT_FALSE(reader->info().truncated) << reader->info().problem;
  EXPECT_EQ(reader->info().first_ns, kept.front().t_ns);
}

TEST_F(RecordingTest, RetentionBySize) {
  SyntheticOptions job;
  job.ranks = 2;
  const std::vector<Snapshot> snapshots = Job(120, job);
  RecordingOptions options;
  options.max_bytes = 160 << 10;
  Write(snapshots, options);
  EXPECT_LE(fs::file_size(path_), options.max_bytes + (40 << 10));
  auto reader = Open();
  ASSERT_NE(reader, nullptr);
  const std::vector<Snapshot> kept = ReadAll(*reader);
  ASSERT_GT(kept.size(), 100u);
  ASSERT_LT(kept.size(), snapshots.size());
  EXPECT_TRUE(std::equal(kept.begin(), kept.end(), snapshots.end() - kept.size()));
}

TEST_F(RecordingTest, RetentionUnderAReader) {
  SyntheticOptions job;
  job.ranks = 1;
  job.pairs = false;
  const std::vector<Snapshot> snapshots = Job(150, job);
  RecordingOptions options;
  options.max_age_ns = 20'000'000'000;
  auto writer = Create(options);
  ASSERT_NE(writer, nullptr);
  for (int i = 0; i < 300; ++i) ASSERT_TRUE(writer->Append(snapshots[i]).ok());
  auto reader = Open();
  ASSERT_NE(reader, nullptr);
  EXPECT_TRUE(**reader->Next() == snapshots[0]);
  for (size_t i = 300; i < snapshots.size(); ++i) ASSERT_TRUE(writer->Append(snapshots[i]).ok());
  ASSERT_TRUE(writer->Flush().ok());
  const std::vector<Snapshot> rest = ReadAll(*reader);
  ASSERT_FALSE(rest.empty());
  EXPECT_TRUE(rest.back() == snapshots.back());
  EXPECT_FALSE(reader->info().truncated) << reader->info().problem;
}

// A writer that is killed at any moment: the file opens, and what was appended a
// second ago is there.
TEST_F(RecordingTest, KilledWriter) {
  const std::vector<Snapshot> snapshots = Job(20);
  for (int round = 0; round < 8; ++round) {
    for (const char* suffix : {"", "-wal", "-shm"}) fs::remove(path_.string() + suffix);
    int pipe_fds[2];
    ASSERT_EQ(pipe(pipe_fds), 0);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      auto writer = RecordingWriter::Create(path_);
      if (!writer.ok()) _exit(1);
      for (uint32_t i = 0; i < snapshots.size(); ++i) {
        if (!(*writer)->Append(snapshots[i]).ok()) _exit(2);
        if (write(pipe_fds[1], &i, sizeof i) != sizeof i) _exit(3);
      }
      for (;;) pause();
    }
    close(pipe_fds[1]);
    uint32_t appended = 0;
    const uint32_t until = 25 + 21 * static_cast<uint32_t>(round);
    while (appended < until && read(pipe_fds[0], &appended, sizeof appended) == sizeof appended) {
    }
    kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << WEXITSTATUS(status);
    uint32_t last = appended;
    while (read(pipe_fds[0], &last, sizeof last) == sizeof last) appended = last;
    close(pipe_fds[0]);

    auto reader = Open();
    ASSERT_NE(reader, nullptr);
    const std::vector<Snapshot> read = ReadAll(*reader);
    ASSERT_FALSE(read.empty());
    EXPECT_TRUE(std::equal(read.begin(), read.end(), snapshots.begin()));
    EXPECT_LE(snapshots[appended].t_ns - read.back().t_ns, 1'000'000'000u);
    EXPECT_FALSE(reader->info().truncated) << reader->info().problem;
    // The next agent may go on where this one was.
    RecordingOptions options;
    options.append = true;
    auto writer = Create(options);
    ASSERT_NE(writer, nullptr);
    EXPECT_TRUE(writer->Append(snapshots.back()).ok());
  }
}

void FillDisk(RecordingWriter& writer, const std::vector<Snapshot>& snapshots, size_t* at,
              absl::Status* status) {
  for (; *at < snapshots.size(); ++*at) {
    *status = writer.Append(snapshots[*at]);
    if (!status->ok()) return;
  }
}

TEST_F(RecordingTest, DiskFull) {
  if (!MountSmallDisk("size=2m")) GTEST_SKIP() << "NOT TESTED: needs root to mount a tmpfs";
  const std::vector<Snapshot> snapshots = Job(30);
  auto writer = Create();
  ASSERT_NE(writer, nullptr);
  size_t at = 0;
  for (; at < 100; ++at) ASSERT_TRUE(writer->Append(snapshots[at]).ok());
  {
    std::ofstream ballast(dir_ / "ballast");
    while (ballast << std::string(4096, 'x') << std::flush) {
    }
  }
  absl::Status status;
  FillDisk(*writer, snapshots, &at, &status);
  ASSERT_TRUE(absl::IsResourceExhausted(status)) << status;
  const uint64_t lost = writer->snapshots_lost();
  EXPECT_GT(lost, 0u);
  // It goes on: each second is tried again, and lost again.
  for (int i = 0; i < 20; ++i) (void)writer->Append(snapshots[++at]);
  EXPECT_EQ(writer->snapshots_lost(), lost + 20);
  {
    auto reader = Open();
    ASSERT_NE(reader, nullptr);
    const std::vector<Snapshot> read = ReadAll(*reader);
    EXPECT_GE(read.size(), 100u);
    EXPECT_TRUE(std::equal(read.begin(), read.end(), snapshots.begin()));
  }
  // With room again, recording goes on.
  fs::remove(dir_ / "ballast");
  const size_t resumed = at + 1;
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(writer->Append(snapshots[++at]).ok());
  EXPECT_EQ(writer->snapshots_lost(), lost + 20);
  writer.reset();
  auto reader = Open();
  ASSERT_NE(reader, nullptr);
  const std::vector<Snapshot> read = ReadAll(*reader);
  EXPECT_FALSE(reader->info().truncated) << reader->info().problem;
  EXPECT_EQ(reader->info().snapshots_lost, lost + 20);
  EXPECT_EQ(read.size(), resumed - (lost + 20) + 20);
  ASSERT_GE(read.size(), 20u);
  EXPECT_TRUE(std::equal(read.end() - 20, read.end(), snapshots.begin() + resumed));
}

// The same by a limit on the size of files, which needs no root.
TEST_F(RecordingTest, FileSizeLimit) {
  const std::vector<Snapshot> snapshots = Job(60);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    signal(SIGXFSZ, SIG_IGN);
    auto writer = RecordingWriter::Create(path_);
    if (!writer.ok()) _exit(1);
    const rlimit limit = {80 << 10, 80 << 10};
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) _exit(2);
    size_t at = 0;
    absl::Status status;
    FillDisk(**writer, snapshots, &at, &status);
    if (!absl::IsResourceExhausted(status)) {
      std::cerr << status << std::endl;
      _exit(3);
    }
    if ((*writer)->snapshots_lost() == 0) _exit(4);
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  ASSERT_EQ(WEXITSTATUS(status), 0);
  auto reader = Open();
  ASSERT_NE(reader, nullptr);
  const std::vector<Snapshot> read = ReadAll(*reader);
  EXPECT_GT(read.size(), 20u);
  EXPECT_TRUE(std::equal(read.begin(), read.end(), snapshots.begin()));
}

TEST_F(RecordingTest, BlockedByAnotherProgram) {
  const std::vector<Snapshot> snapshots = Job(4);
  auto writer = Create();
  ASSERT_NE(writer, nullptr);
  sqlite3* other = nullptr;
  ASSERT_EQ(sqlite3_open(path_.c_str(), &other), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(other, "BEGIN IMMEDIATE", nullptr, nullptr, nullptr), SQLITE_OK);
  size_t at = 0;
  for (; at < 15; ++at) EXPECT_TRUE(writer->Append(snapshots[at]).ok());
  ASSERT_EQ(sqlite3_exec(other, "ROLLBACK", nullptr, nullptr, nullptr), SQLITE_OK);
  sqlite3_close(other);
  for (; at < snapshots.size(); ++at) EXPECT_TRUE(writer->Append(snapshots[at]).ok());
  writer.reset();
  auto reader = Open();
  ASSERT_NE(reader, nullptr);
  EXPECT_TRUE(ReadAll(*reader) == snapshots);  // it only came later
}

TEST_F(RecordingTest, ReadOnlyMedia) {
  const std::vector<Snapshot> snapshots = Job(3);
  if (!MountSmallDisk("size=8m")) GTEST_SKIP() << "NOT TESTED: needs root to mount a tmpfs";
  Write(snapshots);
  ASSERT_EQ(mount(nullptr, dir_.c_str(), nullptr, MS_REMOUNT | MS_RDONLY, "size=8m"), 0);
  {
    auto reader = Open();
    ASSERT_NE(reader, nullptr);
    EXPECT_TRUE(ReadAll(*reader) == snapshots);
    EXPECT_FALSE(reader->info().truncated) << reader->info().problem;
    const absl::Status status = RecordingWriter::Create(dir_ / "new").status();
    EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
  }
}

TEST_F(RecordingTest, ReadOnlyMediaWithJournal) {
  const std::vector<Snapshot> snapshots = Job(3);
  if (!MountSmallDisk("size=8m")) GTEST_SKIP() << "NOT TESTED: needs root to mount a tmpfs";
  const pid_t child = fork();
  if (child == 0) {
    auto writer = RecordingWriter::Create(path_);
    for (const Snapshot& snapshot : snapshots) (void)(*writer)->Append(snapshot);
    _exit(0);  // as if killed: the journal stays
  }
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  fs::remove(path_.string() + "-shm");
  ASSERT_GT(fs::file_size(path_.string() + "-wal"), 0u);
  ASSERT_EQ(mount(nullptr, dir_.c_str(), nullptr, MS_REMOUNT | MS_RDONLY, "size=8m"), 0);
  auto reader = RecordingReader::Open(path_);
  ASSERT_TRUE(reader.ok()) << reader.status();
  const std::vector<Snapshot> read = ReadAll(**reader);
  EXPECT_TRUE(std::equal(read.begin(), read.end(), snapshots.begin()));
  if (read.size() < snapshots.size()) {
    EXPECT_TRUE((*reader)->info().truncated);
    EXPECT_THAT((*reader)->info().problem, HasSubstr("-wal"));
  }
}

std::string Slurp(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void Spill(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

// Is `part` what is left of `whole` when some are taken out?
bool IsSubsequence(const std::vector<Snapshot>& part, const std::vector<Snapshot>& whole) {
  size_t at = 0;
  for (const Snapshot& snapshot : part) {
    while (at < whole.size() && !(whole[at] == snapshot)) ++at;
    if (at++ == whole.size()) return false;
  }
  return true;
}

TEST_F(RecordingTest, TruncatedAnywhere) {
  SyntheticOptions job;
  job.ranks = 2;
  const std::vector<Snapshot> snapshots = Job(70, job);
  Write(snapshots);
  const std::string whole = Slurp(path_);
  ASSERT_GT(whole.size(), 100'000u);
  std::vector<size_t> sizes;
  for (size_t size = 0; size < 1024; size += 97) sizes.push_back(size);
  for (size_t size = 4096; size < whole.size(); size += whole.size() / 40) sizes.push_back(size);
  for (size_t back : {1, 100, 4096}) sizes.push_back(whole.size() - back);
  size_t most = 0;
  for (const size_t size : sizes) {
    Spill(path_, whole.substr(0, size));
    auto reader = RecordingReader::Open(path_);
    if (!reader.ok()) {
      EXPECT_TRUE(absl::IsDataLoss(reader.status()) || absl::IsInvalidArgument(reader.status()))
          << reader.status();
      EXPECT_LT(size, 64u << 10) << "nothing read of " << size << " bytes: " << reader.status();
      continue;
    }
    const std::vector<Snapshot> read = ReadAll(**reader);
    EXPECT_TRUE(IsSubsequence(read, snapshots)) << size;
    EXPECT_TRUE((*reader)->info().truncated) << size;
    EXPECT_FALSE((*reader)->info().problem.empty());
    (void)(*reader)->ReadIncidents();
    // Most of what is before the end of the file must be there.
    if (size > whole.size() / 2) {
      EXPECT_GT(read.size(), snapshots.size() / 4) << size;
    }
    most = std::max(most, read.size());
  }
  EXPECT_GT(most, snapshots.size() / 2);
}

TEST_F(RecordingTest, BitRot) {
  SyntheticOptions job;
  job.ranks = 1;
  job.pairs = false;
  const std::vector<Snapshot> snapshots = Job(70, job);
  Write(snapshots);
  const std::string whole = Slurp(path_);
  RandomSnapshot random(3);
  size_t read_in_all = 0;
  for (int i = 0; i < 150; ++i) {
    std::string bytes = whole;
    for (uint64_t flips = 1 + random.Below(4); flips > 0; --flips) {
      bytes[random.Below(bytes.size())] ^= static_cast<char>(1 << random.Below(8));
    }
    Spill(path_, bytes);
    auto reader = RecordingReader::Open(path_);
    if (!reader.ok()) continue;
    const std::vector<Snapshot> read = ReadAll(**reader);
    EXPECT_TRUE(IsSubsequence(read, snapshots));
    if (read.size() < snapshots.size()) {
      EXPECT_TRUE((*reader)->info().truncated);
    }
    (void)(*reader)->ReadIncidents();
    read_in_all += read.size();
  }
  // One flipped bit costs at most the 30 s that rest on it.
  EXPECT_GT(read_in_all, 150 * snapshots.size() / 4);
}

TEST(IncidentJson, RoundTrip) {
  for (uint64_t id : {uint64_t{0}, uint64_t{1}, UINT64_MAX}) {
    const Incident incident = AnIncident(id);
    const auto back = IncidentFromJson(IncidentToJson(incident));
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(*back, incident);
  }
}

TEST(IncidentJson, DamagedText) {
  const std::string json = IncidentToJson(AnIncident(1));
  for (size_t size = 0; size < json.size(); ++size) {
    EXPECT_FALSE(IncidentFromJson(json.substr(0, size)).ok());
  }
  for (const char* text :
       {"", "[]", "{}", "1", "{\"id\":-1}", "\xff", "{\"id\":{\"hex\":\"zz\"}}"}) {
    EXPECT_TRUE(absl::IsDataLoss(IncidentFromJson(text).status())) << text;
  }
}

}  // namespace
}  // namespace mycroft
