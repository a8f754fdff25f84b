// SPDX-License-Identifier: Apache-2.0

package stories

import (
	"github.com/usher-dev/usher/devcluster/e2e"
)

func scaleIn() e2e.Story {
	return e2e.Story{
		Name:  "scale",
		About: "out and in through the scale subresource, as autoscalers do",
		Play: func(s *e2e.Scene) {
			s.Open()
			s.Scale(5)
			s.Settle()
			s.Scale(2)
			s.Settle()
			s.Scale(4)
			s.Settle()
		},
	}
}
