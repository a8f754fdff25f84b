// SPDX-License-Identifier: Apache-2.0

package idle

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/usher-dev/usher/internal/registration/plan"
)

const (
	// maxTime is how long one request may take, its answer included.
	maxTime = 2 * time.Second
	// maxHeader bounds the header of an answer, in bytes.
	maxHeader = 16 << 10
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

// Dial connects to an address of a Pod, host and port.
type Dial func(ctx context.Context, network, address string) (net.Conn, error)

// newClient makes the client that asks Pods. Each request has a connection of its own: the next one shall not find a
// process that has gone.
func newClient(dial Dial) *http.Client {
	if dial == nil {
		dial = (&net.Dialer{Timeout: maxTime}).DialContext
	}
	return &http.Client{
		Transport: &http.Transport{
			DialContext: dial, Proxy: nil, DisableKeepAlives: true,
			DisableCompression: true, MaxResponseHeaderBytes: maxHeader,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Timeout:       maxTime,
	}
}

// ask makes one request.
func ask(ctx context.Context, client *http.Client, p place, checks []plan.Check) (said, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.at.String()+p.path, nil)
	if err != nil || request.URL.Host != p.at.String() || request.URL.User != nil {
		return said{}, fmt.Errorf("%q cannot be asked for", p.path)
	}
	request.Header.Set("User-Agent", "usher")
	if !p.http {
		request.Header.Set("Accept", textFormat)
	}
	response, err := client.Do(request)
	if err != nil {
		return said{}, fmt.Errorf("it does not answer at %s%s: %w", p.at, p.path, causeOf(err))
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

// causeOf is why a request failed, in words that are the same each time: a status shall not change with a port number.
func causeOf(err error) error {
	var dialed *net.OpError
	switch {
	case errors.Is(err, context.DeadlineExceeded), isTimeout(err):
		return fmt.Errorf("not within %s", maxTime)
	case errors.As(err, &dialed) && dialed.Op == "dial":
		return dialed.Err
	}
	return errors.New("its answer is none of HTTP, or breaks off")
}

func isTimeout(err error) bool {
	var timed net.Error
	return errors.As(err, &timed) && timed.Timeout()
}
