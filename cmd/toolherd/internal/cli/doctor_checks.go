package cli

import (
	"context"
	"fmt"
	"strconv"
	"time"

	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/toolherd/toolherd/pkg/backoff"
	"github.com/toolherd/toolherd/pkg/fault"
	corev1 "github.com/toolherd/toolherd/proto/gen/toolherd/core/v1"
	notifierv1 "github.com/toolherd/toolherd/proto/gen/toolherd/notifier/v1"
	taskv1 "github.com/toolherd/toolherd/proto/gen/toolherd/task/v1"
)

// examine asks a running toolherd, or the one that was composed here. Its error means that it can be asked nothing more.
func (c *client) examine(ctx context.Context, d *diagnosis) error {
	if err := c.settle(ctx); err != nil {
		return err
	}
	if !c.composed {
		d.ok("connection", c.address+" answers")
	}
	c.checkHealth(ctx, d)
	if err := c.checkServers(ctx, d); err != nil {
		return err
	}
	c.checkTasks(ctx, d)
	c.checkSinks(ctx, d)
	return nil
}

// checkHealth asks for the readiness of each service that is served here.
func (c *client) checkHealth(ctx context.Context, d *diagnosis) {
	for _, s := range []struct{ name, service string }{
		{"registry", "toolherd.registry.v1.RegistryService"},
		{"toolproxy", "toolherd.toolproxy.v1.ToolProxyService"},
		{"taskworker", "toolherd.task.v1.TaskService"},
		{"notifier", "toolherd.notifier.v1.NotifierService"},
	} {
		serving, err := c.awaitServing(ctx, s.service)
		switch {
		case err != nil && fault.KindOf(err) == fault.NotFound:
			// Another process's, in a split deployment.
		case err != nil:
			d.broken(s.name, err)
		case !serving:
			d.fail(s.name, "it is not ready", "its log says what it waits for; --log-level info shows more")
		default:
			d.ok(s.name, "it is ready")
		}
	}
}

// healthPatience is how long a service may take to be ready: its health is looked at now and then only.
const healthPatience = 3 * time.Second

// awaitServing reports whether a service is ready, soon.
func (c *client) awaitServing(ctx context.Context, service string) (bool, error) {
	for deadline := time.Now().Add(healthPatience); ; {
		got, err := c.health.Check(ctx, &healthv1.HealthCheckRequest{Service: service})
		if err != nil || got.GetStatus() == healthv1.HealthCheckResponse_SERVING {
			return err == nil, err
		}
		if time.Now().After(deadline) {
			return false, nil
		}
		if err := backoff.Sleep(ctx, 50*time.Millisecond); err != nil {
			return false, err
		}
	}
}

// checkServers reports on the snapshot and on each MCP server.
func (c *client) checkServers(ctx context.Context, d *diagnosis) error {
	list, err := c.listServers(ctx)
	if err != nil {
		return err
	}
	if list.GetSnapshotId() == "" {
		d.fail("configuration of servers", "there is no snapshot of it yet", "see what the registry's log says")
	} else {
		d.ok("configuration of servers", fmt.Sprintf("snapshot %s, revision %d", list.GetSnapshotId(), list.GetRevision()))
	}
	if len(list.GetServers()) == 0 {
		d.warn("servers", "no MCP server is configured", "give a file with --mcp-config, or write one to ~/.toolherd/.mcp.json")
	}
	for _, srv := range list.GetServers() {
		check := "server " + srv.GetName()
		detail, next := fromReason(srv.GetReason(), srv.GetFixCommand())
		switch srv.GetStatus() {
		case corev1.ServerStatus_SERVER_STATUS_OK:
			switch {
			case srv.GetStale():
				d.warn(check, "its tools are as it last listed them: "+detail, next)
			default:
				d.ok(check, strconv.Itoa(int(srv.GetToolCount()))+" tools")
			}
		case corev1.ServerStatus_SERVER_STATUS_DISABLED:
			d.ok(check, "it is switched off")
		case corev1.ServerStatus_SERVER_STATUS_STARTING:
			d.warn(check, "it still has its first start", "look again in a moment: 'toolherd servers'")
		case corev1.ServerStatus_SERVER_STATUS_UNTRUSTED:
			d.warn(check, detail, next)
		default:
			d.fail(check, detail, next)
		}
	}
	return nil
}

// checkTasks reports whether durable tasks run, and on those that cannot be followed.
func (c *client) checkTasks(ctx context.Context, d *diagnosis) {
	tools, err := c.listTools(ctx, nil, nil)
	if err != nil {
		d.broken("tasks", err)
		return
	}
	if !tools.GetTasksAvailable() {
		d.fail("tasks", "durable tasks are not available", "see that tasks.enabled is true and, in a split deployment, that a taskworker runs")
		return
	}
	list, err := c.listTasks(ctx, &taskv1.ListTasksRequest{Statuses: []corev1.TaskStatus{
		corev1.TaskStatus_TASK_STATUS_SUBMITTED, corev1.TaskStatus_TASK_STATUS_WORKING, corev1.TaskStatus_TASK_STATUS_INPUT_REQUIRED,
	}}, 1000)
	if fault.Is(err, fault.InvalidArguments) || fault.Is(err, fault.Forbidden) {
		d.ok("tasks", "durable tasks are available (how they fare only operators see)")
		return
	}
	if err != nil {
		d.broken("tasks", err)
		return
	}
	degraded, asking := 0, 0
	for _, t := range list.GetTasks() {
		if t.GetTrackingDegraded() {
			degraded++
		}
		if t.GetStatus() == corev1.TaskStatus_TASK_STATUS_INPUT_REQUIRED {
			asking++
		}
	}
	d.ok("tasks", fmt.Sprintf("durable tasks are available; %d are going on, %d of them wait for input", len(list.GetTasks()), asking))
	if degraded > 0 {
		d.warn("tasks", fmt.Sprintf("%d tasks cannot be followed at the moment", degraded), "'toolherd tasks list' shows which, 'toolherd tasks get' why")
	}
}

// checkSinks reports on where events go.
func (c *client) checkSinks(ctx context.Context, d *diagnosis) {
	sinks, err := c.listSinks(ctx)
	if fault.Is(err, fault.Forbidden) {
		d.ok("sinks", "how they fare only operators see")
		return
	}
	if err != nil {
		d.broken("sinks", err)
		return
	}
	for _, s := range sinks {
		check := "sink " + s.GetName()
		switch {
		case s.GetPaused():
			d.warn(check, "it is paused: "+s.GetPauseReason(), "once it is mended, 'toolherd notifications redrive --sink "+s.GetName()+"' delivers what waits")
		case s.GetDeadLetterCount() > 0:
			d.warn(check, fmt.Sprintf("%d deliveries were given up", s.GetDeadLetterCount()), "'toolherd notifications list --status dead_letter --sink "+s.GetName()+"' says why, 'toolherd notifications redrive' tries again")
		default:
			d.ok(check, fmt.Sprintf("%s, %d deliveries wait", s.GetType(), s.GetPendingCount()))
		}
	}
}

// listSinks returns every sink.
func (c *client) listSinks(ctx context.Context) ([]*notifierv1.Sink, error) {
	var all []*notifierv1.Sink
	for token := ""; ; {
		page, err := c.notifications.ListSinks(ctx, &notifierv1.ListSinksRequest{PageSize: 1000, PageToken: token})
		if err != nil {
			return nil, err
		}
		all = append(all, page.GetSinks()...)
		if token = page.GetNextPageToken(); token == "" {
			return all, nil
		}
	}
}
