// SPDX-License-Identifier: Apache-2.0
#include "userspace/store/sqlite.h"

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace mycroft::store_internal {

absl::Status ToStatus(sqlite3* db, int code, const std::string& what) {
  const int primary = code & 0xff;
  const int system = db != nullptr ? sqlite3_system_errno(db) : 0;
  std::string text = what + ": ";
  text += db != nullptr && (sqlite3_errcode(db) & 0xff) == primary ? sqlite3_errmsg(db)
                                                                   : sqlite3_errstr(primary);
  switch (primary) {
    case SQLITE_OK:
    case SQLITE_ROW:
    case SQLITE_DONE:
      return absl::OkStatus();
    case SQLITE_FULL:
      return absl::ResourceExhaustedError(
          what + ": no space left on the device, or the size limit is reached");
    case SQLITE_IOERR:
      if (system == ENOSPC || system == EDQUOT || system == EFBIG) {
        return absl::ResourceExhaustedError(what + ": " + std::strerror(system));
      }
      // SQLite does not always keep the reason of a failed write (a quota, a limit
      // on the size of files).
      if (system == 0 && (code == SQLITE_IOERR_WRITE || code == SQLITE_IOERR_SHMSIZE)) {
        return absl::ResourceExhaustedError(
            what + ": cannot be written: quota, limit on the size of files, or full device");
      }
      if (system != 0) text += std::string(" (") + std::strerror(system) + ")";
      return absl::UnavailableError(text);
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return absl::UnavailableError(what + ": another program holds a lock on the file");
    case SQLITE_PERM:
    case SQLITE_READONLY:
    case SQLITE_AUTH:
      return absl::PermissionDeniedError(text);
    case SQLITE_CANTOPEN:
      if (system == EACCES || system == EPERM || system == EROFS) {
        return absl::PermissionDeniedError(what + ": " + std::strerror(system));
      }
      if (system == ENOENT || system == ENOTDIR) {
        return absl::NotFoundError(what + ": " + std::strerror(system));
      }
      if (system == ENOSPC || system == EDQUOT) {
        return absl::ResourceExhaustedError(what + ": " + std::strerror(system));
      }
      if (system != 0) text += std::string(" (") + std::strerror(system) + ")";
      return absl::UnavailableError(text);
    case SQLITE_CORRUPT:
      return absl::DataLossError(text);
    case SQLITE_NOTADB:
      return absl::InvalidArgumentError(text);
  }
  return absl::InternalError(text);
}

absl::StatusOr<Database> OpenDatabase(const std::string& path, int flags,
                                      const std::string& uri_options) {
  std::string name = "file:";
  // A relative path after "file:" is fine, but "//" would start a host name.
  if (path.rfind("//", 0) == 0) name += "//";
  for (const char c : path) {
    if (c == '?' || c == '#' || c == '%') {
      char escaped[4];
      std::snprintf(escaped, sizeof escaped, "%%%02x", static_cast<unsigned char>(c));
      name += escaped;
    } else {
      name += c;
    }
  }
  if (!uri_options.empty()) name += "?" + uri_options;
  sqlite3* raw = nullptr;
  const int code =
      sqlite3_open_v2(name.c_str(), &raw, flags | SQLITE_OPEN_URI | SQLITE_OPEN_NOMUTEX, nullptr);
  Database db(raw);
  if (code != SQLITE_OK) return ToStatus(raw, code, path);
  sqlite3_extended_result_codes(raw, 1);
  sqlite3_busy_timeout(raw, 1000);
  return db;
}

absl::Status Execute(sqlite3* db, const char* sql) {
  const int code = sqlite3_exec(db, sql, nullptr, nullptr, nullptr);
  return code == SQLITE_OK ? absl::OkStatus() : ToStatus(db, code, "recording");
}

absl::StatusOr<Statement> Statement::Prepare(sqlite3* db, const char* sql) {
  sqlite3_stmt* raw = nullptr;
  const int code = sqlite3_prepare_v2(db, sql, -1, &raw, nullptr);
  if (code != SQLITE_OK) return ToStatus(db, code, "recording");
  return Statement(raw);
}

void Statement::BindText(int index, const std::string& value) {
  sqlite3_bind_text64(get(), index, value.data(), value.size(), SQLITE_STATIC, SQLITE_UTF8);
}

void Statement::BindBlob(int index, const std::string& value) {
  sqlite3_bind_blob64(get(), index, value.data(), value.size(), SQLITE_STATIC);
}

absl::Status Statement::Run() {
  int code = SQLITE_ROW;
  while (code == SQLITE_ROW) code = Step();
  const absl::Status status =
      code == SQLITE_DONE ? absl::OkStatus() : ToStatus(db(), code, "recording");
  Reset();
  return status;
}

std::string Statement::Text(int column) {
  const auto* data = static_cast<const char*>(sqlite3_column_blob(get(), column));
  const int size = sqlite3_column_bytes(get(), column);
  return data == nullptr ? std::string() : std::string(data, static_cast<size_t>(size));
}

absl::StatusOr<int64_t> QueryInt(sqlite3* db, const char* sql) {
  absl::StatusOr<Statement> statement = Statement::Prepare(db, sql);
  if (!statement.ok()) return statement.status();
  const int code = statement->Step();
  if (code == SQLITE_ROW) return statement->Int(0);
  if (code == SQLITE_DONE) return 0;
  return ToStatus(db, code, "recording");
}

}  // namespace mycroft::store_internal
