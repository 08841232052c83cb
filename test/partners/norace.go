//go:build !race

package partners

const raced = false
