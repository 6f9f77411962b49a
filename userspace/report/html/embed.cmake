# SPDX-License-Identifier: Apache-2.0
# The page's template becomes a string of the binary: an export needs no file
# beside it. Raw strings are cut below the 16 KB that every compiler takes.
set(MYCROFT_PAGE_IN ${CMAKE_CURRENT_LIST_DIR}/page.cc.in)

function(mycroft_embed_page page generated)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${page} ${MYCROFT_PAGE_IN})
  file(READ ${page} text)
  string(LENGTH "${text}" length)
  set(at 0)
  set(PAGE_CHUNKS "")
  while(at LESS length)
    string(SUBSTRING "${text}" ${at} 8000 chunk)
    string(APPEND PAGE_CHUNKS "    R\"MYCROFT(${chunk})MYCROFT\",\n")
    math(EXPR at "${at} + 8000")
  endwhile()
  configure_file(${MYCROFT_PAGE_IN} ${generated} @ONLY)
endfunction()
