# SPDX-License-Identifier: Apache-2.0
# cmake -DSOURCE=dir -DOUTPUT=file -P RecordGitHash.cmake: writes the source's commit, "-dirty" with uncommitted changes.
# Outside a checkout the commit comes from git_archival.txt, which git fills in when it makes an archive.
set(hash "unknown")
file(STRINGS "${SOURCE}/cmake/git_archival.txt" archived LIMIT_COUNT 1)
if(archived MATCHES "^[0-9a-f]+$")
  string(SUBSTRING "${archived}" 0 12 hash)
endif()

find_program(GIT git)
if(GIT AND EXISTS "${SOURCE}/.git")
  # A checkout owned by somebody else (a container's mount) is read all the same.
  set(git "${GIT}" -c "safe.directory=${SOURCE}" -C "${SOURCE}")
  execute_process(COMMAND ${git} describe --always --dirty --abbrev=12 --exclude=* OUTPUT_VARIABLE found
    RESULT_VARIABLE failed ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(NOT failed)
    set(hash "${found}")
  endif()
endif()

set(text "#define LOCKSTEP_GIT_HASH \"${hash}\"\n")
set(old "")
if(EXISTS "${OUTPUT}")
  file(READ "${OUTPUT}" old)
endif()
if(NOT old STREQUAL text)
  file(WRITE "${OUTPUT}" "${text}")
endif()
