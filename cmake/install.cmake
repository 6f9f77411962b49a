# SPDX-License-Identifier: Apache-2.0
# What `cmake --install` puts where, relative to the prefix:
#
#   bin/mycroft  bin/mycroft-lab
#   lib/mycroft/libnccl-profiler-mycroft.so   found by the commands as ../lib/mycroft,
#                                             whatever the system calls its library folder
#   share/man/man1/*.1                        when the build made them (build/man)
#   share/doc/mycroft/
include(GNUInstallDirs)

foreach(program mycroft mycroft-lab)
  if(TARGET ${program})
    install(TARGETS ${program} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  endif()
endforeach()

# By the name of the file, not of the target: a plugin may be built in several ways.
foreach(plugin nccl-profiler-mycroft mycroft-cupti)
  install(FILES ${CMAKE_LIBRARY_OUTPUT_DIRECTORY}/lib${plugin}.so
    DESTINATION lib/mycroft PERMISSIONS OWNER_READ OWNER_WRITE GROUP_READ WORLD_READ OPTIONAL)
endforeach()

install(DIRECTORY ${CMAKE_BINARY_DIR}/man/ DESTINATION ${CMAKE_INSTALL_MANDIR}/man1
  OPTIONAL FILES_MATCHING PATTERN "*.1")
foreach(document README.md CHANGELOG.md LICENSE)
  if(EXISTS ${PROJECT_SOURCE_DIR}/${document})
    install(FILES ${PROJECT_SOURCE_DIR}/${document} DESTINATION ${CMAKE_INSTALL_DOCDIR})
  endif()
endforeach()
