package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/toolherd/toolherd/cmd/toolherd/internal/follow"
	"github.com/toolherd/toolherd/cmd/toolherd/internal/terminal"
	corev1 "github.com/toolherd/toolherd/proto/gen/toolherd/core/v1"
	taskv1 "github.com/toolherd/toolherd/proto/gen/toolherd/task/v1"
)

func newTasks(s Streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "tasks",
		Short: "List, follow and cancel durable tasks",
		Args:  noArgs("a subcommand, such as list"),
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newTasksList(s), newTasksGet(s), newTasksResult(s), newTasksWatch(s), newTasksCancel(s))
	return cmd
}

// taskCommand makes a subcommand about one task.
func taskCommand(s Streams, cmd *cobra.Command, f func(ctx context.Context, c *client, t taskCall) error) *cobra.Command {
	var t taskCall
	var scope scopeFlags
	cmd.Args = func(_ *cobra.Command, args []string) error {
		if len(args) != 1 {
			return usageError{fmt.Errorf("want one task id, got %d arguments: 'toolherd tasks list' lists them", len(args))}
		}
		return nil
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		t.id, t.scope = args[0], scope.message()
		return withClient(cmd, s, t.flags, func(ctx context.Context, c *client) error { return f(ctx, c, t) })
	}
	addClientFlags(cmd, &t.flags)
	scope.add(cmd)
	return cmd
}

// taskCall is what a subcommand about one task was told.
type taskCall struct {
	id    string
	scope *corev1.Scope
	flags clientFlags
}

func newTasksList(s Streams) *cobra.Command {
	var flags clientFlags
	var scope scopeFlags
	var words []string
	var server string
	var limit int
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List tasks, newest first",
		Example: `  toolherd tasks list --status working --status input_required
  toolherd tasks list --user alice --thread t1 --output json`,
		Args: noArgs("no argument"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			statuses, err := enumValues[corev1.TaskStatus]("--status", "TASK_STATUS_", corev1.TaskStatus_value, words)
			if err != nil {
				return err
			}
			if limit < 0 {
				return usageError{fmt.Errorf("--limit is %d, want a number above 0, or 0 for all", limit)}
			}
			return withClient(cmd, s, flags, func(ctx context.Context, c *client) error {
				list, err := c.listTasks(ctx, &taskv1.ListTasksRequest{Scope: scope.message(), Statuses: statuses, Server: server}, limit)
				if err != nil {
					return err
				}
				if flags.output == outputJSON {
					return printMessage(s.Out, list)
				}
				return printTasks(s, list)
			})
		},
	}
	addClientFlags(cmd, &flags)
	scope.add(cmd)
	cmd.Flags().StringArrayVar(&words, "status", nil, "only submitted, working, input_required, completed, failed or cancelled ones; repeatable")
	cmd.Flags().StringVar(&server, "server", "", "only tasks of this server; for operators")
	cmd.Flags().IntVar(&limit, "limit", 50, "at most this many; 0 means all")
	return cmd
}

// enumValues returns the values of an enum that are called words, without their prefix and in any case.
func enumValues[E ~int32](flag, prefix string, values map[string]int32, words []string) ([]E, error) {
	var out []E
	for _, w := range words {
		v, ok := values[prefix+strings.ToUpper(w)]
		if !ok || v == 0 {
			var known []string
			for i := int32(1); ; i++ {
				name, found := nameOf(values, i)
				if !found {
					break
				}
				known = append(known, strings.ToLower(strings.TrimPrefix(name, prefix)))
			}
			return nil, usageError{fmt.Errorf("%s is %q, want one of %s", flag, w, strings.Join(known, ", "))}
		}
		out = append(out, E(v))
	}
	return out, nil
}

func nameOf(values map[string]int32, number int32) (string, bool) {
	for name, v := range values {
		if v == number {
			return name, true
		}
	}
	return "", false
}

// listTasks returns up to limit tasks, all if it is 0. The token of the answer says whether there are more.
func (c *client) listTasks(ctx context.Context, req *taskv1.ListTasksRequest, limit int) (*taskv1.ListTasksResponse, error) {
	const page = 100
	all := &taskv1.ListTasksResponse{}
	for {
		req.PageSize = page
		if left := limit - len(all.GetTasks()); limit > 0 {
			req.PageSize = int32(min(page, left))
		}
		got, err := c.tasks.ListTasks(ctx, req)
		if err != nil {
			return nil, err
		}
		all.Tasks = append(all.Tasks, got.GetTasks()...)
		all.NextPageToken = got.GetNextPageToken()
		if all.GetNextPageToken() == "" || limit > 0 && len(all.GetTasks()) >= limit {
			return all, nil
		}
		req.PageToken = all.GetNextPageToken()
	}
}

func printTasks(s Streams, list *taskv1.ListTasksResponse) error {
	rows := make([][]string, len(list.GetTasks()))
	for i, t := range list.GetTasks() {
		rows[i] = []string{t.GetTaskId(), firstLine(t.GetTaskName(), 40), t.GetServer(), follow.Word(t), clock(t.GetCreateTime()), firstLine(remark(t), 60)}
	}
	if err := table(s.Out, []string{"TASK", "NAME", "SERVER", "STATUS", "CREATED", "REMARK"}, rows); err != nil {
		return err
	}
	if list.GetNextPageToken() != "" {
		fmt.Fprintf(s.Err, "there are more: give a higher --limit, or --limit 0\n")
	}
	return nil
}

// remark is what is most worth knowing about a task, in a line.
func remark(t *taskv1.Task) string {
	switch {
	case t.GetStatus() == corev1.TaskStatus_TASK_STATUS_FAILED:
		return remarkOfFailure(t)
	case t.GetTrackingDegraded():
		return "the server cannot be asked at the moment"
	case t.GetCancelRequestedTime() != nil && !follow.Terminal(t.GetStatus()):
		return "to be cancelled"
	case t.GetIsError():
		return "the tool reported an error"
	}
	return t.GetStatusMessage()
}

// clock shows a time to the second in the local zone; empty for none.
func clock(t *timestamppb.Timestamp) string {
	if t == nil {
		return ""
	}
	return t.AsTime().Local().Format(time.DateTime)
}

func newTasksGet(s Streams) *cobra.Command {
	return taskCommand(s, &cobra.Command{Use: "get TASK", Short: "Show a task: its state, its result, and the newest attempts to reach its server"},
		func(ctx context.Context, c *client, t taskCall) error {
			got, err := c.tasks.GetTask(ctx, &taskv1.GetTaskRequest{TaskId: t.id, Scope: t.scope})
			if err != nil {
				return err
			}
			if t.flags.output == outputJSON {
				return printMessage(s.Out, got.GetTask())
			}
			return printTask(s.Out, got.GetTask())
		})
}

// printTask shows a task, a field to a line, without those that say nothing.
func printTask(w io.Writer, t *taskv1.Task) error {
	fields := [][2]string{
		{"task", t.GetTaskId()}, {"name", t.GetTaskName()}, {"server", t.GetServer()},
		{"user", t.GetScope().GetUserId()}, {"thread", t.GetScope().GetThreadId()},
		{"state", follow.Line(t)}, {"failure", remarkOfFailure(t)},
		{"created", clock(t.GetCreateTime())}, {"updated", clock(t.GetUpdateTime())}, {"ended", clock(t.GetEndTime())},
		{"cancel asked", clock(t.GetCancelRequestedTime())}, {"last poll", clock(t.GetLastPollTime())}, {"next poll", clock(t.GetNextPollTime())},
		{"expires", clock(t.GetExpireTime())}, {"events go to", t.GetNotifySink()}, {"run", t.GetRunId()}, {"tool call", t.GetToolCallId()},
		{"asks", t.GetInputRequiredJson()}, {"result", t.GetResultJson()}, {"preview", preview(t)}, {"artifact", t.GetResultArtifactJson()},
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, f := range fields {
		if f[1] != "" {
			fmt.Fprintf(tw, "%s\t%s\n", f[0], terminal.Line(f[1]))
		}
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	if len(t.GetAttempts()) == 0 {
		return nil
	}
	rows := make([][]string, len(t.GetAttempts()))
	for i, a := range t.GetAttempts() {
		rows[i] = []string{clock(a.GetTime()), a.GetKind(), firstLine(a.GetOutcome(), 80), a.GetWorker(), clock(a.GetNextDueTime())}
	}
	fmt.Fprintln(w)
	return table(w, []string{"ATTEMPT", "KIND", "OUTCOME", "WORKER", "NEXT DUE"}, rows)
}

func remarkOfFailure(t *taskv1.Task) string {
	return strings.Trim(t.GetFailureReason()+": "+t.GetError(), ": ")
}

// preview is shown where the result itself is not.
func preview(t *taskv1.Task) string {
	if t.GetResultJson() != "" || t.GetResultPreview() == "" {
		return ""
	}
	if t.GetResultTruncated() {
		return t.GetResultPreview() + " … (the rest was too large to be kept)"
	}
	return t.GetResultPreview() + " … ('toolherd tasks result' shows all of it)"
}

func newTasksResult(s Streams) *cobra.Command {
	return taskCommand(s, &cobra.Command{
		Use: "result TASK", Short: "Print the whole result of a task as JSON",
		Long: "Print the whole result of a task as JSON: indented, or with --output json exactly as the server gave it.",
	}, func(ctx context.Context, c *client, t taskCall) error {
		stream, err := c.tasks.GetTaskResult(ctx, &taskv1.GetTaskResultRequest{TaskId: t.id, Scope: t.scope})
		if err != nil {
			return err
		}
		var whole []byte
		for {
			msg, err := stream.Recv()
			if err != nil {
				if errors.Is(err, io.EOF) {
					err = io.ErrUnexpectedEOF
				}
				return err
			}
			whole = append(whole, msg.GetData()...)
			if msg.GetLast() {
				break
			}
		}
		if t.flags.output == outputTable && json.Valid(whole) {
			return printJSON(s.Out, whole)
		}
		_, err = fmt.Fprintf(s.Out, "%s\n", whole)
		return err
	})
}

func newTasksCancel(s Streams) *cobra.Command {
	return taskCommand(s, &cobra.Command{
		Use: "cancel TASK", Short: "Ask for the end of a task; it is cancelled once its server confirms",
	}, func(ctx context.Context, c *client, t taskCall) error {
		got, err := c.tasks.CancelTask(ctx, &taskv1.CancelTaskRequest{TaskId: t.id, Scope: t.scope})
		if err != nil {
			return err
		}
		if t.flags.output == outputJSON {
			return printMessage(s.Out, got.GetTask())
		}
		if _, err := fmt.Fprintln(s.Out, follow.Line(got.GetTask())); err != nil {
			return err
		}
		if !follow.Terminal(got.GetTask().GetStatus()) {
			fmt.Fprintf(s.Err, "the wish is recorded; its server decides: 'toolherd tasks watch %s' shows how it ends\n", terminal.Line(cmp.Or(got.GetTask().GetTaskId(), t.id)))
		}
		return nil
	})
}
