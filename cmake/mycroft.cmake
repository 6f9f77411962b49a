# SPDX-License-Identifier: Apache-2.0
# Helpers so that a room's CMakeLists.txt is a list of files and what it may see.

find_program(CCACHE ccache)
if(CCACHE)
  set(CMAKE_C_COMPILER_LAUNCHER ${CCACHE})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE})
endif()

add_library(mycroft_flags INTERFACE)
target_compile_options(mycroft_flags INTERFACE -Wall -Wextra -Wno-missing-field-initializers)
if(MYCROFT_WERROR)
  target_compile_options(mycroft_flags INTERFACE -Werror)
endif()
if(MYCROFT_SANITIZE)
  target_compile_options(mycroft_flags INTERFACE -fsanitize=${MYCROFT_SANITIZE} -fno-omit-frame-pointer)
  # GCC warns of its own library's code when it is instrumented.
  target_compile_options(mycroft_flags INTERFACE
    $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-maybe-uninitialized>)
  target_link_options(mycroft_flags INTERFACE -fsanitize=${MYCROFT_SANITIZE})
endif()
if(MYCROFT_FUZZ)
  # Every library is instrumented, so that fuzzers see the coverage of what they link.
  set(MYCROFT_FUZZ_SANITIZERS address,undefined)
  target_compile_options(mycroft_flags INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=fuzzer-no-link,${MYCROFT_FUZZ_SANITIZERS}>
    $<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize-recover=undefined> -g1 -O1)
  target_link_options(mycroft_flags INTERFACE -fsanitize=${MYCROFT_FUZZ_SANITIZERS})
endif()
target_include_directories(mycroft_flags INTERFACE ${PROJECT_SOURCE_DIR})
target_compile_definitions(mycroft_flags INTERFACE MYCROFT_VERSION="${PROJECT_VERSION}")

# mycroft_library(NAME [COLD] SRCS a.cc b.cc DEPS x y)
# COLD: no hot path in it (text, JSON, options); sanitizer builds do not optimise it,
# which takes a third of the time to compile.
function(mycroft_library name)
  cmake_parse_arguments(A "COLD" "" "SRCS;DEPS" ${ARGN})
  add_library(${name} STATIC ${A_SRCS})
  if(A_COLD AND MYCROFT_SANITIZE)
    target_compile_options(${name} PRIVATE -O0)
  endif()
  target_link_libraries(${name} PUBLIC mycroft_flags ${A_DEPS})
endfunction()

# Where hostile or damaged bytes are read, and where we are guests: CI runs the tests of
# these under sanitizers (label and target `guarded`), and the others without
# (MYCROFT_GUARDED_TESTS=OFF); `tools/test --quick` and `--asan` run all.
set(MYCROFT_GUARDED cupti userspace/source userspace/decode userspace/store tests/fuzz)
add_custom_target(guarded)

# mycroft_test(NAME [ALONE] SRCS a_test.cc DEPS x LABELS y): one ctest entry named NAME.
# ALONE: it watches live processes or counts time, so nothing else runs beside it.
function(mycroft_test name)
  if(NOT MYCROFT_TESTS)
    return()
  endif()
  cmake_parse_arguments(A "ALONE" "TIMEOUT" "SRCS;DEPS;LABELS;ARGS;ENV" ${ARGN})
  foreach(room IN LISTS MYCROFT_GUARDED)
    if(CMAKE_CURRENT_SOURCE_DIR MATCHES "^${PROJECT_SOURCE_DIR}/${room}(/|$)")
      list(APPEND A_LABELS guarded)
    endif()
  endforeach()
  add_executable(${name} ${A_SRCS})
  target_link_libraries(${name} PRIVATE mycroft_flags ${A_DEPS} GTest::gtest GTest::gmock GTest::gtest_main)
  # A test's own code runs once: compiling it without optimisation is what saves time.
  target_compile_options(${name} PRIVATE -O0)
  if("guarded" IN_LIST A_LABELS)
    add_dependencies(guarded ${name})
    if(NOT MYCROFT_GUARDED_TESTS)
      set_target_properties(${name} PROPERTIES EXCLUDE_FROM_ALL ON)
      return()
    endif()
  endif()
  add_test(NAME ${name} COMMAND ${name} ${A_ARGS})
  if(name MATCHES "_bpf_test$")
    set_property(GLOBAL APPEND PROPERTY MYCROFT_BPF_TESTS ${name})  # tests/vm runs them too
  endif()
  if(NOT A_TIMEOUT)
    set(A_TIMEOUT 300)
  endif()
  set_tests_properties(${name} PROPERTIES TIMEOUT ${A_TIMEOUT} LABELS "${A_LABELS}"
    ENVIRONMENT "${A_ENV}" RUN_SERIAL ${A_ALONE})
  if(name MATCHES "_bpf_test$")
    # They count the programs of the whole host: one at a time.
    set_tests_properties(${name} PROPERTIES RESOURCE_LOCK bpf)
  endif()
endfunction()

# mycroft_fuzzer(NAME SRCS a_fuzz.cc DEPS x): a libFuzzer program, in the preset `fuzz` only.
# MYCROFT_FUZZER is defined in it: one file serves it and its seeds test.
function(mycroft_fuzzer name)
  if(NOT MYCROFT_FUZZ)
    return()
  endif()
  cmake_parse_arguments(A "" "" "SRCS;DEPS" ${ARGN})
  add_executable(${name} ${A_SRCS})
  target_link_libraries(${name} PRIVATE mycroft_flags ${A_DEPS})
  target_link_options(${name} PRIVATE -fsanitize=fuzzer,${MYCROFT_FUZZ_SANITIZERS})
  target_compile_definitions(${name} PRIVATE MYCROFT_FUZZER)
endfunction()
