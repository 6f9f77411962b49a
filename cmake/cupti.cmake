# SPDX-License-Identifier: Apache-2.0
# CUPTI's headers, of any toolkit from CUDA 12.0 on. Without them libmycroft-cupti.so is
# left out, MYCROFT_HAVE_CUPTI is 0, and the build goes on. No library of NVIDIA's is
# linked: libcupti is opened at run time.

option(MYCROFT_CUPTI "Build the CUPTI library where CUPTI's headers are there" ON)
file(GLOB toolkits LIST_DIRECTORIES true /usr/local/cuda-*)
list(SORT toolkits COMPARE NATURAL ORDER DESCENDING)
find_path(MYCROFT_CUPTI_INCLUDE cupti.h
  HINTS ENV CUDA_HOME ENV CUDA_PATH
  PATHS /usr/local/cuda ${toolkits} /usr/lib/cuda /opt/cuda
  PATH_SUFFIXES include extras/CUPTI/include)
# A CUPTI outside the toolkit's own folder (extras) includes the toolkit's cuda.h.
find_path(MYCROFT_CUDA_INCLUDE cuda.h
  HINTS ENV CUDA_HOME ENV CUDA_PATH ${MYCROFT_CUPTI_INCLUDE} ${MYCROFT_CUPTI_INCLUDE}/../../../include
  PATHS /usr/local/cuda ${toolkits} /usr/lib/cuda /opt/cuda
  PATH_SUFFIXES include)

set(MYCROFT_HAVE_CUPTI 0)
set(MYCROFT_CUPTI_MISSING "")
if(NOT MYCROFT_CUPTI)
  set(MYCROFT_CUPTI_MISSING "MYCROFT_CUPTI=ON")
elseif(NOT MYCROFT_CUPTI_INCLUDE OR NOT MYCROFT_CUDA_INCLUDE)
  set(MYCROFT_CUPTI_MISSING "cupti.h or cuda.h of a CUDA toolkit (set CUDA_HOME)")
else()
  file(STRINGS ${MYCROFT_CUPTI_INCLUDE}/cupti_version.h line REGEX "define CUPTI_API_VERSION")
  string(REGEX MATCH "[0-9]+" version "${line}")
  if(version LESS 19)
    set(MYCROFT_CUPTI_MISSING "a CUPTI of CUDA 12.0 or later (found API version ${version})")
  else()
    set(MYCROFT_HAVE_CUPTI 1)
    list(APPEND MYCROFT_CUPTI_INCLUDE ${MYCROFT_CUDA_INCLUDE})
    list(REMOVE_DUPLICATES MYCROFT_CUPTI_INCLUDE)
  endif()
endif()
if(MYCROFT_CUPTI_MISSING)
  message(WARNING "Building WITHOUT libmycroft-cupti.so: missing ${MYCROFT_CUPTI_MISSING}. "
    "What a GPU's streams run, and how long, will not be visible.")
endif()
