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

	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/list"
)

// alerts returns the chart's rules as Prometheus reads them.
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

// panel is a graph of the dashboard, or the heading of a row.
type panel struct {
	Type, Title, Description string
	Targets                  []struct{ Expr, LegendFormat string }
}

func panels(t *testing.T) []panel {
	t.Helper()
	text := checktest.Must(os.ReadFile(filepath.Join(chartFolder, "files", "dashboard.json")))(t)
	var dashboard struct{ Panels []panel }
	checktest.NoError(t, json.Unmarshal(text, &dashboard))
	return dashboard.Panels
}

// expressions returns the expressions of alerts and dashboard, by their places.
func expressions(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for name, rule := range alerts(t) {
		all["alert "+name] = rule.Expr
	}
	for _, panel := range panels(t) {
		for i, target := range panel.Targets {
			all[fmt.Sprintf("panel %s, %d", panel.Title, i)] = strings.ReplaceAll(target.Expr, "$namespace", ".*")
		}
	}
	return all
}

// TestDashboard: each graph has a description, and a graph of namespaced objects shows the namespace,
// and only those of the chosen namespaces.
func TestDashboard(t *testing.T) {
	documented := string(checktest.Must(os.ReadFile(filepath.Join(root, "docs", "metrics.md")))(t))
	graphs := 0
	for _, panel := range panels(t) {
		if panel.Type == "row" {
			continue
		}
		graphs++
		if !strings.HasSuffix(panel.Description, ".") {
			t.Errorf("panel %s does not say what it means", panel.Title)
		}
		for _, target := range panel.Targets {
			name := strings.TrimSuffix(regexp.MustCompile(`usher_\w+`).FindString(target.Expr), "_bucket")
			row := regexp.MustCompile("(?m)^\\| `" + name + "` \\|[^|]*\\|([^|]*)\\|").FindStringSubmatch(documented)
			namespaced := row != nil && strings.Contains(row[1], "`namespace`")
			shows := strings.Contains(target.Expr, `namespace=~"$namespace"`) && strings.Contains(target.Expr, "by (namespace, ") &&
				strings.Contains(target.LegendFormat, "{{namespace}}")
			if namespaced && !shows {
				t.Errorf("panel %s does not show, or not choose, namespaces: %s, %s", panel.Title, target.Expr, target.LegendFormat)
			}
		}
	}
	if graphs < 10 {
		t.Errorf("%d graphs were understood", graphs)
	}
}

// TestExpressions: Prometheus can read every expression, and docs/metrics.md, which a test of
// the program compares with what it exports, has every metric.
func TestExpressions(t *testing.T) {
	documented := checktest.Must(os.ReadFile(filepath.Join(root, "docs", "metrics.md")))(t)
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

// TestRunbooks: each alert has a section that says what to do, and a link to it on the site; and each
// section has an alert.
func TestRunbooks(t *testing.T) {
	text := checktest.Must(os.ReadFile(filepath.Join(root, "docs", "alerts.md")))(t)
	headings := regexp.MustCompile(`(?m)^## (\w+)$`).FindAllStringSubmatch(string(text), -1)
	sections := list.Map(headings, func(found []string) string { return found[1] })
	site := read(t, filepath.Join(root, "tools", "docs", "hugo.yaml"))["baseURL"].(string)
	for name, rule := range alerts(t) {
		if !slices.Contains(sections, name) {
			t.Errorf("docs/alerts.md has no section %s", name)
		}
		checktest.Same(t, "where "+name+" leads", site+"alerts.html#"+strings.ToLower(name), rule.Annotations["runbook_url"])
	}
	checktest.Same(t, "sections of docs/alerts.md", len(alerts(t)), len(sections))
}

// TestNoLabelsOfScrapers: the rules work with every scraper. Their selectors use only labels in
// docs/metrics.md, and the label of leases.
func TestNoLabelsOfScrapers(t *testing.T) {
	documented := string(checktest.Must(os.ReadFile(filepath.Join(root, "docs", "metrics.md")))(t))
	for where, text := range expressions(t) {
		parsed := checktest.Must(parser.NewParser(parser.Options{}).ParseExpr(text))(t)
		for _, selectors := range parser.ExtractSelectors(parsed) {
			for _, matcher := range selectors {
				known := matcher.Name == model.MetricNameLabel || strings.HasPrefix(text, "max by (name) (leader_election") && matcher.Name == "name"
				if !known && !strings.Contains(documented, "`"+matcher.Name+"`") {
					t.Errorf("%s selects by %s, which is no label of Usher's", where, matcher.Name)
				}
			}
		}
	}
}

// TestPartIsMissed: UsherDown fires for a part that is away while another one runs.
func TestPartIsMissed(t *testing.T) {
	rule := alerts(t)["UsherDown"]
	const other = `usher_running{part="cloneset"} 1x20` + "\n"
	if !fires(t, rule.Expr, other+`usher_running{part="registration"} 1x9 stale`) {
		t.Error("nobody misses the hook operator")
	}
	if fires(t, rule.Expr, other+`usher_running{part="registration"} 1x20`) {
		t.Error("it fires while both run")
	}
}

// TestAlertsFire evaluates each alert on the series of testdata/alerts.yaml.
func TestAlertsFire(t *testing.T) {
	rules := alerts(t)
	text := string(checktest.Must(os.ReadFile("testdata/alerts.yaml"))(t))
	for name, series := range parse[map[string]struct{ Trouble, Well string }](t, text) {
		rule, ok := rules[name]
		if !ok {
			t.Errorf("there is no alert %s", name)
		}
		delete(rules, name)
		if !fires(t, rule.Expr, series.Trouble) {
			t.Errorf("%s does not fire on %s", name, series.Trouble)
		}
		if fires(t, rule.Expr, series.Well) {
			t.Errorf("%s fires on %s", name, series.Well)
		}
	}
	if len(rules) > 0 {
		t.Errorf("not tried: %v", rules)
	}
}

// fires evaluates an expression at 20 minutes on series of one sample a minute.
func fires(t *testing.T, expression, series string) bool {
	t.Helper()
	storage := promqltest.LoadedStorage(t, "load 1m\n"+series)
	engine := promqltest.NewTestEngine(t, false, 0, promqltest.DefaultMaxSamplesPerQuery)
	query := checktest.Must(engine.NewInstantQuery(t.Context(), storage, nil, expression, time.Unix(0, 0).Add(20*time.Minute)))(t)
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
