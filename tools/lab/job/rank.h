// SPDX-License-Identifier: Apache-2.0
//
// One rank of the lab job: a process that trains in miniature. Started by the
// launcher only.
#ifndef MYCROFT_TOOLS_LAB_JOB_RANK_H_
#define MYCROFT_TOOLS_LAB_JOB_RANK_H_

namespace mycroft::lab {

// Exit status of a rank.
inline constexpr int kRankOk = 0;
inline constexpr int kRankWrongSums = 10;
inline constexpr int kRankAborted = 11;
inline constexpr int kRankError = 12;

// `control_fd`: the socket to the launcher. Runs until the job ends.
int RunRank(int rank, int control_fd);

}  // namespace mycroft::lab

#endif  // MYCROFT_TOOLS_LAB_JOB_RANK_H_
