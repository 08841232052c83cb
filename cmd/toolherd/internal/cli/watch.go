package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/toolherd/toolherd/cmd/toolherd/internal/follow"
	"github.com/toolherd/toolherd/cmd/toolherd/internal/terminal"
	corev1 "github.com/toolherd/toolherd/proto/gen/toolherd/core/v1"
	taskv1 "github.com/toolherd/toolherd/proto/gen/toolherd/task/v1"
)

// watchPatience is how long `tasks watch` tries to find a toolherd again that went away.
const watchPatience = 2 * time.Minute

func newTasksWatch(s Streams) *cobra.Command {
	return taskCommand(s, &cobra.Command{
		Use: "watch TASK", Short: "Follow a task to its end, with its progress",
		Long: `Follow a task to its end, with its progress, also while the toolherd that runs it is restarted.

The result goes to standard output, everything else to standard error. With --output json each state is one line of JSON on
standard output. The exit status is 1 if the task failed, was cancelled, or its tool reported an error.`,
	}, func(ctx context.Context, c *client, t taskCall) error {
		view := follow.NewView(s.Err, terminal.Is(s.Err, s.Environ))
		w := follow.Watch{
			Client: c.tasks, TaskID: t.id, Scope: t.scope, Show: view.Show,
			Lost: func(err error) { _ = view.Say(terminal.Line(err.Error()) + ": trying again") },
		}
		if !c.composed {
			w.Patience = watchPatience
		}
		if t.flags.output == outputJSON {
			w.Show = func(task *taskv1.Task) error { return printCompact(s.Out, task) }
		}
		task, err := w.Run(ctx)
		if doneErr := view.Done(); err == nil {
			err = doneErr
		}
		if err != nil {
			return err
		}
		if t.flags.output == outputTable {
			if err := printEnd(s, task); err != nil {
				return err
			}
		}
		if task.GetStatus() != corev1.TaskStatus_TASK_STATUS_COMPLETED || task.GetIsError() {
			return errReported
		}
		return nil
	})
}

// printEnd prints what a task came to.
func printEnd(s Streams, t *taskv1.Task) error {
	switch {
	case t.GetStatus() == corev1.TaskStatus_TASK_STATUS_FAILED:
		fmt.Fprintf(s.Err, "the task failed: %s\n", terminal.Text(remarkOfFailure(t)))
	case t.GetResultJson() != "":
		return printJSON(s.Out, json.RawMessage(t.GetResultJson()))
	case t.GetResultTruncated():
		fmt.Fprintf(s.Err, "the result was too large to be kept; it begins with: %s\n", terminal.Line(t.GetResultPreview()))
	case t.GetResultPreview() != "":
		fmt.Fprintf(s.Err, "the result is large: 'toolherd tasks result %s' prints it\n", terminal.Line(t.GetTaskId()))
	}
	if a := t.GetResultArtifactJson(); a != "" {
		return printJSON(s.Out, json.RawMessage(a))
	}
	return nil
}

// printCompact writes a message as one line of JSON.
func printCompact(w io.Writer, m proto.Message) error {
	encoded, err := protojson.MarshalOptions{UseProtoNames: true, EmitDefaultValues: true}.Marshal(m)
	if err != nil {
		return fmt.Errorf("encode output: %w", err)
	}
	var line bytes.Buffer // protojson varies its spaces
	if err := json.Compact(&line, encoded); err != nil {
		return fmt.Errorf("encode output: %w", err)
	}
	line.WriteByte('\n')
	_, err = w.Write(line.Bytes())
	return err
}
