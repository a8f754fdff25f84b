// SPDX-License-Identifier: Apache-2.0

package idle

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"

	"github.com/usher-dev/usher/internal/registration/plan"
	"github.com/usher-dev/usher/internal/registration/podhttp"
)

// textFormat asks for the format that the parser reads.
const textFormat = "text/plain;version=0.0.4;q=1,*/*;q=0.1"

// place is what one request asks. Several metrics of one place are one request.
type place struct {
	at    netip.AddrPort
	path  string
	field string
	http  bool
}

// placesOf groups checks by what they ask, in their order.
func placesOf(checks []plan.Check) (places []place, of map[place][]plan.Check) {
	of = map[place][]plan.Check{}
	for _, check := range checks {
		p := place{check.At, check.Path, check.JSONField, check.Metric == nil}
		if of[p] == nil {
			places = append(places, p)
		}
		of[p] = append(of[p], check)
	}
	return places, of
}

// ask makes one request.
func ask(ctx context.Context, client *http.Client, p place, checks []plan.Check) (said, error) {
	request, err := podhttp.NewRequest(ctx, http.MethodGet, p.at, p.path, "")
	if err != nil {
		return said{}, fmt.Errorf("%q cannot be asked for: %w", p.path, err)
	}
	if !p.http {
		request.Header.Set("Accept", textFormat)
	}
	response, err := client.Do(request)
	if err != nil {
		return said{}, fmt.Errorf("it does not answer at %s%s: %w", p.at, p.path, podhttp.Cause(err))
	}
	defer func() { _ = response.Body.Close() }() // nothing was written
	answer, err := p.read(checks, response)
	if err != nil {
		return said{}, fmt.Errorf("%w (at %s%s)", err, p.at, p.path)
	}
	return answer, nil
}

func (p place) read(checks []plan.Check, response *http.Response) (said, error) {
	if p.http {
		return readHTTP(&checks[0], response.StatusCode, response.Body)
	}
	return readMetrics(checks, response.StatusCode, response.Body)
}
