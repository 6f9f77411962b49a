// SPDX-License-Identifier: Apache-2.0
#include "userspace/report/json_text.h"

#include "userspace/report/text.h"

namespace mycroft {

std::string JsonText(const std::string& text) {
  std::string out = "\"";
  for (const char c : PrintableText(text)) {
    if (c == '<') {
      out += "\\u003c";
      continue;
    }
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + "\"";
}

}  // namespace mycroft
