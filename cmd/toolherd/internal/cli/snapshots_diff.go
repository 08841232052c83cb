package cli

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/toolherd/toolherd/cmd/toolherd/internal/terminal"
	registryv1 "github.com/toolherd/toolherd/proto/gen/toolherd/registry/v1"
)

func newSnapshotsDiff(s Streams) *cobra.Command {
	var flags clientFlags
	cmd := &cobra.Command{
		Use:   "diff [[FROM] TO]",
		Short: "Say what changed, secrets masked",
		Long: `Say what changed, secrets masked.

Without an argument: what the current snapshot changed against the one before. With one snapshot: what activating it would
change. With two: what the second one changes against the first.`,
		Args: upTo(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return withClient(cmd, s, flags, func(ctx context.Context, c *client) error {
				req := &registryv1.DiffSnapshotsRequest{}
				switch len(args) {
				case 1:
					list, err := c.registry.ListSnapshots(ctx, &registryv1.ListSnapshotsRequest{PageSize: 1})
					if err != nil {
						return err
					}
					for _, now := range list.GetSnapshots() {
						req.FromSnapshotId = now.GetSnapshotId()
					}
					req.ToSnapshotId = args[0]
				case 2:
					req.FromSnapshotId, req.ToSnapshotId = args[0], args[1]
				}
				got, err := c.registry.DiffSnapshots(ctx, req)
				if err != nil {
					return err
				}
				if flags.output == outputJSON {
					return printMessage(s.Out, got)
				}
				_, err = fmt.Fprint(s.Out, terminal.Text(diffText(got)))
				return err
			})
		},
	}
	addClientFlags(cmd, &flags)
	return cmd
}

// diffText returns a difference in lines: "+ added", "- removed", "~ changed" with its fields below.
func diffText(d *registryv1.DiffSnapshotsResponse) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s → %s\n", cmp.Or(d.GetFromSnapshotId(), "nothing"), d.GetToSnapshotId())
	for _, name := range d.GetAdded() {
		fmt.Fprintf(&b, "+ %s\n", terminal.Line(name))
	}
	for _, name := range d.GetRemoved() {
		fmt.Fprintf(&b, "- %s\n", terminal.Line(name))
	}
	for _, c := range d.GetChanged() {
		note := ""
		if c.GetReconnects() {
			note = "  (its sessions end)"
		}
		fmt.Fprintf(&b, "~ %s%s\n", terminal.Line(c.GetName()), note)
		for _, f := range c.GetFields() {
			fieldText(&b, "    ", f)
		}
		for _, f := range c.GetVerdict() {
			fieldText(&b, "    registry: ", f)
		}
	}
	if f := d.GetInterceptors(); f != nil {
		fieldText(&b, "~ ", f)
	}
	if len(d.GetAdded())+len(d.GetRemoved())+len(d.GetChanged()) == 0 && d.GetInterceptors() == nil {
		b.WriteString("no difference\n")
	}
	return b.String()
}

func fieldText(b *strings.Builder, indent string, f *registryv1.FieldDiff) {
	before, after := cmp.Or(f.GetBeforeJson(), "absent"), cmp.Or(f.GetAfterJson(), "absent")
	if before == after {
		after += " (another secret)"
	}
	fmt.Fprintf(b, "%s%s: %s → %s\n", indent, terminal.Line(f.GetPath()), terminal.Line(before), terminal.Line(after))
}

func stateWord(s registryv1.EntryState) string {
	return strings.ToLower(strings.TrimPrefix(s.String(), "ENTRY_STATE_"))
}
