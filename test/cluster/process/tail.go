// SPDX-License-Identifier: Apache-2.0

package process

import (
	"io"
	"os"
	"strings"
)

const (
	tailBytes    = 64 << 10 // how far back Tail reads
	tailLineSize = 400      // bytes kept of one line
)

// TailFile returns the last n non-empty lines of a file, oldest first, each cut to 400
// bytes. An unreadable file has no lines.
func TailFile(path string, n int) []string { return tailOf(path, 0, n) }

func tailOf(path string, from int64, n int) []string {
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer func() { _ = f.Close() }()
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return nil
	}
	from = max(from, size-tailBytes)
	text, err := io.ReadAll(io.NewSectionReader(f, from, size-from))
	if err != nil {
		return nil
	}
	lines := []string{}
	for line := range strings.SplitSeq(string(text), "\n") {
		if line = strings.TrimRight(line, " \t\r"); line != "" {
			lines = append(lines, line[:min(len(line), tailLineSize)])
		}
	}
	return lines[max(0, len(lines)-n):]
}
