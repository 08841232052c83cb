//go:build race

package partners

// raced builds Toolherd's own programs with the race detector, as the test was.
const raced = true
