// SPDX-License-Identifier: Apache-2.0

package idle

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"slices"
	"strings"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/registration/plan"
)

// Bounds of what is read of one answer, in bytes.
const (
	// maxBody is how much is read of an answer: metrics of a proxy with many clusters take megabytes.
	maxBody = 8 << 20
	// maxLine is how long a line of metrics may be, maxKept how much is kept of the metrics that are looked for. They may
	// have maxSeries lines.
	maxLine, maxKept, maxSeries = 64 << 10, 256 << 10, 2000
	// maxJSON is how much is read of an answer with a JSON field.
	maxJSON = 64 << 10
)

// mostRequests bounds the number that is shown: whoever answers may say anything.
const mostRequests = 1_000_000_000

// said is what one check has found out.
type said struct {
	idle bool
	// underWay is how many requests are; nil if the answer does not say so.
	underWay *int64
}

// counted judges a number of requests: the Pod is idle with at most so many. The error says that the number is none, as
// NaN.
func counted(what string, n float64, most int32) (said, error) {
	if math.IsNaN(n) || math.IsInf(n, 0) || n < 0 {
		return said{}, fmt.Errorf("%s is no number of requests", what)
	}
	return said{n <= float64(most), new(int64(math.Ceil(min(n, mostRequests))))}, nil
}

// readHTTP reads the answer of an application.
func readHTTP(check *plan.Check, status int, body io.Reader) (said, error) {
	switch {
	case status != http.StatusOK && status != http.StatusServiceUnavailable:
		return said{}, fmt.Errorf("it answers with status %d, and not with 200 or 503", status)
	case check.JSONField == "":
		return said{idle: status == http.StatusOK}, nil
	}
	answer, err := readField(check.JSONField, body)
	answer.idle = answer.idle && status == http.StatusOK
	if err != nil && status == http.StatusServiceUnavailable {
		return said{}, nil // busy, whatever else it says
	}
	return answer, err
}

// readField reads a number in a JSON document.
func readField(field string, body io.Reader) (said, error) {
	text, err := io.ReadAll(io.LimitReader(body, maxJSON+1))
	if err != nil {
		return said{}, errors.New("its answer breaks off")
	}
	if len(text) > maxJSON {
		return said{}, fmt.Errorf("its answer has more than %d bytes", maxJSON)
	}
	rest := json.RawMessage(text)
	for name := range strings.SplitSeq(field, ".") {
		var object map[string]json.RawMessage
		if err := json.Unmarshal(rest, &object); err != nil {
			return said{}, fmt.Errorf("its answer has no JSON field %s", field)
		}
		rest = object[name]
	}
	var number *float64
	if err := json.Unmarshal(rest, &number); err != nil || number == nil {
		return said{}, fmt.Errorf("its answer has no number in the JSON field %s", field)
	}
	return counted("JSON field "+field, *number, 0)
}

// readMetrics reads what several checks of one address say. Only lines of the metrics that they name reach the parser,
// so that it holds little of a large answer.
func readMetrics(checks []plan.Check, status int, body io.Reader) (said, error) {
	if status != http.StatusOK {
		return said{}, fmt.Errorf("it answers with status %d, and not with 200", status)
	}
	var names []string
	for _, check := range checks {
		names = append(names, check.Metric.Name, check.Metric.Minus)
	}
	lines, err := linesOf(names, body)
	if err != nil {
		return said{}, err
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(lines))
	if err != nil {
		return said{}, errors.New("its metrics are not in Prometheus' text format")
	}
	all := said{idle: true}
	for _, check := range checks {
		one, err := readMetric(families, check.Metric)
		if err != nil {
			return said{}, err
		}
		all = all.and(one)
	}
	return all, nil
}

// linesOf are the lines of samples that have one of the names.
func linesOf(names []string, body io.Reader) (kept []byte, err error) {
	limited := &io.LimitedReader{R: body, N: maxBody + 1}
	lines := bufio.NewScanner(limited)
	lines.Buffer(nil, maxLine)
	for series := 0; lines.Scan(); {
		line := lines.Bytes()
		end := bytes.IndexAny(line, "{ \t")
		if end <= 0 || !slices.Contains(names, string(line[:end])) {
			continue
		}
		kept, series = append(append(kept, line...), '\n'), series+1
		if series > maxSeries || len(kept) > maxKept {
			return nil, fmt.Errorf("its metrics have more than %d series, or %d bytes of them: ask for less by the path",
				maxSeries, maxKept)
		}
	}
	switch {
	case limited.N == 0:
		return nil, fmt.Errorf("its metrics have more than %d bytes", maxBody)
	case errors.Is(lines.Err(), bufio.ErrTooLong):
		return nil, fmt.Errorf("its metrics have a line of more than %d bytes", maxLine)
	case lines.Err() != nil:
		return nil, errors.New("its answer breaks off")
	}
	return kept, nil
}

func readMetric(families map[string]*dto.MetricFamily, metric *usherv1alpha1.UntilMetric) (said, error) {
	total, err := sum(families, metric.Name, metric.Labels)
	if err != nil {
		return said{}, err
	}
	if metric.Minus != "" {
		ended, err := sum(families, metric.Minus, metric.Labels)
		if err != nil && families[metric.Minus] != nil { // nothing has ended yet
			return said{}, err
		}
		total -= ended
	}
	return counted("metric "+metric.Name, total, metric.Is)
}

// sum adds up the series of a metric with the labels.
func sum(
	families map[string]*dto.MetricFamily, name string, labels map[string]usherv1alpha1.UntilLabelValue,
) (total float64, err error) {
	found := false
	for _, series := range families[name].GetMetric() {
		if !matches(series, labels) {
			continue
		}
		found = true
		value := series.GetUntyped().GetValue() // there is no type without the comments
		if !(value >= 0) {
			return 0, fmt.Errorf("a series of its metric %s is no number of requests", name)
		}
		total += value
	}
	if !found {
		return 0, fmt.Errorf("it has no metric %s with these labels: correct spec.drain.until.metrics", name)
	}
	return total, nil
}

// matches reports whether a series has all of the labels.
func matches(series *dto.Metric, labels map[string]usherv1alpha1.UntilLabelValue) bool {
	found := 0
	for _, pair := range series.GetLabel() {
		if value, asked := labels[pair.GetName()]; asked && string(value) == pair.GetValue() {
			found++
		}
	}
	return found == len(labels)
}

// and is what two checks say together.
func (s said) and(other said) said {
	all := said{idle: s.idle && other.idle, underWay: s.underWay}
	switch {
	case all.underWay == nil:
		all.underWay = other.underWay
	case other.underWay != nil:
		all.underWay = new(min(*s.underWay+*other.underWay, mostRequests))
	}
	return all
}
