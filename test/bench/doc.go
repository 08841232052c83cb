// Package bench measures Toolherd against a baseline that runs beside it, in the same run and interleaved with it.
//
// `make bench` prints the table of docs/benchmarks.md. Ratios are what counts: the host is shared, absolute numbers
// drift. Percentiles are taken at the client. Run by `go test` without flags, the same code makes one short round of
// each row, so that it cannot rot; nothing is ever asserted about time.
package bench
