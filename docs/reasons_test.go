// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"regexp"
	"strings"
	"testing"
)

var (
	product = regexp.MustCompile(`^(api|internal|pkg|cmd)/`)
	// reason is the value of a constant, or one of the events that a CloneSet has for actions.
	reason = regexp.MustCompile(`(?m)^\s*(?:const )?(?:[Rr]eason|event|Problem|Progress)[A-Z]\w*(?: \w+)? += "([A-Z]\w+)"|"((?:Successful|Failed|PodLeaves|ScaleUp)\w+)"`)
	// conditions are in the same column of reasons.md.
	conditions = "Blocked Progressing FailedScale FailedUpdate Ready Waiting HooksMatched InstancesValid Reachable"
)

// TestReasonsAreDocumented: every reason of a condition or an event in the code is in
// reasons.md, and every reason there is in the code.
func TestReasonsAreDocumented(t *testing.T) {
	page, known := read(t, "reasons.md"), map[string]bool{}
	for _, condition := range strings.Fields(conditions) {
		known[condition] = true
	}
	for file, text := range goFiles(t) {
		if !product.MatchString(file) || strings.HasSuffix(file, "_test.go") {
			continue
		}
		for _, found := range reason.FindAllStringSubmatch(text, -1) {
			name := found[1] + found[2]
			known[name] = true
			if !strings.HasSuffix(name, "BackOff") && !strings.Contains(page, "`"+name+"`") {
				t.Errorf("reasons.md does not say what %s means (%s)", name, file)
			}
		}
	}
	for _, name := range explained(page) {
		if !known[name] {
			t.Errorf("reasons.md explains %s, which is nowhere", name)
		}
	}
}

// explained are the reasons in all columns of the page's tables but the last.
func explained(page string) (names []string) {
	for line := range strings.Lines(page) {
		last := strings.LastIndex(strings.TrimSuffix(line, "|\n"), "|")
		for _, found := range regexp.MustCompile("`([A-Z]\\w+)`").FindAllStringSubmatch(line[:max(last, 0)], -1) {
			names = append(names, found[1])
		}
	}
	return names
}
