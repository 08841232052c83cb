package cli

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/toolherd/toolherd/cmd/toolherd/internal/terminal"
	notifierv1 "github.com/toolherd/toolherd/proto/gen/toolherd/notifier/v1"
)

const notificationPrefix = "NOTIFICATION_STATUS_"

const notificationStatusHelp = "only pending, claimed, dispatched, retry, delivered or dead_letter ones; repeatable"

func newNotifications(s Streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "notifications",
		Short: "List the deliveries of task events, and deliver again",
		Args:  noArgs("a subcommand, such as list"),
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newNotificationsList(s), newNotificationsGet(s), newNotificationsRedrive(s))
	return cmd
}

func newNotificationsList(s Streams) *cobra.Command {
	var flags clientFlags
	var words []string
	var sink, task string
	var limit int
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List deliveries, newest first",
		Example: `  toolherd notifications list --status dead_letter`,
		Args:    noArgs("no argument"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			statuses, err := enumValues[notifierv1.NotificationStatus]("--status", notificationPrefix, notifierv1.NotificationStatus_value, words)
			if err != nil {
				return err
			}
			if limit < 0 {
				return usageError{fmt.Errorf("--limit is %d, want a number above 0, or 0 for all", limit)}
			}
			return withClient(cmd, s, flags, func(ctx context.Context, c *client) error {
				list, err := c.listNotifications(ctx, &notifierv1.ListNotificationsRequest{Statuses: statuses, Sink: sink, TaskId: task}, limit)
				if err != nil {
					return err
				}
				if flags.output == outputJSON {
					return printMessage(s.Out, list)
				}
				return printNotifications(s, list)
			})
		},
	}
	addClientFlags(cmd, &flags)
	cmd.Flags().StringArrayVar(&words, "status", nil, notificationStatusHelp)
	cmd.Flags().StringVar(&sink, "sink", "", "only deliveries to this sink")
	cmd.Flags().StringVar(&task, "task", "", "only deliveries of this task's events")
	cmd.Flags().IntVar(&limit, "limit", 50, "at most this many; 0 means all")
	return cmd
}

// listNotifications returns up to limit deliveries, all if it is 0. The token of the answer says whether there are more.
func (c *client) listNotifications(ctx context.Context, req *notifierv1.ListNotificationsRequest, limit int) (*notifierv1.ListNotificationsResponse, error) {
	const page = 1000
	all := &notifierv1.ListNotificationsResponse{}
	for {
		req.PageSize = page
		if left := limit - len(all.GetNotifications()); limit > 0 {
			req.PageSize = int32(min(page, left))
		}
		got, err := c.notifications.ListNotifications(ctx, req)
		if err != nil {
			return nil, err
		}
		all.Notifications = append(all.Notifications, got.GetNotifications()...)
		all.NextPageToken = got.GetNextPageToken()
		if all.GetNextPageToken() == "" || limit > 0 && len(all.GetNotifications()) >= limit {
			return all, nil
		}
		req.PageToken = all.GetNextPageToken()
	}
}

func printNotifications(s Streams, list *notifierv1.ListNotificationsResponse) error {
	rows := make([][]string, len(list.GetNotifications()))
	for i, n := range list.GetNotifications() {
		rows[i] = []string{
			n.GetNotificationId(), n.GetEventId(), n.GetSink(), deliveryWord(n), strconv.Itoa(int(n.GetAttemptCount())),
			clock(n.GetNextAttemptTime()), firstLine(n.GetLastError(), 60),
		}
	}
	if err := table(s.Out, []string{"NOTIFICATION", "EVENT", "SINK", "STATUS", "FAILURES", "NEXT ATTEMPT", "LAST ERROR"}, rows); err != nil {
		return err
	}
	if list.GetNextPageToken() != "" {
		fmt.Fprintln(s.Err, "there are more: give a higher --limit, or --limit 0")
	}
	return nil
}

func deliveryWord(n *notifierv1.Notification) string {
	return strings.ToLower(strings.TrimPrefix(n.GetStatus().String(), notificationPrefix))
}

func newNotificationsGet(s Streams) *cobra.Command {
	var flags clientFlags
	cmd := &cobra.Command{
		Use:   "get NOTIFICATION",
		Short: "Show a delivery and its attempts",
		Args:  oneNotification,
		RunE: func(cmd *cobra.Command, args []string) error {
			return withClient(cmd, s, flags, func(ctx context.Context, c *client) error {
				got, err := c.notifications.GetNotification(ctx, &notifierv1.GetNotificationRequest{NotificationId: args[0]})
				if err != nil {
					return err
				}
				if flags.output == outputJSON {
					return printMessage(s.Out, got.GetNotification())
				}
				return printNotification(s, got.GetNotification())
			})
		},
	}
	addClientFlags(cmd, &flags)
	return cmd
}

func oneNotification(_ *cobra.Command, args []string) error {
	if len(args) != 1 {
		return usageError{fmt.Errorf("want one notification id, got %d arguments: 'toolherd notifications list' lists them", len(args))}
	}
	return nil
}

func printNotification(s Streams, n *notifierv1.Notification) error {
	fields := [][2]string{
		{"notification", n.GetNotificationId()}, {"event", n.GetEventId()}, {"task", n.GetTaskId()}, {"sink", n.GetSink()},
		{"user", n.GetScope().GetUserId()}, {"thread", n.GetScope().GetThreadId()},
		{"status", deliveryWord(n)}, {"failures", strconv.Itoa(int(n.GetAttemptCount()))}, {"last error", n.GetLastError()},
		{"recorded", clock(n.GetCreateTime())}, {"delivered", clock(n.GetDeliverTime())}, {"next attempt", clock(n.GetNextAttemptTime())},
	}
	tw := tabwriter.NewWriter(s.Out, 0, 0, 2, ' ', 0)
	for _, f := range fields {
		if f[1] != "" {
			fmt.Fprintf(tw, "%s\t%s\n", f[0], terminal.Line(f[1]))
		}
	}
	if err := tw.Flush(); err != nil || len(n.GetAttempts()) == 0 {
		return err
	}
	rows := make([][]string, len(n.GetAttempts()))
	for i, a := range n.GetAttempts() {
		rows[i] = []string{clock(a.GetTime()), a.GetOutcome(), a.GetStatus(), firstLine(a.GetExcerpt(), 80)}
	}
	fmt.Fprintln(s.Out)
	return table(s.Out, []string{"ATTEMPT", "OUTCOME", "STATUS", "ANSWER"}, rows)
}

func newNotificationsRedrive(s Streams) *cobra.Command {
	var flags clientFlags
	var words []string
	var sink, since string
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "redrive [NOTIFICATION]",
		Short: "Deliver again, under the same event id",
		Long: `Deliver again, under the same event id and with fresh counters, whether the sink is paused or not.

One delivery by its id, or all that --sink, --status and --since choose; without --status those are the dead letters.
--since takes a time (2026-01-31T12:00:00Z) or how long ago that was (2h).`,
		Example: `  toolherd notifications redrive --sink ops --dry-run
  toolherd notifications redrive --sink ops --since 24h`,
		Args: func(cmd *cobra.Command, args []string) error {
			chooses := cmd.Flags().Changed("sink") || cmd.Flags().Changed("status") || cmd.Flags().Changed("since")
			switch {
			case len(args) > 1:
				return oneNotification(cmd, args)
			case len(args) == 1 && chooses:
				return usageError{errors.New("a notification id and --sink, --status or --since exclude each other: leave one out")}
			case len(args) == 0 && !chooses:
				return usageError{errors.New("want a notification id, or which ones with --sink, --status or --since")}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			req := &notifierv1.RedriveNotificationRequest{DryRun: dryRun}
			if len(args) == 1 {
				req.Target = &notifierv1.RedriveNotificationRequest_NotificationId{NotificationId: args[0]}
			} else {
				filter := &notifierv1.RedriveFilter{Sink: sink}
				var err error
				if filter.Statuses, err = enumValues[notifierv1.NotificationStatus]("--status", notificationPrefix, notifierv1.NotificationStatus_value, words); err != nil {
					return err
				}
				if filter.SinceTime, err = parseSince(since); err != nil {
					return err
				}
				req.Target = &notifierv1.RedriveNotificationRequest_Filter{Filter: filter}
			}
			return withClient(cmd, s, flags, func(ctx context.Context, c *client) error {
				got, err := c.notifications.RedriveNotification(ctx, req)
				if err != nil {
					return err
				}
				if flags.output == outputJSON {
					return printMessage(s.Out, got)
				}
				did := "are delivered again"
				if dryRun {
					did = "would be delivered again"
				}
				_, err = fmt.Fprintf(s.Out, "%d %s\n", got.GetCount(), did)
				return err
			})
		},
	}
	addClientFlags(cmd, &flags)
	cmd.Flags().StringArrayVar(&words, "status", nil, notificationStatusHelp)
	cmd.Flags().StringVar(&sink, "sink", "", "only deliveries to this sink")
	cmd.Flags().StringVar(&since, "since", "", "only events from this time on, or from that long ago")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only count them")
	return cmd
}

// parseSince reads a time, or how long ago it was; nil for an empty text.
func parseSince(text string) (*timestamppb.Timestamp, error) {
	if text == "" {
		return nil, nil
	}
	if d, err := time.ParseDuration(text); err == nil && d >= 0 {
		return timestamppb.New(time.Now().Add(-d)), nil
	}
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return nil, usageError{fmt.Errorf("--since is %q, want a time such as 2026-01-31T12:00:00Z, or how long ago, such as 2h", text)}
	}
	return timestamppb.New(t), nil
}
