// SPDX-License-Identifier: Apache-2.0

package build

import (
	"fmt"
	"strings"
)

// Cause is why a build failed, which decides what to do next.
type Cause string

// The causes that a build failure can have.
const (
	// CauseNoGo means that there is no go command.
	CauseNoGo Cause = "NoGo"
	// CauseOldGo means that the go command is older than the source needs.
	CauseOldGo Cause = "OldGo"
	// CauseDownload means that a Go module could not be downloaded.
	CauseDownload Cause = "Download"
	// CauseDiskFull means that a file system is full.
	CauseDiskFull Cause = "DiskFull"
	// CauseKilled means that the compiler was killed, usually for lack of memory.
	CauseKilled Cause = "Killed"
	// CauseOther is anything else, for instance a file that cannot be written.
	CauseOther Cause = "Other"
)

// Error is a failed build: what failed, why, and what to do next.
type Error struct {
	// Binary is what was being built.
	Binary string
	// Cause is the reason.
	Cause Cause
	// Hint says what to do next.
	Hint string
	// Output are the last lines that the go command wrote.
	Output []string
	// Err is the underlying error.
	Err error
}

// Error gives all details in several lines.
func (e *Error) Error() string {
	text := fmt.Sprintf("build %s: %v", e.Binary, e.Err)
	if len(e.Output) > 0 {
		text += "\n    " + strings.Join(e.Output, "\n    ")
	}
	return text + "\n  " + e.Hint
}

// Unwrap is the underlying error.
func (e *Error) Unwrap() error { return e.Err }

// signs are phrases of the go command and the kernel that identify a cause. The order
// matters: a full disk also makes downloads fail.
func signs() []struct {
	cause Cause
	words []string
} {
	return []struct {
		cause Cause
		words []string
	}{
		{CauseDiskFull, []string{"no space left on device", "disk quota exceeded"}},
		{CauseOldGo, []string{"requires go >=", "requires go1."}},
		{CauseDownload, []string{
			"dial tcp", "no such host", "proxyconnect", "i/o timeout", "TLS handshake", "connection refused",
			"connection reset by peer", "module lookup disabled", "reading https://", "reading http://",
			"cannot find module", "unrecognized import path", "410 Gone", "502 Bad Gateway", "503 Service",
			"cannot query module", "tls: failed to verify",
		}},
		{CauseKilled, []string{"signal: killed"}},
	}
}

// classify finds the cause of a failure in the go command's output.
func classify(output string) Cause {
	for _, sign := range signs() {
		for _, word := range sign.words {
			if strings.Contains(output, word) {
				return sign.cause
			}
		}
	}
	return CauseOther
}

// hint says what to do next. env returns the settings that the hint names.
func hint(cause Cause, cacheDir string, env func(string) string) string {
	const again = "then run the same command again: what is built is kept"
	switch cause {
	case CauseNoGo:
		return "Install Go from https://go.dev/dl/ and put it in PATH, " + again + "."
	case CauseOldGo:
		return "Install the Go version named above from https://go.dev/dl/, or allow the go command to fetch it (GOTOOLCHAIN=auto), " + again + "."
	case CauseDownload:
		return "A Go module could not be downloaded. Check the network and the proxy (go env GOPROXY says " +
			quoted(env("GOPROXY")) + "), " + again + "."
	case CauseDiskFull:
		return "A file system is full. The build needs about 3 GB in " + quoted(env("GOCACHE")) + ", 1 GB in " + quoted(env("GOMODCACHE")) +
			" and 0.3 GB in " + cacheDir + " (see: df -h). Free some space, or choose other places with GOCACHE, GOMODCACHE and " +
			CacheEnv + ", " + again + "."
	case CauseKilled:
		return "The compiler was killed, usually because memory ran out: the largest step needs about 2 GB. " +
			"Free some memory or set GOFLAGS=-p=1, " + again + "."
	default:
		return "The whole output is in " + cacheDir + "/" + logName + "."
	}
}

func quoted(value string) string {
	if value == "" {
		return "its default"
	}
	return value
}
