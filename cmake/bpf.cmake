# SPDX-License-Identifier: Apache-2.0
# BPF programs: bpf/probes/X.bpf.c -> X.bpf.o -> skeleton/X.skel.h, all of them known to
# the target mycroft_skeletons (skeleton/all.h lists them by name). Where a tool or a library is
# missing the target is empty, MYCROFT_HAVE_BPF is 0, and the build goes on without probes.

find_program(MYCROFT_BPF_CLANG NAMES clang-14 clang-15 clang-16 clang-17 clang-18 clang)
find_program(MYCROFT_BPFTOOL bpftool HINTS /usr/sbin /sbin)
find_path(MYCROFT_LIBBPF_INCLUDE bpf/libbpf.h)
find_library(MYCROFT_LIBBPF bpf)
find_library(MYCROFT_LIBELF elf)
find_path(MYCROFT_LIBELF_INCLUDE gelf.h)
find_library(MYCROFT_ZYDIS NAMES Zydis zydis)
find_path(MYCROFT_ZYDIS_INCLUDE Zydis/Zydis.h)

set(missing)
foreach(part BPF_CLANG BPFTOOL LIBBPF LIBBPF_INCLUDE LIBELF LIBELF_INCLUDE ZYDIS ZYDIS_INCLUDE)
  if(NOT MYCROFT_${part})
    string(TOLOWER ${part} name)
    list(APPEND missing ${name})
  endif()
endforeach()
if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
  list(APPEND missing "support for ${CMAKE_SYSTEM_PROCESSOR}")
endif()
option(MYCROFT_BPF "Build the BPF probes where the tools for it are there" ON)
if(NOT MYCROFT_BPF)
  list(APPEND missing "MYCROFT_BPF=ON")
endif()
list(JOIN missing ", " MYCROFT_BPF_MISSING)

add_library(mycroft_skeletons INTERFACE)
if(missing)
  set(MYCROFT_HAVE_BPF 0)
  message(WARNING "Building WITHOUT the BPF probes: missing ${MYCROFT_BPF_MISSING}. "
    "Verdicts will rest on the progress boards alone. tools/install-deps installs what is needed.")
else()
  set(MYCROFT_HAVE_BPF 1)
  target_include_directories(mycroft_skeletons INTERFACE ${CMAKE_BINARY_DIR}/bpf)
  target_link_libraries(mycroft_skeletons INTERFACE
    ${MYCROFT_LIBBPF} ${MYCROFT_LIBELF} ${MYCROFT_ZYDIS} z)
endif()
target_compile_definitions(mycroft_skeletons INTERFACE
  MYCROFT_HAVE_BPF=${MYCROFT_HAVE_BPF} "MYCROFT_BPF_MISSING=\"${MYCROFT_BPF_MISSING}\"")

# Compiles one program: SOURCE -> OUT/NAME.bpf.o, OUT/NAME.skel.h.
function(mycroft_bpf_object name source out)
  add_custom_command(OUTPUT ${out}/${name}.bpf.o
    COMMAND ${MYCROFT_BPF_CLANG} -target bpf -D__TARGET_ARCH_x86 -mcpu=v3 -O2 -g -std=gnu11
      -Wall -Werror -Wno-unused-function -fno-stack-protector
      -MD -MF ${out}/${name}.bpf.d -MT ${out}/${name}.bpf.o
      -ffile-prefix-map=${PROJECT_SOURCE_DIR}/=
      -I${PROJECT_SOURCE_DIR} -I${MYCROFT_LIBBPF_INCLUDE} -c ${source} -o ${out}/${name}.bpf.o
    DEPENDS ${source} DEPFILE ${out}/${name}.bpf.d
    COMMENT "BPF ${name}" VERBATIM)
  add_custom_command(OUTPUT ${out}/${name}.skel.h
    COMMAND sh -c "'${MYCROFT_BPFTOOL}' gen skeleton '${out}/${name}.bpf.o' name ${name}_bpf > '${out}/${name}.skel.h'"
    DEPENDS ${out}/${name}.bpf.o COMMENT "BPF skeleton ${name}" VERBATIM)
endfunction()

# Compiles every *.bpf.c of the folder.
function(mycroft_probes folder)
  if(NOT MYCROFT_HAVE_BPF)
    return()
  endif()
  file(GLOB sources CONFIGURE_DEPENDS ${folder}/*.bpf.c)
  set(all "")
  set(entries "")
  set(outputs)
  set(out ${CMAKE_BINARY_DIR}/bpf/skeleton)
  file(MAKE_DIRECTORY ${out})
  foreach(source ${sources})
    get_filename_component(name ${source} NAME)
    string(REPLACE ".bpf.c" "" name ${name})
    mycroft_bpf_object(${name} ${source} ${out})
    list(APPEND outputs ${out}/${name}.skel.h)
    string(APPEND all "#include \"skeleton/${name}.skel.h\"\n")
    string(APPEND entries "  X(${name})\\\n")
  endforeach()
  file(CONFIGURE OUTPUT ${out}/all.h @ONLY CONTENT
"/* SPDX-License-Identifier: Apache-2.0 */
/* Generated: the BPF objects by name. */
@all@#define MYCROFT_BPF_OBJECTS(X)\\
@entries@
")
  add_custom_target(mycroft_skeleton_files DEPENDS ${outputs})
  add_dependencies(mycroft_skeletons mycroft_skeleton_files)
endfunction()
