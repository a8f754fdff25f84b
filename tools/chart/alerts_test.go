// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/promql/promqltest"
)

// alerts are the chart's rules as Prometheus reads them.
func alerts(t *testing.T) map[string]rulefmt.Rule {
	t.Helper()
	groups, errs := rulefmt.ParseFile(filepath.Join(chartFolder, "files", "alerts.yaml"), false, model.UTF8Validation, parser.NewParser(parser.Options{}), slog.New(slog.DiscardHandler))
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	all := map[string]rulefmt.Rule{}
	for _, group := range groups.Groups {
		for _, rule := range group.Rules {
			all[rule.Alert] = rule
		}
	}
	return all
}

// expressions are those of alerts and dashboard, by where they are.
func expressions(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for name, rule := range alerts(t) {
		all["alert "+name] = rule.Expr
	}
	text := must(os.ReadFile(filepath.Join(chartFolder, "files", "dashboard.json")))(t)
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	noError(t, json.Unmarshal(text, &dashboard))
	for _, panel := range dashboard.Panels {
		for i, target := range panel.Targets {
			all[fmt.Sprintf("panel %s, %d", panel.Title, i)] = strings.ReplaceAll(target.Expr, "$namespace", ".*")
		}
	}
	return all
}

// TestExpressions: Prometheus can read every expression, and docs/metrics.md, which a test of
// the program compares with what it exports, has every metric.
func TestExpressions(t *testing.T) {
	documented := must(os.ReadFile(filepath.Join(root, "docs", "metrics.md")))(t)
	others := []string{"up", "leader_election_master_status"}
	for where, text := range expressions(t) {
		parsed, err := parser.NewParser(parser.Options{}).ParseExpr(text)
		if err != nil {
			t.Errorf("%s: %v", where, err)
			continue
		}
		parser.Inspect(parsed, func(node parser.Node, _ []parser.Node) error {
			if v, ok := node.(*parser.VectorSelector); ok {
				name := regexp.MustCompile(`_(bucket|count|sum)$`).ReplaceAllString(v.Name, "")
				if !strings.Contains(string(documented), "`"+name+"`") && !slices.Contains(others, name) {
					t.Errorf("%s: docs/metrics.md has no metric %s", where, name)
				}
			}
			return nil
		})
	}
}

// TestRunbooks: each alert has a section that says what to do, and each section an alert.
func TestRunbooks(t *testing.T) {
	text := must(os.ReadFile(filepath.Join(root, "docs", "alerts.md")))(t)
	var sections []string
	for _, found := range regexp.MustCompile(`(?m)^## (\w+)$`).FindAllStringSubmatch(string(text), -1) {
		sections = append(sections, found[1])
	}
	for name := range alerts(t) {
		if !slices.Contains(sections, name) {
			t.Errorf("docs/alerts.md has no section %s", name)
		}
	}
	if len(sections) != len(alerts(t)) {
		t.Errorf("docs/alerts.md has the sections %v", sections)
	}
}

// TestAlertsFire evaluates each alert on series that mean trouble, and on series that do not.
func TestAlertsFire(t *testing.T) {
	rules := alerts(t)
	for name, series := range map[string]struct{ trouble, well string }{
		"UsherDown":                {`up{container="other"} 1x20`, `up{container="usher"} 1x20`},
		"UsherHasNoLeader":         {`leader_election_master_status{container="usher", name="a"} 0x20`, "leader_election_master_status{container=\"usher\", name=\"a\", pod=\"1\"} 0x20\nleader_election_master_status{container=\"usher\", name=\"a\", pod=\"2\"} 1x20"},
		"UsherHookBlocked":         {`usher_cloneset_blocked_seconds{gate="preDelete"} 601x20`, `usher_cloneset_blocked_seconds{gate="container"} 601x20`},
		"UsherVersionCannotStart":  {`usher_cloneset_blocked_seconds{gate="container"} 301x20`, `usher_cloneset_blocked_seconds{gate="preDelete"} 301x20`},
		"UsherWritesRefused":       {`usher_cloneset_writes_total{result="error"} 0+1x20`, `usher_cloneset_writes_total{result="conflict"} 0+1x20`},
		"UsherRegistryUnavailable": {`usher_registry_errors_total{reason="unavailable"} 0+1x20`, `usher_registry_errors_total{reason="refused"} 0+1x20`},
		"UsherRegistryRefuses":     {`usher_registry_errors_total{reason="refused"} 0+1x20`, `usher_registry_errors_total{reason="refused"} 5x20`},
		"UsherRegistryHoldsPods":   {`usher_hook_waiting_since_timestamp_seconds{gate="preDelete"} 0x20`, `usher_hook_waiting_since_timestamp_seconds{gate="preDelete"} 1100x20`},
		"UsherPodsNotListed": {
			listed(2, 0), // of three Pods, all ready
			listed(2, 1),
		},
		"UsherOrphans":    {`usher_registry_orphans 1x20`, `usher_registry_orphans 0x20`},
		"UsherXDSRefused": {`usher_xds_refusals_total 0+1x20`, `usher_xds_refusals_total 1x20`},
	} {
		rule, ok := rules[name]
		if !ok {
			t.Errorf("there is no alert %s", name)
		}
		delete(rules, name)
		if !fires(t, rule.Expr, series.trouble) {
			t.Errorf("%s does not fire on %s", name, series.trouble)
		}
		if fires(t, rule.Expr, series.well) {
			t.Errorf("%s fires on %s", name, series.well)
		}
	}
	if len(rules) > 0 {
		t.Errorf("not tried: %v", rules)
	}
}

// listed are the series of a Registration of three Pods.
func listed(registered, notReady int) string {
	return fmt.Sprintf(`usher_registration_registry_pods{registry="a", state="registered"} %dx20
usher_registration_pods{state="matched"} 3x20
usher_registration_pods{state="notReady"} %dx20`, registered, notReady)
}

// fires evaluates an expression at 20 minutes on series of one sample a minute.
func fires(t *testing.T, expression, series string) bool {
	t.Helper()
	storage := promqltest.LoadedStorage(t, "load 1m\n"+series)
	engine := promqltest.NewTestEngine(t, false, 0, promqltest.DefaultMaxSamplesPerQuery)
	query := must(engine.NewInstantQuery(t.Context(), storage, nil, expression, time.Unix(0, 0).Add(20*time.Minute)))(t)
	defer query.Close()
	result := query.Exec(t.Context())
	if result.Err != nil {
		t.Fatal(result.Err)
	}
	vector, ok := result.Value.(promql.Vector)
	if !ok {
		t.Fatalf("%s is %s", expression, result.Value.Type())
	}
	return len(vector) > 0
}
