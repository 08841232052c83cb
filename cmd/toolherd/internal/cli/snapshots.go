package cli

import (
	"context"
	"fmt"
	"strconv"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/toolherd/toolherd/cmd/toolherd/internal/terminal"
	registryv1 "github.com/toolherd/toolherd/proto/gen/toolherd/registry/v1"
)

func newSnapshots(s Streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "snapshots",
		Short: "List and compare configurations, go back to one, let the files count again",
		Args:  noArgs("a subcommand, such as list"),
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newSnapshotsList(s), newSnapshotsGet(s), newSnapshotsDiff(s), newSnapshotsActivate(s), newSnapshotsRelease(s))
	return cmd
}

// upTo accepts at most n snapshot ids.
func upTo(n int) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) > n {
			return usageError{fmt.Errorf("want at most %d snapshot ids, got %d: 'toolherd snapshots list' lists them", n, len(args))}
		}
		return nil
	}
}

func newSnapshotsList(s Streams) *cobra.Command {
	var flags clientFlags
	var limit int
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List activations, newest first, and what is held",
		Args:  noArgs("no argument"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if limit < 0 {
				return usageError{fmt.Errorf("--limit is %d, want a number above 0, or 0 for all", limit)}
			}
			return withClient(cmd, s, flags, func(ctx context.Context, c *client) error {
				list, err := c.listSnapshots(ctx, limit)
				if err != nil {
					return err
				}
				if flags.output == outputJSON {
					return printMessage(s.Out, list)
				}
				return printSnapshots(s, list)
			})
		},
	}
	addClientFlags(cmd, &flags)
	cmd.Flags().IntVar(&limit, "limit", 20, "at most this many; 0 means all")
	return cmd
}

// listSnapshots returns up to limit activations, all if it is 0. The token of the answer says whether there are more.
func (c *client) listSnapshots(ctx context.Context, limit int) (*registryv1.ListSnapshotsResponse, error) {
	const page = 1000
	all := &registryv1.ListSnapshotsResponse{}
	for {
		req := &registryv1.ListSnapshotsRequest{PageSize: page, PageToken: all.GetNextPageToken()}
		if left := limit - len(all.GetSnapshots()); limit > 0 {
			req.PageSize = int32(min(page, left))
		}
		got, err := c.registry.ListSnapshots(ctx, req)
		if err != nil {
			return nil, err
		}
		all.Snapshots = append(all.Snapshots, got.GetSnapshots()...)
		all.NextPageToken, all.Hold = got.GetNextPageToken(), got.GetHold()
		if all.GetNextPageToken() == "" || limit > 0 && len(all.GetSnapshots()) >= limit {
			return all, nil
		}
	}
}

func printSnapshots(s Streams, list *registryv1.ListSnapshotsResponse) error {
	rows := make([][]string, len(list.GetSnapshots()))
	for i, a := range list.GetSnapshots() {
		rows[i] = []string{
			strconv.FormatInt(a.GetRevision(), 10), a.GetSnapshotId(), strconv.Itoa(int(a.GetServerCount())),
			clock(a.GetActivateTime()), a.GetActor(), firstLine(a.GetActivateReason(), 80),
		}
	}
	if err := table(s.Out, []string{"REVISION", "SNAPSHOT", "SERVERS", "ACTIVATED", "BY", "WHY"}, rows); err != nil {
		return err
	}
	if list.GetNextPageToken() != "" {
		fmt.Fprintln(s.Err, "there are more: give a higher --limit, or --limit 0")
	}
	return printHold(s, list.GetHold())
}

// printHold says who holds what and what waits behind it; nothing if there is no hold.
func printHold(s Streams, h *registryv1.Hold) error {
	if h == nil {
		return nil
	}
	why := ""
	if h.GetReason() != "" {
		why = ": " + h.GetReason()
	}
	fmt.Fprintf(s.Out, "\n%s\n", terminal.Line(fmt.Sprintf("held since %s by %s%s", clock(h.GetHoldTime()), h.GetActor(), why)))
	fmt.Fprintln(s.Out, "what files say waits; 'toolherd snapshots release' makes the first of these current:")
	rows := make([][]string, len(h.GetCandidates()))
	for i, c := range h.GetCandidates() {
		rows[i] = []string{c.GetSnapshotId(), strconv.Itoa(int(c.GetServerCount())), clock(c.GetRecordTime()), c.GetActor(), firstLine(c.GetChange(), 80)}
	}
	return table(s.Out, []string{"CANDIDATE", "SERVERS", "RECORDED", "BY", "CHANGE"}, rows)
}

func newSnapshotsGet(s Streams) *cobra.Command {
	var flags clientFlags
	cmd := &cobra.Command{
		Use:   "get [SNAPSHOT]",
		Short: "Show a snapshot and its servers, the current one by default",
		Args:  upTo(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return withClient(cmd, s, flags, func(ctx context.Context, c *client) error {
				got, err := c.registry.GetSnapshot(ctx, &registryv1.GetSnapshotRequest{SnapshotId: argument(args, 0)})
				if err != nil {
					return err
				}
				if flags.output == outputJSON {
					return printMessage(s.Out, got)
				}
				return printSnapshot(s, got)
			})
		},
	}
	addClientFlags(cmd, &flags)
	return cmd
}

func argument(args []string, i int) string {
	if i < len(args) {
		return args[i]
	}
	return ""
}

func printSnapshot(s Streams, got *registryv1.GetSnapshotResponse) error {
	a := got.GetSnapshot()
	fields := [][2]string{
		{"snapshot", a.GetSnapshotId()}, {"revision", strconv.FormatInt(a.GetRevision(), 10)}, {"first seen", clock(a.GetCreateTime())},
		{"activated", clock(a.GetActivateTime())}, {"by", a.GetActor()}, {"why", a.GetActivateReason()},
	}
	if a.GetRevision() == 0 {
		fields[1][1] = "never current"
	}
	if a.GetInterceptorsJson() != "" {
		fields = append(fields, [2]string{"interceptors", a.GetInterceptorsJson()})
	}
	tw := tabwriter.NewWriter(s.Out, 0, 0, 2, ' ', 0)
	for _, f := range fields {
		if f[1] != "" {
			fmt.Fprintf(tw, "%s\t%s\n", f[0], terminal.Line(f[1]))
		}
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	rows := make([][]string, len(a.GetServers()))
	for i, e := range a.GetServers() {
		rows[i] = []string{e.GetName(), stateWord(e.GetState()), e.GetSource(), firstLine(e.GetReason(), 100)}
	}
	fmt.Fprintln(s.Out)
	if err := table(s.Out, []string{"SERVER", "STATE", "SOURCE", "REASON"}, rows); err != nil {
		return err
	}
	return printHold(s, got.GetHold())
}

func newSnapshotsActivate(s Streams) *cobra.Command {
	var flags clientFlags
	req := &registryv1.ActivateSnapshotRequest{}
	cmd := &cobra.Command{
		Use:   "activate SNAPSHOT",
		Short: "Make a snapshot current and hold it",
		Long: `Make a snapshot current and hold it: what files say from then on waits until 'toolherd snapshots release'.

It is validated, and no server is asked whether it works. 'toolherd snapshots diff SNAPSHOT' says what it changes.`,
		Example: `  toolherd snapshots activate snap_0123456789abcdef0123456789abcdef --reason "search lost its tools"`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usageError{fmt.Errorf("want one snapshot id, got %d arguments: 'toolherd snapshots list' lists them", len(args))}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			req.SnapshotId = args[0]
			return withClient(cmd, s, flags, func(ctx context.Context, c *client) error {
				got, err := c.registry.ActivateSnapshot(ctx, req)
				if err != nil {
					return err
				}
				if flags.output == outputJSON {
					return printMessage(s.Out, got)
				}
				_, err = fmt.Fprintf(s.Out, "%s is current as revision %d and holds: edits wait until 'toolherd snapshots release'\n",
					got.GetSnapshot().GetSnapshotId(), got.GetSnapshot().GetRevision())
				return err
			})
		},
	}
	addClientFlags(cmd, &flags)
	cmd.Flags().StringVar(&req.Reason, "reason", "", "why, for the record")
	cmd.Flags().StringVar(&req.Etag, "etag", "", "refuse unless this snapshot is current")
	return cmd
}

func newSnapshotsRelease(s Streams) *cobra.Command {
	var flags clientFlags
	req := &registryv1.ReleaseActivationRequest{}
	cmd := &cobra.Command{
		Use:   "release",
		Short: "End a hold: what files say becomes current at once",
		Args:  noArgs("no argument"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return withClient(cmd, s, flags, func(ctx context.Context, c *client) error {
				got, err := c.registry.ReleaseActivation(ctx, req)
				if err != nil {
					return err
				}
				if flags.output == outputJSON {
					return printMessage(s.Out, got)
				}
				did := "released: %s is current as revision %d\n"
				if !got.GetReleased() {
					did = "nothing was held: %s stays current as revision %d\n"
				}
				_, err = fmt.Fprintf(s.Out, did, got.GetSnapshot().GetSnapshotId(), got.GetSnapshot().GetRevision())
				return err
			})
		},
	}
	addClientFlags(cmd, &flags)
	cmd.Flags().StringVar(&req.Reason, "reason", "", "why, for the record")
	return cmd
}
