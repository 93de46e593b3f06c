# SPDX-License-Identifier: Apache-2.0
# Sourced by the scripts of this folder.
set -euo pipefail
source_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
home=${HOME:-$(getent passwd "$(id -u)" | cut -d: -f6)}
cache=${LOCKSTEP_CACHE:-${XDG_CACHE_HOME:-$home/.cache}/lockstep} # what is built once, outside the source tree
# Keeps Open MPI from looking for X displays at every start: seconds where the name localhost is not known.
export HWLOC_COMPONENTS=${HWLOC_COMPONENTS:--gl}
say() { printf 'lockstep: %s\n' "$*" >&2; }
fail() { say "$*"; exit 1; }

# Nearly all of the time goes into a few steps: their output goes to a log, which is named when they fail.
logged() { # logged LOG COMMAND...
  local log=$1
  shift
  "$@" >"$log" 2>&1 </dev/null
}

# The flag that makes this compiler use the machine's own instructions, or nothing.
arch_flags() {
  local flag
  for flag in -march=native -mcpu=native; do
    if "${CXX:-c++}" "$flag" -E -x c++ /dev/null >/dev/null 2>&1; then
      echo "$flag"
      return
    fi
  done
}
