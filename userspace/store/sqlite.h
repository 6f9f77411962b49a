// SPDX-License-Identifier: Apache-2.0
//
// The little of SQLite that the store needs, with owners and absl::Status.
// Not thread-safe.
#ifndef MYCROFT_USERSPACE_STORE_SQLITE_H_
#define MYCROFT_USERSPACE_STORE_SQLITE_H_

#include <sqlite3.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace mycroft::store_internal {

struct CloseDatabase {
  void operator()(sqlite3* db) const { sqlite3_close_v2(db); }
};
using Database = std::unique_ptr<sqlite3, CloseDatabase>;

// SQLite's result code as a status: full disk and quota -> ResourceExhausted,
// no access -> PermissionDenied, in use -> Unavailable, damaged -> DataLoss,
// not a database -> InvalidArgument, else Internal. `what` starts the text.
absl::Status ToStatus(sqlite3* db, int code, const std::string& what);

// flags: SQLITE_OPEN_... . `uri_options` is "" or for example "immutable=1".
absl::StatusOr<Database> OpenDatabase(const std::string& path, int flags,
                                      const std::string& uri_options);

absl::Status Execute(sqlite3* db, const char* sql);

// A prepared statement. Indices of columns from 0, of parameters from 1.
class Statement {
 public:
  static absl::StatusOr<Statement> Prepare(sqlite3* db, const char* sql);
  Statement(Statement&&) = default;
  Statement& operator=(Statement&&) = default;

  void Bind(int index, int64_t value) { sqlite3_bind_int64(get(), index, value); }
  // The text or blob must live until the next Reset().
  void BindText(int index, const std::string& value);
  void BindBlob(int index, const std::string& value);

  // SQLITE_ROW, SQLITE_DONE or an error code.
  int Step() { return sqlite3_step(get()); }
  void Reset() { sqlite3_reset(get()); }
  // Steps to the end and resets.
  absl::Status Run();

  int64_t Int(int column) { return sqlite3_column_int64(get(), column); }
  std::string Text(int column);

  sqlite3_stmt* get() const { return statement_.get(); }
  sqlite3* db() const { return sqlite3_db_handle(get()); }

 private:
  struct Finalize {
    void operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }
  };
  explicit Statement(sqlite3_stmt* statement) : statement_(statement) {}
  std::unique_ptr<sqlite3_stmt, Finalize> statement_;
};

// One integer of a query such as a PRAGMA.
absl::StatusOr<int64_t> QueryInt(sqlite3* db, const char* sql);

}  // namespace mycroft::store_internal

#endif  // MYCROFT_USERSPACE_STORE_SQLITE_H_
