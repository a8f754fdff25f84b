// SPDX-License-Identifier: Apache-2.0

package traffic

import "context"

// Fixed is one constant address: that of a load balancer, which finds the instances
// itself.
type Fixed string

// Follow implements Source.
func (f Fixed) Follow(ctx context.Context, sink Sink) error {
	sink.Replace([]Entry{{Key: string(f), Addr: string(f)}})
	<-ctx.Done()
	return ctx.Err()
}
