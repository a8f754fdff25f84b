// SPDX-License-Identifier: Apache-2.0

package idle

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/utils/ptr"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/registration/plan"
)

// answered is what an answer says, in words.
func answered(answer said, err error) string {
	switch {
	case err != nil:
		return err.Error()
	case answer.idle:
		return "idle"
	case answer.underWay == nil:
		return "busy"
	}
	return fmt.Sprintf("busy %d", *answer.underWay)
}

// TestHTTPAnswers: what an application says by its status and its JSON field.
func TestHTTPAnswers(t *testing.T) {
	for _, c := range []struct {
		status      int
		field, body string
		want        string
	}{
		{200, "", "whatever", "idle"},
		{503, "", "", "busy"},
		{204, "", "", "it answers with status 204, and not with 200 or 503"},
		{302, "", "", "it answers with status 302, and not with 200 or 503"},
		{500, "", "", "it answers with status 500, and not with 200 or 503"},
		{200, "active", `{"active": 0}`, "idle"},
		{200, "active", `{"active": 3}`, "busy 3"},
		{200, "stats.active", `{"stats": {"active": 2.5}}`, "busy 3"},
		{503, "active", `{"active": 0}`, "busy 0"},
		{503, "active", `overloaded`, "busy"},
		{200, "active", `{"active": 1e300}`, "busy 1000000000"},
		{200, "active", `{"active": 1e999}`, "its answer has no number in the JSON field active"},
		{200, "active", `{"active": -1}`, "JSON field active is no number of requests"},
		{200, "active", `{"active": null}`, "its answer has no number in the JSON field active"},
		{200, "active", `{"active": "0"}`, "its answer has no number in the JSON field active"},
		{200, "active", `{"other": 0}`, "its answer has no number in the JSON field active"},
		{200, "a.b", `{"a": 0}`, "its answer has no JSON field a.b"},
		{200, "active", `<html>`, "its answer has no JSON field active"},
		{200, "active", strings.Repeat(" ", maxJSON) + `{"active": 0}`, "its answer has more than 65536 bytes"},
	} {
		have := answered(readHTTP(&plan.Check{JSONField: c.field}, c.status, strings.NewReader(c.body)))
		checktest.Same(t, fmt.Sprintf("what %d %.40q says of %s", c.status, c.body, c.field), c.want, have)
	}
}

// TestMetrics: what metrics say, and what they must not be believed.
func TestMetrics(t *testing.T) {
	const missing = "it has no metric active with these labels: correct spec.drain.until.metrics"
	plain := usherv1alpha1.UntilMetric{Name: "active"}
	for _, c := range []struct {
		what   string
		metric usherv1alpha1.UntilMetric
		status int
		body   string
		want   string
	}{
		{"nothing", plain, 200, "", missing},
		{"zero", plain, 200, "# HELP active x\n# TYPE active gauge\nactive 0\n", "idle"},
		{"a sum", plain, 200, "active{m=\"a\"} 1\nactive{m=\"b\"} 2\n", "busy 3"},
		{"no line end", plain, 200, "active 0", "idle"},
		{"carriage returns", plain, 200, "active 0\r\n", "idle"},
		{"a longer name", plain, 200, "active_total 0\n", missing},
		{"a comment", plain, 200, "# active 0\n", missing},
		{"colons", usherv1alpha1.UntilMetric{Name: "vllm:num_requests_running"}, 200, "vllm:num_requests_running{engine=\"0\"} 7.0\n", "busy 7"},
		{"a count of a summary", usherv1alpha1.UntilMetric{Name: "s_count"}, 200, "# TYPE s summary\ns_sum 3\ns_count 0\n", "idle"},
		{"the scrape itself", usherv1alpha1.UntilMetric{Name: "active", Is: 1}, 200, "active 1\n", "idle"},
		{"more than the scrape", usherv1alpha1.UntilMetric{Name: "active", Is: 1}, 200, "active 2\n", "busy 2"},
		{"labels", usherv1alpha1.UntilMetric{Name: "active", Labels: map[string]usherv1alpha1.UntilLabelValue{"m": "b"}}, 200,
			"active{m=\"a\"} 1\nactive{m=\"b\",x=\"y\"} 0\n", "idle"},
		{"no such labels", usherv1alpha1.UntilMetric{Name: "active", Labels: map[string]usherv1alpha1.UntilLabelValue{"m": "c"}}, 200,
			"active{m=\"a\"} 0\n", missing},
		{"a difference", usherv1alpha1.UntilMetric{Name: "active", Minus: "ended"}, 200, "active 7\nended{code=\"a\"} 2\nended{code=\"b\"} 4\n", "busy 1"},
		{"all have ended", usherv1alpha1.UntilMetric{Name: "active", Minus: "ended"}, 200, "active 6\nended 6\n", "idle"},
		{"none has ended", usherv1alpha1.UntilMetric{Name: "active", Minus: "ended"}, 200, "active 6\n", "busy 6"},
		{"more have ended", usherv1alpha1.UntilMetric{Name: "active", Minus: "ended"}, 200, "active 6\nended 7\n", "metric active is no number of requests"},
		{"not a number", plain, 200, "active NaN\n", "a series of its metric active is no number of requests"},
		{"negative", plain, 200, "active{m=\"a\"} -3\nactive{m=\"b\"} 3\n", "a series of its metric active is no number of requests"},
		{"infinite", plain, 200, "active +Inf\n", "metric active is no number of requests"},
		{"huge", plain, 200, "active 1e308\n", "busy 1000000000"},
		{"too huge", plain, 200, "active{m=\"a\"} 1e308\nactive{m=\"b\"} 1e308\n", "metric active is no number of requests"},
		{"another format", plain, 200, "active zero\n", "its metrics are not in Prometheus' text format"},
		{"a page", plain, 200, "<html>active</html>\n", missing},
		{"another status", plain, 503, "active 0\n", "it answers with status 503, and not with 200"},
		{"many other lines", plain, 200, strings.Repeat("other{le=\"1\"} 1\n", 400_000) + "active 0\n", "idle"},
		{"too many lines", plain, 200, strings.Repeat("other{le=\"1\"} 1\n", 600_000) + "active 0\n", "its metrics have more than 8388608 bytes"},
		{"too many series", plain, 200, strings.Repeat("active 0\n", maxSeries+1),
			"its metrics have more than 2000 series, or 262144 bytes of them: ask for less by the path"},
		{"long series", plain, 200, strings.Repeat("active{m=\""+strings.Repeat("m", 60_000)+"\"} 0\n", 5),
			"its metrics have more than 2000 series, or 262144 bytes of them: ask for less by the path"},
		{"a long line", plain, 200, strings.Repeat("m", maxLine+1), "its metrics have a line of more than 65536 bytes"},
	} {
		have := answered(readMetrics([]plan.Check{{Metric: &c.metric}}, c.status, strings.NewReader(c.body)))
		checktest.Same(t, "what metrics say with "+c.what, c.want, have)
	}
}

// TestTogether: several checks add up, and all of them have to be idle.
func TestTogether(t *testing.T) {
	body := "running 1\nwaiting 2\nidle 0\n"
	checks := func(names ...string) (all []plan.Check) {
		for _, name := range names {
			all = append(all, plan.Check{Metric: &usherv1alpha1.UntilMetric{Name: name}})
		}
		return all
	}
	for names, want := range map[string]string{"running waiting": "busy 3", "idle waiting": "busy 2", "idle": "idle"} {
		have := answered(readMetrics(checks(strings.Fields(names)...), 200, strings.NewReader(body)))
		checktest.Same(t, "what "+names+" say together", want, have)
	}
	silent, three := said{idle: true}, said{underWay: new(int64(3))}
	checktest.Same(t, "who does not count", "busy 3", answered(silent.and(three), nil))
	checktest.Same(t, "who does not count either", int64(3), ptr.Deref(three.and(silent).underWay, -1))
	most := said{underWay: new(int64(mostRequests))}
	checktest.Same(t, "how many there are at most", int64(mostRequests), *most.and(most).underWay)
}
