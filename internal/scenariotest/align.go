// SPDX-License-Identifier: Apache-2.0

package scenariotest

import (
	"slices"
	"strings"

	"github.com/usher-dev/usher/internal/fragment"
)

// anything, alone in its line, stands for any lines.
const anything = "..."

// fits reports whether a printed line is the wanted one. How many spaces there are between words does not matter.
func fits(want, printed string) bool {
	want, printed = strings.Join(strings.Fields(want), " "), strings.Join(strings.Fields(printed), " ")
	return fragment.Fits(want, printed)
}

// pair is a wanted line and the printed one at its place, by their indices.
type pair struct {
	wanted, printed int
	// drop means that the wanted line has no printed one, add that the printed one is not wanted.
	drop, add bool
	// fits means that the printed line is the wanted one.
	fits bool
}

// The cost of a wanted line without a printed one, of a printed line without a wanted one, and at most
// of a pair that does not fit.
const dropCost, addCost, changeCost = 100, 10, 60

// next returns the indices after the pair.
func (p pair) next() (wanted, printed int) {
	switch {
	case p.drop:
		return p.wanted + 1, p.printed
	case p.add:
		return p.wanted, p.printed + 1
	}
	return p.wanted + 1, p.printed + 1
}

// align pairs wanted lines with printed ones, so that as many as possible fit.
func align(want, printed []string) (pairs []pair) {
	costs := costsOf(want, printed)
	for i, j := 0, 0; i < len(want) || j < len(printed); {
		best, _ := cheapest(costs, want, printed, i, j)
		pairs = append(pairs, best)
		i, j = best.next()
	}
	return pairs
}

// prints reports whether everything fits.
func prints(pairs []pair) bool {
	return !slices.ContainsFunc(pairs, func(p pair) bool { return !p.fits })
}

// costsOf returns, for each number of wanted and printed lines that are paired already, the cost of the
// rest.
func costsOf(want, printed []string) [][]int {
	costs := make([][]int, len(want)+1)
	for i := len(want); i >= 0; i-- {
		costs[i] = make([]int, len(printed)+1)
		for j := len(printed); j >= 0; j-- {
			_, costs[i][j] = cheapest(costs, want, printed, i, j)
		}
	}
	return costs
}

// cheapest returns the next pair with which all lines from here cost least, and that cost.
func cheapest(costs [][]int, want, printed []string, i, j int) (best pair, least int) {
	for n, p := range possible(want, printed, i, j) {
		wanted, more := p.next()
		if cost := p.cost(want, printed) + costs[wanted][more]; n == 0 || cost < least {
			best, least = p, cost
		}
	}
	return best, least
}

// possible returns the pairs that can come next.
func possible(want, printed []string, i, j int) (pairs []pair) {
	isWanted, isPrinted := i < len(want), j < len(printed)
	free := isWanted && want[i] == anything
	if isWanted && isPrinted && !free {
		pairs = append(pairs, pair{wanted: i, printed: j, fits: fits(want[i], printed[j])})
	}
	if isWanted {
		pairs = append(pairs, pair{wanted: i, printed: j, drop: true, fits: free})
	}
	if isPrinted {
		pairs = append(pairs, pair{wanted: i, printed: j, add: true, fits: free})
	}
	return pairs
}

// cost returns the cost of a pair.
func (p pair) cost(want, printed []string) int {
	switch {
	case p.fits:
		return 0
	case p.drop:
		return dropCost
	case p.add:
		return addCost
	}
	return change(want[p.wanted], printed[p.printed])
}

// change returns the cost of a pair that does not fit. If the lines are alike, it is less than that of
// leaving the wanted line without a pair.
func change(want, printed string) int {
	if cost := 1 + dropCost*edits(want, printed)/max(len(want), len(printed), 1); cost <= changeCost {
		return cost
	}
	return dropCost + addCost
}

// rewritten returns the new wanted lines: lines that fit stay as they are.
func rewritten(pairs []pair, want, printed []string, contract func(string) string) (out []string) {
	for _, p := range pairs {
		switch {
		case p.fits && p.add || !p.fits && p.drop:
		case p.fits:
			out = append(out, want[p.wanted])
		default:
			out = append(out, contract(printed[p.printed]))
		}
	}
	return out
}
