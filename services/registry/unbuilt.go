package registry

import (
	"context"

	credentialv1 "github.com/toolherd/toolherd/proto/gen/toolherd/credential/v1"
	registryv1 "github.com/toolherd/toolherd/proto/gen/toolherd/registry/v1"

	"github.com/toolherd/toolherd/pkg/rpc"
)

const noApprovals = "this version keeps no approvals: `--trust-project-mcp` trusts the project's servers for one run"

func (r *registryServer) ListProjects(context.Context, *registryv1.ListProjectsRequest) (*registryv1.ListProjectsResponse, error) {
	return nil, rpc.Unimplemented("ListProjects: " + noApprovals)
}

func (r *registryServer) TrustProject(context.Context, *registryv1.TrustProjectRequest) (*registryv1.TrustProjectResponse, error) {
	return nil, rpc.Unimplemented("TrustProject: " + noApprovals)
}

func (r *registryServer) RevokeProject(context.Context, *registryv1.RevokeProjectRequest) (*registryv1.RevokeProjectResponse, error) {
	return nil, rpc.Unimplemented("RevokeProject: " + noApprovals)
}

const noLogin = "this version has no OAuth broker: servers that need a login are in error"

func (c *credentialServer) BeginLogin(context.Context, *credentialv1.BeginLoginRequest) (*credentialv1.BeginLoginResponse, error) {
	return nil, rpc.Unimplemented("BeginLogin: " + noLogin)
}

func (c *credentialServer) CompleteLogin(context.Context, *credentialv1.CompleteLoginRequest) (*credentialv1.CompleteLoginResponse, error) {
	return nil, rpc.Unimplemented("CompleteLogin: " + noLogin)
}

func (c *credentialServer) Logout(context.Context, *credentialv1.LogoutRequest) (*credentialv1.LogoutResponse, error) {
	return nil, rpc.Unimplemented("Logout: " + noLogin)
}

func (c *credentialServer) ListCredentials(context.Context, *credentialv1.ListCredentialsRequest) (*credentialv1.ListCredentialsResponse, error) {
	return nil, rpc.Unimplemented("ListCredentials: " + noLogin)
}
