package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/toolherd/toolherd/cmd/toolherd/internal/stack"
	"github.com/toolherd/toolherd/pkg/config"
)

// The verdicts of a check. A failed one makes the exit status 1.
const (
	verdictOK   = "ok"
	verdictWarn = "warn"
	verdictFail = "fail"
)

// finding is what a check came to.
type finding struct {
	Check    string `json:"check"`
	Verdict  string `json:"verdict"`
	Detail   string `json:"detail"`
	NextStep string `json:"next_step"`
}

// diagnosis collects findings in the order of the checks.
type diagnosis struct{ findings []finding }

func (d *diagnosis) ok(check, detail string) {
	d.findings = append(d.findings, finding{check, verdictOK, detail, ""})
}

func (d *diagnosis) warn(check, detail, next string) {
	d.findings = append(d.findings, finding{check, verdictWarn, detail, next})
}

func (d *diagnosis) fail(check, detail, next string) {
	d.findings = append(d.findings, finding{check, verdictFail, detail, next})
}

// broken records an error, which says for itself what to do next.
func (d *diagnosis) broken(check string, err error) { d.fail(check, err.Error(), "") }

func (d *diagnosis) failed() bool {
	for _, f := range d.findings {
		if f.Verdict == verdictFail {
			return true
		}
	}
	return false
}

func newDoctor(s Streams) *cobra.Command {
	var flags clientFlags
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check the installation and say what to do next",
		Long: `Check the installation and say what to do next: configuration, state directory, database, MCP servers, tasks and sinks.

A running toolherd is asked; where none runs, the services are started in this process for as long as the checks take. The
exit status is 1 if a check fails.`,
		Args: noArgs("no argument"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkOutput(flags.output); err != nil {
				return usageError{err}
			}
			d := &diagnosis{}
			examine(cmd, s, flags, d)
			if err := cmd.Context().Err(); err != nil {
				return err
			}
			if err := d.print(s, flags.output); err != nil {
				return err
			}
			if d.failed() {
				return errReported
			}
			return nil
		},
	}
	addClientFlags(cmd, &flags)
	return cmd
}

// examine runs all checks. What one of them needs and does not find ends them.
func examine(cmd *cobra.Command, s Streams, flags clientFlags, d *diagnosis) {
	cfg, err := loadConfig(cmd, s, clientBase())
	if err != nil {
		d.broken("configuration", err)
		return
	}
	d.ok("configuration", "it can be read")
	if flags.addr == "" && !d.local(cmd.Context(), cfg) {
		return
	}
	err = connection{cmd, s, flags, cfg}.open(func(ctx context.Context, c *client) error {
		return c.examine(ctx, d)
	})
	if err != nil {
		d.broken("connection", err)
	}
}

// local checks what this machine holds. It reports whether it makes sense to go on.
func (d *diagnosis) local(ctx context.Context, cfg config.Config) bool {
	before := len(d.findings)
	if err := writable(cfg.StateDir); err != nil {
		d.fail("state directory", err.Error(), "let this user write there, or give another --state-dir")
		return false
	}
	running, found, err := stack.Find(cfg.StateDir)
	switch {
	case err != nil:
		d.broken("state directory", err)
	case found:
		d.ok("state directory", fmt.Sprintf("%s: a toolherd with process id %d runs there at %s", cfg.StateDir, running.PID, running.GRPC))
	default:
		d.ok("state directory", cfg.StateDir+": no toolherd runs there")
	}
	name, err := stack.CheckDatabase(ctx, cfg)
	switch {
	case err != nil:
		d.broken("database", err)
	default:
		d.ok("database", name)
	}
	for _, f := range d.findings[before:] {
		if f.Verdict == verdictFail {
			return false
		}
	}
	return true
}

// writable reports why no file can be made in dir. One that does not exist is made when it is needed.
func writable(dir string) error {
	probe, err := os.CreateTemp(dir, ".doctor-*")
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(probe.Close(), os.Remove(probe.Name()))
}

// print shows the findings.
func (d *diagnosis) print(s Streams, form string) error {
	if form == outputJSON {
		raw, err := json.Marshal(map[string]any{"checks": d.findings})
		if err != nil {
			return err
		}
		return printJSON(s.Out, raw)
	}
	rows := make([][]string, len(d.findings))
	for i, f := range d.findings {
		rows[i] = []string{f.Verdict, f.Check, f.Detail}
		if f.NextStep != "" {
			rows[i] = append(rows[i], "→ "+f.NextStep)
		}
	}
	return table(s.Out, []string{"VERDICT", "CHECK", "FINDING", "NEXT STEP"}, rows)
}

// fromReason splits what a server says is wrong from what mends it.
func fromReason(reason, fix string) (detail, next string) {
	return cmp.Or(strings.TrimSpace(reason), "no reason is known"), fix
}
