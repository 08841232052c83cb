package toolproxy

import (
	"context"

	"github.com/toolherd/toolherd/pkg/rpc"
	toolproxyv1 "github.com/toolherd/toolherd/proto/gen/toolherd/toolproxy/v1"
)

// background serves BackgroundToolService.
type background struct {
	toolproxyv1.UnimplementedBackgroundToolServiceServer
}

func (background) GetRemoteTask(context.Context, *toolproxyv1.GetRemoteTaskRequest) (*toolproxyv1.GetRemoteTaskResponse, error) {
	return nil, errNoTasks("GetRemoteTask")
}

func (background) UpdateRemoteTask(context.Context, *toolproxyv1.UpdateRemoteTaskRequest) (*toolproxyv1.UpdateRemoteTaskResponse, error) {
	return nil, errNoTasks("UpdateRemoteTask")
}

func (background) CancelRemoteTask(context.Context, *toolproxyv1.CancelRemoteTaskRequest) (*toolproxyv1.CancelRemoteTaskResponse, error) {
	return nil, errNoTasks("CancelRemoteTask")
}

func errNoTasks(method string) error {
	return rpc.Unimplemented(method + ": remote tasks are not built yet")
}
