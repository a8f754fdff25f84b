// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// SpreadTerm is the part of one of the template's topologySpreadConstraints that decides
// which Pods share a domain.
type SpreadTerm struct {
	// TopologyKey is the node label whose value names the domain.
	TopologyKey string
	// Selector selects the Pods that count.
	Selector labels.Selector
	// MatchLabelKeys are labels of Pods: only Pods with the same values are counted
	// together.
	MatchLabelKeys []string
}

// domain names the Pod's domain; false if the term does not count the Pod, or its node is
// in no domain. A node's host name is its name, so that the most common key needs no node
// read.
func (t *SpreadTerm) domain(p *podState, nodes map[string]map[string]string) (string, bool) {
	if !p.scheduled || !t.Selector.Matches(labels.Set(p.labels)) {
		return "", false
	}
	value, ok := p.node, true
	if t.TopologyKey != corev1.LabelHostname {
		value, ok = nodes[p.node][t.TopologyKey]
	}
	for _, key := range t.MatchLabelKeys {
		value += "\x00" + p.labels[key]
	}
	return value, ok
}

// domainCounts counts Pods by domain, and picks victims from the fullest domains. The choice of each
// victim counts the earlier ones as removed, so the domains stay even.
type domainCounts struct {
	terms []SpreadTerm
	nodes map[string]map[string]string
	// pods are the numbers of Pods by term and domain.
	pods map[domain]*int
}

// domain identifies a domain of a term.
type domain struct {
	term int
	name string
}

// nowhere counts the Pods in no domain, and stays 0.
var nowhere = new(int)

// countDomains counts, by domain, the Pods that are to stay so far.
func (p *pass) countDomains(stays func(*podState) bool) *domainCounts {
	c := &domainCounts{terms: p.Spec.Spread, nodes: p.Nodes, pods: map[domain]*int{}}
	if len(c.terms) == 0 {
		c.terms = []SpreadTerm{{TopologyKey: corev1.LabelHostname, Selector: labels.Everything()}}
	}
	for _, v := range p.pods {
		if stays(v) {
			add(c.domains(v), 1)
		}
	}
	return c
}

// domains returns the counts of the Pod's domains, one for each term.
func (c *domainCounts) domains(v *podState) []*int {
	out := make([]*int, len(c.terms))
	for i := range c.terms {
		out[i] = nowhere
		if name, ok := c.terms[i].domain(v, c.nodes); ok {
			at := domain{i, name}
			if c.pods[at] == nil {
				c.pods[at] = new(int)
			}
			out[i] = c.pods[at]
		}
	}
	return out
}

func add(domains []*int, n int) {
	for _, count := range domains {
		if count != nowhere {
			*count += n
		}
	}
}

// group holds the Pods that share all their domains, the next victim first.
type group struct {
	domains []*int
	pods    []*podState
}

// pick returns that many of the Pods, or all of them, in victim order. A victim changes nothing that
// distinguishes Pods of one group, so only the first Pod of each group must be examined.
func (c *domainCounts) pick(pods []*podState, count int) []*podState {
	groups := c.groups(pods)
	out := make([]*podState, 0, min(count, len(pods)))
	for len(out) < min(count, len(pods)) {
		best := slices.MinFunc(groups, compare)
		out = append(out, best.pods[0])
		add(best.domains, -1)
		if best.pods = best.pods[1:]; len(best.pods) == 0 {
			groups = slices.DeleteFunc(groups, func(one *group) bool { return one == best })
		}
	}
	return out
}

// groups groups Pods that share all their domains, in the order of their first Pods.
func (c *domainCounts) groups(pods []*podState) []*group {
	pods = slices.Clone(pods)
	slices.SortFunc(pods, func(a, b *podState) int { return cmp.Or(byUse(a, b), byAge(a, b)) })
	var out []*group
	known := map[string]*group{}
	for _, v := range pods {
		domains := c.domains(v)
		key := fmt.Sprint(domains)
		one := known[key]
		if one == nil {
			one = &group{domains: domains}
			known[key] = one
			out = append(out, one)
		}
		one.pods = append(one.pods, v)
	}
	return out
}

// compare decides which group's first Pod is removed first.
func compare(a, b *group) int {
	byCount := func(a, b *int) int { return cmp.Compare(*a, *b) }
	if order := cmp.Or(byUse(a.pods[0], b.pods[0]), slices.CompareFunc(b.domains, a.domains, byCount)); order != 0 {
		return order
	}
	return byAge(a.pods[0], b.pods[0])
}
