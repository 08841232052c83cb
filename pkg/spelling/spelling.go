// Package spelling finds what a misspelt word was probably meant to be.
package spelling

// Nearest returns the candidate with the least [Distance] from word, if that is at most most, else "". Of equally near
// ones the first wins.
func Nearest(word string, candidates []string, most int) string {
	best, bound := "", most
	for _, c := range candidates {
		if max(len(word)-len(c), len(c)-len(word)) > bound {
			continue // no nearer than that, and perhaps very long
		}
		if d := Distance(word, c); d <= bound {
			best, bound = c, d-1
		}
	}
	return best
}

// Distance is the number of insertions, deletions, substitutions and swaps of neighbours that turn a into b, no piece
// being changed twice (optimal string alignment), counted in bytes.
func Distance(a, b string) int {
	before := make([]int, len(b)+1)
	last := make([]int, len(b)+1)
	row := make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}
