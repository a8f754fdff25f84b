#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds every fuzz target that `make fuzz` runs, under the names of its package and function. OSS-Fuzz runs this in a
# checkout, and brings compile_native_go_fuzzer.
set -euo pipefail
export GOWORK=off

module=$(go list -m)
grep -rHoE --include='*_test.go' '^func Fuzz[A-Za-z]+' internal | sort | sed 's|/[^/]*:func | |' | while read -r dir name; do
  compile_native_go_fuzzer "$module/$dir" "$name" "$(echo "${dir#internal/}" | tr / _)_$name"
done
