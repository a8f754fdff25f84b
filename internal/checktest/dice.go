// SPDX-License-Identifier: Apache-2.0

package checktest

// Dice turn fuzzed bytes into choices; when they run out they always take the first one.
type Dice struct{ Data []byte }

// Roll chooses one of n numbers.
func (d *Dice) Roll(n int) int {
	if len(d.Data) == 0 || n == 0 {
		return 0
	}
	value := int(d.Data[0]) % n
	d.Data = d.Data[1:]
	return value
}

// Pick chooses one of several values.
func Pick[T any](d *Dice, choices ...T) T { return choices[d.Roll(len(choices))] }
