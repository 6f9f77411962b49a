// SPDX-License-Identifier: Apache-2.0
#include "tools/mycroft/verbs.h"

int main(int argc, char** argv) { return mycroft::RunMycroft(argc, argv); }

#if defined(__SANITIZE_ADDRESS__)
// ncurses keeps one object for the life of the process and never frees it.
extern "C" const char* __lsan_default_suppressions() { return "leak:new_prescr"; }
#endif
