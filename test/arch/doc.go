// Package arch holds the rules of the house as tests: who may import whom, where SQL and status codes may stand, how
// long a file may be. Each rule says why. A rule that is wrong is changed here, in a commit that says so.
package arch
