// SPDX-License-Identifier: Apache-2.0
#include "tools/lab/replay/replay_job.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <utility>

namespace mycroft {
namespace {

struct Command {
  uint64_t t_ns = 0;     // virtual time to advance to
  int64_t shift_ns = 0;  // real time
  uint8_t real_time = 0;
};

// Parent and child are one binary, so a plain struct is the message.
struct Answer {
  int32_t code = 0;  // absl::StatusCode
  PlayState state = PlayState::kPlaying;
  uint64_t calls = 0;
  PluginFaults faults;
  char text[512] = {};
};

void Reply(int socket, const absl::Status& status, PlayState state, const Player* player) {
  Answer answer;
  answer.code = static_cast<int32_t>(status.code());
  answer.state = state;
  const std::string text(status.message());
  text.copy(answer.text, sizeof answer.text - 1);
  if (player != nullptr) {
    answer.calls = player->calls();
    answer.faults = player->faults();
  }
  if (send(socket, &answer, sizeof answer, MSG_NOSIGNAL) < 0) _exit(1);
}

// Returns when the files have ended; the state says how the process is to end.
PlayState ChildLoop(int socket, const std::vector<std::string>& files,
                    const ReplayJobOptions& options) {
  std::vector<uint32_t> pairs(1 << 17);
  const ssize_t got = recv(socket, pairs.data(), pairs.size() * sizeof(uint32_t), 0);
  if (got < 0) _exit(1);
  std::map<uint32_t, uint32_t> pids;
  for (size_t i = 0; i + 1 < static_cast<size_t>(got) / sizeof(uint32_t); i += 2) {
    pids[pairs[i]] = pairs[i + 1];
  }
  absl::StatusOr<std::unique_ptr<Player>> player = Player::Create(files);
  absl::Status status = player.status();
  if (status.ok()) status = (*player)->Load(options.plugin, pids, options.real_time);
  Reply(socket, status, PlayState::kPlaying, nullptr);
  if (!status.ok()) return PlayState::kEnded;
  while (true) {
    Command command;
    if (recv(socket, &command, sizeof command, 0) != sizeof command) _exit(1);  // parent is gone
    absl::StatusOr<PlayState> state = command.real_time != 0
                                          ? (*player)->PlayInRealTime(command.shift_ns)
                                          : (*player)->AdvanceTo(command.t_ns);
    const PlayState now = state.ok() ? *state : PlayState::kEnded;
    Reply(socket, state.status(), now, player->get());
    if (now != PlayState::kPlaying) return now;
  }
}

// N of rank<N>.jsonl or rank<N>.jsonl.gz.
std::optional<uint32_t> RankOfFile(std::string name) {
  if (name.ends_with(".gz")) name.resize(name.size() - 3);
  if (!name.starts_with("rank") || !name.ends_with(".jsonl")) return std::nullopt;
  const char* const begin = name.data() + 4;
  const char* const end = name.data() + name.size() - 6;
  uint32_t rank = 0;
  const auto [stop, error] = std::from_chars(begin, std::max(begin, end), rank);
  if (error != std::errc() || stop != end) return std::nullopt;
  return rank;
}

std::string Names(const std::vector<std::string>& files) {
  return files.size() == 1 ? files[0]
                           : files[0] + " and " + std::to_string(files.size() - 1) + " more";
}

}  // namespace

absl::StatusOr<std::vector<std::string>> FindRankFiles(const std::string& folder) {
  std::error_code error;
  std::filesystem::directory_iterator it(folder, error);
  if (error) return absl::NotFoundError(folder + ": " + error.message());
  std::map<uint32_t, std::string> files;
  for (const auto& entry : it) {
    const std::optional<uint32_t> rank = RankOfFile(entry.path().filename().string());
    if (!rank) continue;
    if (!files.emplace(*rank, entry.path().string()).second) {
      return absl::InvalidArgumentError(folder + ": two files of rank " + std::to_string(*rank) +
                                        "; leave one of them");
    }
  }
  if (files.empty()) {
    return absl::NotFoundError(folder + ": no rank<N>.jsonl or rank<N>.jsonl.gz in it");
  }
  std::vector<std::string> out;
  for (auto& [rank, path] : files) out.push_back(path);
  return out;
}

absl::StatusOr<std::unique_ptr<ReplayJob>> ReplayJob::Start(const std::vector<std::string>& files,
                                                            const ReplayJobOptions& options) {
  auto job = std::unique_ptr<ReplayJob>(new ReplayJob());
  std::vector<TraceHeader> headers;
  {
    absl::StatusOr<std::unique_ptr<Player>> probe = Player::Create(files);
    if (!probe.ok()) return probe.status();
    headers = (*probe)->headers();
    job->first_t_ns_ = (*probe)->first_t_ns();
  }
  if (job->first_t_ns_ == UINT64_MAX) {
    return absl::InvalidArgumentError(Names(files) + ": no callback after the header");
  }
  job->wall_minus_mono_ns_ = static_cast<int64_t>(headers[0].wall_ns - headers[0].mono_ns);

  std::fflush(nullptr);  // what is buffered must not be written once per child
  const pid_t parent = getpid();
  for (size_t i = 0; i < files.size(); ++i) {
    Child child;
    child.files = options.one_process ? files : std::vector<std::string>{files[i]};
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) {
      return absl::ResourceExhaustedError(std::string("socketpair: ") + strerror(errno));
    }
    child.pid = fork();
    if (child.pid < 0) {
      const int error = errno;
      close(pair[0]);
      close(pair[1]);
      return absl::ResourceExhaustedError(std::string("fork: ") + strerror(error));
    }
    if (child.pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(1);
      close(pair[0]);
      for (const Child& sibling : job->children_) close(sibling.socket);
      const PlayState end = ChildLoop(pair[1], child.files, options);
      if (end == PlayState::kKilled) raise(SIGKILL);
      std::exit(0);  // as a job ends: with the plugin's destructors
    }
    close(pair[1]);
    child.socket = pair[0];
    child.running = true;
    job->children_.push_back(std::move(child));
    if (options.one_process) break;
  }

  std::vector<uint32_t> pairs;
  for (size_t i = 0; i < files.size(); ++i) {
    pairs.push_back(headers[i].pid);
    pairs.push_back(static_cast<uint32_t>(job->children_[options.one_process ? 0 : i].pid));
  }
  for (Child& child : job->children_) {
    absl::Status s = job->Send(child, pairs.data(), pairs.size() * sizeof(uint32_t));
    if (!s.ok()) return s;
  }
  for (Child& child : job->children_) {
    if (absl::Status s = job->Receive(child, true); !s.ok()) return s;
  }
  return job;
}

ReplayJob::~ReplayJob() {
  for (Child& child : children_) {
    if (child.running) {
      kill(child.pid, SIGKILL);
      while (waitpid(child.pid, nullptr, 0) < 0 && errno == EINTR) {
      }
    }
    if (child.socket >= 0) close(child.socket);
  }
}

std::set<uint32_t> ReplayJob::pids() const {
  std::set<uint32_t> out;
  for (const Child& child : children_) out.insert(static_cast<uint32_t>(child.pid));
  return out;
}

bool ReplayJob::running() const {
  return std::any_of(children_.begin(), children_.end(),
                     [](const Child& child) { return child.running; });
}

absl::Status ReplayJob::Lost(Child& child) {
  int status = 0;
  while (waitpid(child.pid, &status, 0) < 0 && errno == EINTR) {
  }
  child.running = false;
  std::string how = WIFSIGNALED(status)
                        ? std::string("was ended by signal ") + std::to_string(WTERMSIG(status)) +
                              " (" + strsignal(WTERMSIG(status)) + ")"
                        : "has ended by itself";
  return absl::InternalError("the process that replays " + Names(child.files) + " " + how +
                             " inside a call to the plugin");
}

absl::Status ReplayJob::Send(Child& child, const void* data, size_t size) {
  if (send(child.socket, data, size, MSG_NOSIGNAL) == static_cast<ssize_t>(size)) {
    return absl::OkStatus();
  }
  if (errno == EPIPE || errno == ECONNRESET) return Lost(child);
  return absl::InternalError(std::string("send to a replaying process: ") + strerror(errno));
}

absl::Status ReplayJob::Receive(Child& child, bool wait) {
  Answer answer;
  ssize_t got;
  do {
    got = recv(child.socket, &answer, sizeof answer, wait ? 0 : MSG_DONTWAIT);
  } while (got < 0 && errno == EINTR);
  if (got < 0 && !wait && (errno == EAGAIN || errno == EWOULDBLOCK)) return absl::OkStatus();
  if (got != sizeof answer) return Lost(child);
  answer.text[sizeof answer.text - 1] = 0;
  if (answer.code != 0) {
    return absl::Status(static_cast<absl::StatusCode>(answer.code), answer.text);
  }
  if (answer.state != PlayState::kPlaying) {
    while (waitpid(child.pid, nullptr, 0) < 0 && errno == EINTR) {
    }
    child.running = false;
    faults_.failed_calls += answer.faults.failed_calls;
    faults_.unwritten_handles += answer.faults.unwritten_handles;
    faults_.null_handles += answer.faults.null_handles;
    calls_ += answer.calls;
  }
  return absl::OkStatus();
}

absl::Status ReplayJob::AdvanceTo(uint64_t t_ns) {
  Command command;
  command.t_ns = t_ns;
  for (Child& child : children_) {  // all at once, so that they use all cores
    if (!child.running) continue;
    if (absl::Status s = Send(child, &command, sizeof command); !s.ok()) return s;
  }
  for (Child& child : children_) {
    if (!child.running) continue;
    if (absl::Status s = Receive(child, true); !s.ok()) return s;
  }
  return absl::OkStatus();
}

absl::Status ReplayJob::RunInRealTime(int64_t shift_ns) {
  Command command;
  command.shift_ns = shift_ns;
  command.real_time = 1;
  for (Child& child : children_) {
    if (absl::Status s = Send(child, &command, sizeof command); !s.ok()) return s;
  }
  return absl::OkStatus();
}

absl::Status ReplayJob::Poll() {
  for (Child& child : children_) {
    if (!child.running) continue;
    if (absl::Status s = Receive(child, false); !s.ok()) return s;
  }
  return absl::OkStatus();
}

}  // namespace mycroft
