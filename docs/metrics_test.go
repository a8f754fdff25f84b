// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"path"
	"regexp"
	"strings"
	"testing"

	"github.com/usher-dev/usher/internal/guard"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/registration/plan"
)

// metric is a metric as metrics.md describes it: its labels and its meaning.
type metric struct{ labels, meaning string }

func documentedMetrics(t *testing.T) map[string]metric {
	t.Helper()
	all := map[string]metric{}
	for line := range strings.Lines(read(t, "metrics.md")) {
		cells := strings.SplitN(line, "|", 6)
		if len(cells) == 6 && strings.HasPrefix(cells[1], " `usher_") {
			all[strings.Trim(cells[1], " `")] = metric{cells[3], cells[4]}
		}
	}
	return all
}

// TestMetricsAreDocumented: metrics.md has each metric of the program, and no other.
func TestMetricsAreDocumented(t *testing.T) {
	documented, exported := documentedMetrics(t), map[string]bool{}
	for file, text := range goFiles(t) {
		if !product.MatchString(file) || strings.HasSuffix(file, "_test.go") {
			continue
		}
		for _, found := range regexp.MustCompile(`"(usher_[a-z_]+)"`).FindAllStringSubmatch(text, -1) {
			exported[found[1]] = true
			if _, there := documented[found[1]]; !there {
				t.Errorf("metrics.md does not say what %s of %s means", found[1], path.Base(file))
			}
		}
	}
	for name := range documented {
		if !exported[name] {
			t.Errorf("metrics.md explains %s, which nothing exports", name)
		}
	}
	if len(exported) < 20 {
		t.Errorf("%d metrics were found", len(exported))
	}
}

// TestLabelValuesAreDocumented: metrics.md has each value of the labels that are words.
func TestLabelValuesAreDocumented(t *testing.T) {
	documented := documentedMetrics(t)
	for name, words := range map[string][]string{
		"usher_running":                    {"cloneset", "registration", "guard"},
		"usher_drains_total":               list.Map(plan.DrainResults(), func(r plan.DrainResult) string { return string(r) }),
		"usher_out_of_registries_seconds":  {string(plan.OutForUpdate), string(plan.OutForDeletion), string(plan.OutOfOrder)},
		"usher_guard_answers_total":        list.Map(guard.Answers(), func(a guard.Answer) string { return string(a) }),
		"usher_registry_errors_total":      {"unavailable", "refused"},
		"usher_cloneset_writes_total":      {"ok", "conflict", "wait", "error", "dry_run"},
		"usher_registration_pods":          {"matched", "registered", "draining", "notReady"},
		"usher_registration_registry_pods": {"registered", "draining", "waiting"},
		"usher_hook_waiting_pods": list.Map([]plan.Gate{plan.GatePreNormal, plan.GateCreated, plan.GateInPlaceUpdate,
			plan.GateUpdated, plan.GatePreDelete, plan.GateRequested, plan.GateJoining, plan.GateLeaving, plan.GateDeletion},
			func(g plan.Gate) string { return string(g) }),
	} {
		for _, word := range words {
			if !strings.Contains(documented[name].meaning, "`"+word+"`") {
				t.Errorf("metrics.md does not say what the value %s of %s means", word, name)
			}
		}
	}
}
