// SPDX-License-Identifier: Apache-2.0

package scenariotest

import (
	"slices"
	"strings"
)

// anything stands for any text in a line that is wanted, and alone for any lines.
const anything = "..."

// fits reports whether a printed line is the wanted one. How many spaces there are between words does not matter.
func fits(want, printed string) bool {
	want, printed = strings.Join(strings.Fields(want), " "), strings.Join(strings.Fields(printed), " ")
	parts := strings.Split(want, anything)
	rest, ok := strings.CutPrefix(printed, parts[0])
	if len(parts) == 1 || !ok {
		return ok && rest == ""
	}
	for _, part := range parts[1 : len(parts)-1] {
		if _, rest, ok = strings.Cut(rest, part); !ok {
			return false
		}
	}
	return strings.HasSuffix(rest, parts[len(parts)-1])
}

// pair is a wanted line and the printed one at its place, by their indices.
type pair struct {
	wanted, printed int
	// drop means that the wanted line has no printed one, add that the printed one is not wanted.
	drop, add bool
	// fits means that the pair is as it is to be.
	fits bool
}

// What it costs to drop a wanted line, to add a printed one, and at most to take one for the other.
const dropCost, addCost, changeCost = 100, 10, 60

// align pairs wanted lines with printed ones, so that as many as possible fit.
func align(want, printed []string) (pairs []pair) {
	costs := costsOf(want, printed)
	i, j := 0, 0
	for i < len(want) || j < len(printed) {
		next := pair{wanted: i, printed: j}
		cost := costs[i][j]
		switch {
		case i < len(want) && want[i] == anything && cost == costs[i+1][j]:
			next.fits, next.drop = true, true
			i++
		case i < len(want) && want[i] == anything && j < len(printed) && cost == costs[i][j+1]:
			next.fits, next.add = true, true
			j++
		case i < len(want) && j < len(printed) && cost == costs[i+1][j+1]+change(want[i], printed[j]):
			next.fits = fits(want[i], printed[j])
			i, j = i+1, j+1
		case i < len(want) && cost == costs[i+1][j]+dropCost:
			next.drop = true
			i++
		default:
			next.add = true
			j++
		}
		pairs = append(pairs, next)
	}
	return pairs
}

// prints reports whether everything fits.
func prints(pairs []pair) bool {
	return !slices.ContainsFunc(pairs, func(p pair) bool { return !p.fits })
}

// costsOf is, for each number of lines that are already paired, what the others cost.
func costsOf(want, printed []string) [][]int {
	costs := make([][]int, len(want)+1)
	for i := len(want); i >= 0; i-- {
		costs[i] = make([]int, len(printed)+1)
		for j := len(printed); j >= 0; j-- {
			costs[i][j] = cheapest(costs, want, printed, i, j)
		}
	}
	return costs
}

func cheapest(costs [][]int, want, printed []string, i, j int) int {
	if i == len(want) {
		return (len(printed) - j) * addCost
	}
	if want[i] == anything {
		if j == len(printed) {
			return costs[i+1][j]
		}
		return min(costs[i+1][j], costs[i][j+1])
	}
	cost := costs[i+1][j] + dropCost
	if j < len(printed) {
		cost = min(cost, costs[i][j+1]+addCost, costs[i+1][j+1]+change(want[i], printed[j]))
	}
	return cost
}

// change is what it costs to take a printed line for the wanted one: nothing if it fits, less than to drop
// that one if they are alike.
func change(want, printed string) int {
	if fits(want, printed) {
		return 0
	}
	if cost := 1 + dropCost*edits(want, printed)/max(len(want), len(printed), 1); cost <= changeCost {
		return cost
	}
	return dropCost + addCost
}

// rewritten are the lines to want from now on: those that fit stay as they are.
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
