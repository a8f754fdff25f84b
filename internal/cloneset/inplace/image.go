// SPDX-License-Identifier: Apache-2.0

package inplace

import "strings"

// SameImage compares two image names. Without tag and digest a name means ":latest",
// without a registry it means Docker's; the colon of a registry's port does not start a
// tag.
func SameImage(a, b string) bool { return a == b || canonicalImage(a) == canonicalImage(b) }

func canonicalImage(name string) string {
	if name == "" {
		return ""
	}
	if !strings.Contains(name, "@") && strings.LastIndex(name, ":") <= strings.LastIndex(name, "/") {
		name += ":latest"
	}
	host, rest, found := strings.Cut(name, "/")
	switch {
	case !found:
		return "docker.io/library/" + name
	case !strings.ContainsAny(host, ".:") && host != "localhost":
		return "docker.io/" + name
	case host == "index.docker.io":
		host = "docker.io"
	}
	if host == "docker.io" && !strings.Contains(rest, "/") {
		rest = "library/" + rest
	}
	return host + "/" + rest
}
