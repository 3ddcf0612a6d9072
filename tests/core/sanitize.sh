#!/bin/sh
# Builds the core and its tests under AddressSanitizer + UndefinedBehaviorSanitizer and under ThreadSanitizer, and runs
# them. Build folders: build/sanitize-asan and build/sanitize-tsan. Arguments choose: asan, tsan, or nothing for both.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
cmake=cmake
[ -x "$root/.venv/bin/cmake" ] && PATH="$root/.venv/bin:$PATH"
launcher=
command -v ccache >/dev/null 2>&1 && launcher="-DCMAKE_CXX_COMPILER_LAUNCHER=ccache -DCMAKE_C_COMPILER_LAUNCHER=ccache"

check() {
  name=$1 flags=$2
  build="$root/build/sanitize-$name"
  # shellcheck disable=SC2086
  "$cmake" -S "$root/tests/core" -B "$build" -G Ninja $launcher -DCMAKE_BUILD_TYPE=None \
    -DCMAKE_C_FLAGS="$flags" -DCMAKE_CXX_FLAGS="$flags" >/dev/null
  "$cmake" --build "$build" -j2 >"$build/build.log" 2>&1 || { cat "$build/build.log"; exit 1; }
  ctest --test-dir "$build" --output-on-failure
}

common="-O1 -g -fno-omit-frame-pointer"
export ASAN_OPTIONS=detect_leaks=1:strict_string_checks=1:check_initialization_order=1
export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
export TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1
case "${1:-both}" in
  asan) check asan "$common -fsanitize=address,undefined -fno-sanitize-recover=all" ;;
  tsan) check tsan "$common -fsanitize=thread" ;;
  both)
    check asan "$common -fsanitize=address,undefined -fno-sanitize-recover=all"
    check tsan "$common -fsanitize=thread"
    ;;
  *) echo "usage: $0 [asan|tsan]" >&2; exit 2 ;;
esac
