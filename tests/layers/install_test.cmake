# SPDX-License-Identifier: Apache-2.0
# Installs the build into a scratch prefix and uses what lies there:
#   cmake -DBUILD=<build folder> -DSCRATCH=<folder to use> -P install_test.cmake
file(REMOVE_RECURSE ${SCRATCH})
execute_process(COMMAND ${CMAKE_COMMAND} --install ${BUILD} --prefix ${SCRATCH}
  RESULT_VARIABLE failed OUTPUT_QUIET ERROR_VARIABLE error)
if(failed)
  message(FATAL_ERROR "install failed: ${error}")
endif()

set(plugin ${SCRATCH}/lib/mycroft/libnccl-profiler-mycroft.so)
foreach(file bin/mycroft bin/mycroft-lab lib/mycroft/libnccl-profiler-mycroft.so
    share/man/man1/mycroft.1)
  if(NOT EXISTS ${SCRATCH}/${file})
    message(FATAL_ERROR "${file} was not installed")
  endif()
endforeach()

# The installed command finds the installed plugin, not the one of the build.
execute_process(COMMAND ${SCRATCH}/bin/mycroft run -- env
  RESULT_VARIABLE failed OUTPUT_VARIABLE environment ERROR_VARIABLE error)
if(failed OR NOT environment MATCHES "NCCL_PROFILER_PLUGIN=([^\n]*)")
  message(FATAL_ERROR "mycroft run -- env: ${failed} ${error}")
endif()
if(NOT CMAKE_MATCH_1 STREQUAL plugin)
  message(FATAL_ERROR "mycroft run uses ${CMAKE_MATCH_1}, not ${plugin}")
endif()
execute_process(COMMAND ${SCRATCH}/bin/mycroft-lab job --ranks 2 --iters 3
  RESULT_VARIABLE failed OUTPUT_VARIABLE output ERROR_VARIABLE error)
if(failed)
  message(FATAL_ERROR "mycroft-lab job: ${failed} ${output} ${error}")
endif()
file(REMOVE_RECURSE ${SCRATCH})
