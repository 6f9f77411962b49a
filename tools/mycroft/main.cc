// SPDX-License-Identifier: Apache-2.0
#include "tools/mycroft/verbs.h"

int main(int argc, char** argv) { return mycroft::RunMycroft(argc, argv); }
