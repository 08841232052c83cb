package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/toolherd/toolherd/cmd/toolherd/internal/terminal"
	"github.com/toolherd/toolherd/pkg/fault"
)

// The two forms of output: a table for people, JSON for programs.
const (
	outputTable = "table"
	outputJSON  = "json"
)

func checkOutput(form string) error {
	if !slices.Contains([]string{outputTable, outputJSON}, form) {
		return fault.New(fault.InvalidArguments, "--output is %q, want table or json", form)
	}
	return nil
}

// printMessage writes a message as indented JSON with the names of the contract.
func printMessage(w io.Writer, m proto.Message) error {
	b, err := protojson.MarshalOptions{UseProtoNames: true, EmitDefaultValues: true}.Marshal(m)
	if err != nil {
		return fmt.Errorf("encode output: %w", err)
	}
	return printJSON(w, b)
}

// printJSON writes JSON indented, token for token otherwise.
func printJSON(w io.Writer, raw json.RawMessage) error {
	var out strings.Builder
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(raw); err != nil {
		return fmt.Errorf("encode output: %w", err)
	}
	_, err := io.WriteString(w, out.String())
	return err
}

// table writes rows in columns. Cells come from servers and files: control characters are not passed on.
func table(w io.Writer, header []string, rows [][]string) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, row := range append([][]string{header}, rows...) {
		cells := make([]string, len(row))
		for i, c := range row {
			cells[i] = terminal.Line(c)
		}
		fmt.Fprintln(tw, strings.TrimRight(strings.Join(cells, "\t"), "\t"))
	}
	return tw.Flush()
}

// firstLine cuts a description to its first sentence or line, at most n characters.
func firstLine(s string, n int) string {
	s, _, _ = strings.Cut(strings.TrimSpace(s), "\n")
	if runes := []rune(s); len(runes) > n {
		return string(runes[:n-1]) + "…"
	}
	return s
}
