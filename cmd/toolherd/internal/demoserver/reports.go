package demoserver

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// reports are jobs that take their time. Each is a file that says when it began and how long it takes; how it stands
// follows from the clock. So no process needs to live for it, and a server that is killed and started again knows them all.
type reports struct{ dir string }

// report is what the file of a job says.
type report struct {
	Topic   string    `json:"topic"`
	Started time.Time `json:"started"`
	Seconds float64   `json:"seconds"`
	Fail    bool      `json:"fail,omitempty"`
}

// chapters is how many parts a report has, for its progress.
const chapters = 20

// pollAfter is how soon a client may ask again, in seconds: soon enough for a progress bar that moves.
const pollAfter = 0.5

// defaultDir keeps reports beside other temporary files: below Toolherd that is the session's own directory.
func defaultDir() string { return filepath.Join(os.TempDir(), "toolherd-demo-reports") }

func addReports(s *mcp.Server, r reports) {
	mcp.AddTool(s, &mcp.Tool{
		Name: "start_report", Description: "Write a report on a topic. It takes a while: the answer comes at once and names the job.",
		InputSchema: startSchema(), Annotations: &mcp.ToolAnnotations{DestructiveHint: new(false), OpenWorldHint: new(false)},
	}, r.start)
	mcp.AddTool(s, readOnly("report_status", "Tell how a report stands; once it is done, return it."), r.status)
	mcp.AddTool(s, &mcp.Tool{
		Name: "stop_report", Description: "Stop writing a report.",
		Annotations: &mcp.ToolAnnotations{DestructiveHint: new(true), IdempotentHint: true, OpenWorldHint: new(false)},
	}, r.stop)
}

type order struct {
	Topic   string  `json:"topic" jsonschema:"what the report is about"`
	Seconds float64 `json:"seconds,omitempty" jsonschema:"how long writing it takes"`
	Fail    bool    `json:"fail,omitempty" jsonschema:"fail at the end, to see what a failed task looks like"`
}

func startSchema() *jsonschema.Schema {
	schema, err := jsonschema.For[order](nil)
	if err != nil {
		panic(fmt.Sprintf("schema of start_report: %v", err)) // the type is fixed
	}
	p := schema.Properties["seconds"]
	p.Minimum, p.Maximum, p.Default = new(0.0), new(86_400.0), json.RawMessage("20")
	schema.Properties["topic"].MinLength, schema.Properties["topic"].MaxLength = new(1), new(200)
	return schema
}

type job struct {
	TaskID string `json:"task_id" jsonschema:"the job"`
}

type started struct {
	TaskID string `json:"task_id" jsonschema:"the job"`
	Status string `json:"status" jsonschema:"running"`
}

type progress struct {
	Current int `json:"current" jsonschema:"chapters written"`
	Total   int `json:"total" jsonschema:"chapters in all"`
}

type document struct {
	Title    string `json:"title"`
	Chapters int    `json:"chapters"`
	Summary  string `json:"summary"`
}

type standing struct {
	TaskID           string    `json:"task_id" jsonschema:"the job"`
	Status           string    `json:"status" jsonschema:"running, completed, failed or cancelled"`
	StatusMessage    string    `json:"status_message,omitempty" jsonschema:"for people"`
	Progress         *progress `json:"progress,omitempty" jsonschema:"how far it is"`
	PollAfterSeconds float64   `json:"poll_after_seconds,omitempty" jsonschema:"when to ask again"`
	Result           *document `json:"result,omitempty" jsonschema:"the report, once it is done"`
	Error            string    `json:"error,omitempty" jsonschema:"why it failed"`
	ErrorCode        string    `json:"error_code,omitempty" jsonschema:"task_not_found if there is no such job"`
}

func (r reports) start(_ context.Context, _ *mcp.CallToolRequest, in order) (*mcp.CallToolResult, started, error) {
	id := "report-" + strings.ToLower(rand.Text()[:16])
	err := r.write(id+".json", report{Topic: in.Topic, Started: time.Now(), Seconds: in.Seconds, Fail: in.Fail})
	if err != nil {
		return nil, started{}, fmt.Errorf("the report cannot be kept: %w", err)
	}
	return text("writing " + id), started{TaskID: id, Status: "running"}, nil
}

func (r reports) status(_ context.Context, _ *mcp.CallToolRequest, in job) (*mcp.CallToolResult, standing, error) {
	out, err := r.standing(in.TaskID)
	return text(in.TaskID + " is " + out.Status), out, err
}

func (r reports) stop(_ context.Context, _ *mcp.CallToolRequest, in job) (*mcp.CallToolResult, standing, error) {
	out, err := r.standing(in.TaskID)
	if err == nil && out.Status == "running" {
		if err = r.write(in.TaskID+stopped, time.Now()); err == nil || errors.Is(err, fs.ErrExist) {
			out, err = r.standing(in.TaskID)
		}
	}
	return text(in.TaskID + " is " + out.Status), out, err
}

// stopped ends the name of the file that says when a job was stopped.
const stopped = ".stopped.json"

var reportID = regexp.MustCompile(`^report-[a-z0-9]{16}$`)

// standing returns how a job stands by the clock.
func (r reports) standing(id string) (standing, error) {
	unknown := standing{TaskID: id, Status: "failed", ErrorCode: "task_not_found", Error: "this server knows no such report"}
	if !reportID.MatchString(id) {
		return unknown, nil
	}
	var job report
	err := r.read(id+".json", &job)
	if errors.Is(err, fs.ErrNotExist) {
		return unknown, nil
	}
	if err != nil {
		return standing{}, fmt.Errorf("read the report: %w", err)
	}
	at, wasStopped := time.Now(), true
	err = r.read(id+stopped, &at)
	if errors.Is(err, fs.ErrNotExist) {
		wasStopped, err = false, nil
	}
	if err != nil {
		return standing{}, fmt.Errorf("read the report: %w", err)
	}
	out := job.at(at, wasStopped)
	out.TaskID = id
	return out, nil
}

// at returns how the job stands at a time; wasStopped says that it was stopped then.
func (j report) at(t time.Time, wasStopped bool) standing {
	done := 1.0
	if j.Seconds > 0 {
		done = min(1, max(0, t.Sub(j.Started).Seconds()/j.Seconds))
	}
	written := int(math.Floor(done * chapters))
	out := standing{Progress: &progress{Current: written, Total: chapters}}
	switch {
	case done < 1 && wasStopped:
		out.Status, out.StatusMessage = "cancelled", fmt.Sprintf("stopped after %d of %d chapters", written, chapters)
	case done < 1:
		out.Status, out.PollAfterSeconds = "running", pollAfter
		out.StatusMessage = fmt.Sprintf("writing chapter %d of %d", written+1, chapters)
	case j.Fail:
		out.Status, out.Error = "failed", "the last chapter could not be written, as was asked for"
	default:
		out.Status = "completed"
		out.Result = &document{
			Title: j.Topic, Chapters: chapters,
			Summary: fmt.Sprintf("%d chapters on %s, written in %g seconds.", chapters, j.Topic, j.Seconds),
		}
	}
	return out
}

// write makes a file that does not exist yet, as a whole.
func (r reports) write(name string, content any) error {
	encoded, err := json.Marshal(content)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(r.dir, 0o700); err != nil {
		return err
	}
	root, err := os.OpenRoot(r.dir)
	if err != nil {
		return err
	}
	defer root.Close() //nolint:errcheck // a directory handle that was only read
	temp := "." + name + "." + rand.Text()
	if err := root.WriteFile(temp, encoded, 0o600); err != nil {
		return errors.Join(err, ignoreMissing(root.Remove(temp)))
	}
	return errors.Join(root.Link(temp, name), root.Remove(temp)) // a link fails where the name is taken
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func (r reports) read(name string, content any) error {
	root, err := os.OpenRoot(r.dir)
	if err != nil {
		return err
	}
	defer root.Close() //nolint:errcheck // a directory handle that was only read
	encoded, err := root.ReadFile(name)
	if err != nil {
		return err
	}
	return json.Unmarshal(encoded, content)
}
