package compose

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"

	"github.com/toolherd/toolherd/pkg/db/dbtest"
	"github.com/toolherd/toolherd/pkg/rpc"
	corev1 "github.com/toolherd/toolherd/proto/gen/toolherd/core/v1"
	notifierv1 "github.com/toolherd/toolherd/proto/gen/toolherd/notifier/v1"
	taskv1 "github.com/toolherd/toolherd/proto/gen/toolherd/task/v1"
	toolproxyv1 "github.com/toolherd/toolherd/proto/gen/toolherd/toolproxy/v1"
	"github.com/toolherd/toolherd/test/partners"
	"github.com/toolherd/toolherd/test/scenario"
)

// deployment is docker-compose.yml as processes.
type deployment struct {
	file     file
	packages map[string]string
	dir      string
	dsn      string
	ports    map[string][]string // by service: the port of each replica
	programs map[string][]*scenario.Program
}

// listens matches the address that a program's own listener is told.
var listens = regexp.MustCompile(`^0\.0\.0\.0:([0-9]+)$`)

// port returns the port that a service listens on in its container; "" if it does not.
func (s service) port() string {
	if i := slices.Index(s.Command, "--listen"); i >= 0 {
		if m := listens.FindStringSubmatch(s.Command[i+1]); m != nil {
			return m[1]
		}
	}
	return ""
}

func (s service) replicas() int { return max(1, s.Deploy.Replicas) }

func newDeployment(t *testing.T) *deployment {
	t.Helper()
	d := &deployment{
		file: parse(t), packages: programs(t), dir: t.TempDir(), dsn: dbtest.DSN(t),
		ports: map[string][]string{}, programs: map[string][]*scenario.Program{},
	}
	for name, s := range d.file.Services {
		for range s.replicas() {
			d.ports[name] = append(d.ports[name], freePort(t))
		}
	}
	for _, name := range []string{"out", "home"} {
		if err := os.Mkdir(d.path(name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return d
}

func (d *deployment) path(elem ...string) string {
	return filepath.Join(append([]string{d.dir}, elem...)...)
}

// freePort returns a port that is none of those which the kernel gives away by itself.
func freePort(t *testing.T) string {
	t.Helper()
	for range 100 {
		port := fmt.Sprint(32_000 + rand.IntN(700))
		l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "0.0.0.0:"+port)
		if err != nil {
			continue
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		return port
	}
	t.Fatal("no free port")
	return ""
}

// onHost rewrites what is written for a container: hosts and their ports, the database, and the paths of mounts.
func (d *deployment) onHost(t *testing.T, s service, replica int, name, text string) string {
	t.Helper()
	if m := listens.FindStringSubmatch(text); m != nil {
		if m[1] != s.port() {
			return "0.0.0.0:0" // of health and metrics, which nobody asks for here
		}
		return "0.0.0.0:" + d.ports[name][replica]
	}
	if strings.HasPrefix(text, "postgres://toolherd:toolherd@postgres:5432/toolherd") {
		return d.dsn
	}
	text = d.hosts(text)
	for _, v := range s.Volumes {
		source, rest, _ := strings.Cut(v, ":")
		target, _, _ := strings.Cut(rest, ":")
		if text == target || strings.HasPrefix(text, target+"/") {
			return d.mount(t, source) + strings.TrimPrefix(text, target)
		}
	}
	if strings.HasPrefix(text, "/") {
		t.Errorf("%s uses %s, which no volume holds", name, text)
	}
	return text
}

// hosts rewrites every host:port of a service to where its first replica listens.
func (d *deployment) hosts(text string) string {
	for name, s := range d.file.Services {
		if port := s.port(); port != "" {
			text = regexp.MustCompile(`\b`+name+`:`+port+`\b`).ReplaceAllString(text, "127.0.0.1:"+d.ports[name][0])
		}
	}
	return text
}

// mount returns the directory of the test that a volume or a directory of the repository is.
func (d *deployment) mount(t *testing.T, source string) string {
	t.Helper()
	dir := d.path("mount", filepath.Base(source))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, named := d.file.Volumes[source]; named {
		return dir
	}
	from := filepath.Join(partners.Root(t), source)
	entries, err := os.ReadDir(from)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		content, err := os.ReadFile(filepath.Join(from, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, e.Name()), []byte(d.hosts(string(content))), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// command is the command line of one replica of a service, with the environment of the file and no other.
func (d *deployment) command(t *testing.T, name string, replica int) partners.Command {
	t.Helper()
	s := d.file.Services[name]
	c := partners.GoProgram(t, d.packages[s.Build.Args["SERVICE"]])
	for _, arg := range s.Command {
		c.Args = append(c.Args, d.onHost(t, s, replica, name, arg))
	}
	c.Env = []string{"HOME=" + d.path("home")}
	for _, key := range slices.Sorted(maps.Keys(s.Environment)) {
		c.Env = append(c.Env, key+"="+d.onHost(t, s, replica, name, s.Environment[key]))
	}
	c.Dir = d.path("home")
	return c
}

// run runs what ends by itself, and then starts everything else at once.
func (d *deployment) run(t *testing.T) {
	t.Helper()
	var lasting []string
	for _, name := range slices.Sorted(maps.Keys(d.file.Services)) {
		switch s := d.file.Services[name]; {
		case len(s.Profiles) > 0 || s.Build.Context == "": // the collector, Postgres
		case d.file.oneShot(name):
			if r := scenario.Run(t, d.command(t, name, 0)); r.Code != 0 {
				t.Fatalf("%s ends with %d:\n%s", name, r.Code, r.Stderr)
			}
		default:
			lasting = append(lasting, name)
		}
	}
	for _, name := range lasting {
		for i := range d.file.Services[name].replicas() {
			p := scenario.Start(t, fmt.Sprintf("%s-%d", name, i+1), d.path("out"), d.command(t, name, i))
			d.programs[name] = append(d.programs[name], p)
		}
	}
	for _, name := range lasting {
		for _, p := range d.programs[name] {
			p.Announced(t, `(?m)^(ready) `)
		}
	}
}

// dial connects to the published address as one of the callers that setup made.
func (d *deployment) dial(t *testing.T, caller string) *grpc.ClientConn {
	t.Helper()
	identity := d.path("mount", "identity")
	token, err := os.ReadFile(filepath.Join(identity, caller+".token"))
	if err != nil {
		t.Fatal(err)
	}
	tls, err := rpc.ClientTLS(rpc.ClientTLSFiles{CAFile: filepath.Join(identity, "ca.pem")}, nil)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := rpc.Dial("127.0.0.1:"+d.ports["toolproxy"][0], rpc.ClientOptions{
		TLS: tls, Token: func() (string, error) { return strings.TrimSpace(string(token)), nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	})
	return conn
}

// OPS-009: the deployment of docker-compose.yml, with its TLS, tokens, and two of each worker, takes a task at one address,
// completes it and tells its owner, all at that address.
func TestTheDeploymentRunsATaskToItsEndAndTellsItsOwner(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	d.run(t)
	agent, operator := d.dial(t, "agent"), d.dial(t, "operator")
	tools := toolproxyv1.NewToolProxyServiceClient(agent)
	scope := &corev1.Scope{UserId: "ada", ThreadId: "t1"}
	ctx := t.Context()

	scenario.Eventually(t, "the tool server is well and tasks are taken in", func() bool {
		list, err := tools.ListTools(ctx, &toolproxyv1.ListToolsRequest{Scope: scope})
		return err == nil && list.GetTasksAvailable() &&
			slices.ContainsFunc(list.GetTools(), func(tool *toolproxyv1.Tool) bool { return tool.GetName() == "demo_start_report" })
	})
	out, err := tools.CallTool(ctx, &toolproxyv1.CallToolRequest{
		Name: "demo_start_report", Scope: scope,
		Args: &toolproxyv1.CallToolRequest_ArgumentsJson{ArgumentsJson: `{"topic": "compose", "seconds": 1}`},
	})
	if err != nil || out.GetTask().GetTaskId() == "" {
		t.Fatalf("submit: %v, %v", out, err)
	}
	id := out.GetTask().GetTaskId()
	if task := watch(t, agent, id, scope); task.GetStatus() != corev1.TaskStatus_TASK_STATUS_COMPLETED || !strings.Contains(task.GetResultJson(), "chapters on compose") {
		t.Errorf("the task ended as %v", task)
	}

	event := nextEvent(t, agent, id, scope)
	var body struct{ Status string }
	if err := json.Unmarshal([]byte(event.GetEventJson()), &body); err != nil || body.Status != "completed" {
		t.Errorf("event %s: %v", event.GetEventJson(), err)
	}
	if _, err := notifierv1.NewNotifierServiceClient(agent).AckEvent(ctx, &notifierv1.AckEventRequest{EventId: event.GetEventId()}); err != nil {
		t.Fatal(err)
	}
	scenario.Eventually(t, "the event is delivered", func() bool {
		list, err := notifierv1.NewNotifierServiceClient(operator).ListNotifications(ctx, &notifierv1.ListNotificationsRequest{TaskId: id})
		return err == nil && len(list.GetNotifications()) == 1 &&
			list.GetNotifications()[0].GetStatus() == notifierv1.NotificationStatus_NOTIFICATION_STATUS_DELIVERED
	})
	for name, programs := range d.programs {
		for _, p := range programs {
			p.Stop(t)
			if code := p.Wait(t); code != 0 {
				t.Errorf("%s ended with %d:\n%s", name, code, p.Stderr())
			}
		}
	}
}

// watch follows a task to its end.
func watch(t *testing.T, conn *grpc.ClientConn, id string, scope *corev1.Scope) *taskv1.Task {
	t.Helper()
	stream, err := taskv1.NewTaskServiceClient(conn).WatchTask(t.Context(), &taskv1.WatchTaskRequest{TaskId: id, Scope: scope})
	if err != nil {
		t.Fatal(err)
	}
	for {
		msg, err := stream.Recv()
		if err != nil {
			t.Fatalf("watch of %s: %v", id, err)
		}
		if msg.GetTask().GetEndTime() != nil {
			return msg.GetTask()
		}
	}
}

// nextEvent waits for an event of a task.
func nextEvent(t *testing.T, conn *grpc.ClientConn, id string, scope *corev1.Scope) *notifierv1.Event {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream, err := notifierv1.NewNotifierServiceClient(conn).WatchEvents(ctx, &notifierv1.WatchEventsRequest{Scope: scope})
	if err != nil {
		t.Fatal(err)
	}
	for {
		msg, err := stream.Recv()
		if err != nil {
			t.Fatalf("events of %s: %v", id, err)
		}
		if msg.GetEvent().GetTaskId() == id {
			return msg.GetEvent()
		}
	}
}
